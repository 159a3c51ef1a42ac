"""Bearer tokens: who may call a node, and for which account."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from gguf_worker.errors import GgufWorkerError
from gguf_worker.node.grpc.files import Reread

VARIABLE = "GGUF_WORKER_TOKEN"
"""Of the environment: one token, where there is no file of them."""
MIN_LENGTH = 16
SCHEME = "Bearer "


class TokenError(GgufWorkerError):
    """Raised for tokens that cannot be used. No message ever holds a token."""

    default_code = "token_file"


class Tokens:
    """The tokens that a node takes."""

    def __init__(self, accounts: Callable[[], Mapping[bytes, str]]) -> None:
        self._accounts = accounts

    @classmethod
    def of(cls, tokens: Mapping[str, str]) -> Tokens:
        """Accounts by token. Raises TokenError."""
        accounts = {_checked(token, "a token"): account for token, account in tokens.items()}
        if not accounts:
            raise TokenError("there is no token: give at least one")
        return cls(lambda: accounts)

    @classmethod
    def from_file(cls, file: Path) -> Tokens:
        """Lines `token [account]`; empty lines and those that begin with # are skipped. The file is read
        again when it changes. Raises TokenError."""
        return cls(Reread([file], lambda: _read_tokens(file)).get)

    @classmethod
    def from_environment(cls, variable: str = VARIABLE) -> Tokens | None:
        """The one token of the environment; None where there is none. Raises TokenError."""
        token = os.environ.get(variable, "").strip()
        return cls.of({token: ""}) if token else None

    def account(self, authorization: str | bytes | None) -> str | None:
        """The account of a call with this `authorization`; None where it may not call."""
        text = authorization.decode("latin-1") if isinstance(authorization, bytes) else authorization or ""
        return self.account_of_token(text[len(SCHEME) :]) if text.startswith(SCHEME) else None

    def account_of_token(self, token: str) -> str | None:
        """The account of a token, empty where it has none; None where it is not one of these. All of them are
        compared, each in a time that tells nothing of it."""
        presented = token.encode("utf-8", "replace")
        found = None
        for known, account in self._accounts().items():
            if hmac.compare_digest(known, presented):
                found = account
        return found


def read_token(file: Path) -> str:
    """The first token of a file, for a client. Raises TokenError."""
    return next(iter(_read_tokens(file))).decode("ascii")


def _read_tokens(file: Path) -> dict[bytes, str]:
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or "").lower() if isinstance(error, OSError) else "it is not text"
        raise TokenError(f"{file} cannot be read: {reason}", fields={"path": str(file)}) from error
    accounts: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{file}, line {number}: the token"
        if len(words) > 2:
            raise TokenError(f"{file}, line {number}: write the token and, after a space, its account")
        token = _checked(words[0], where)
        if token in accounts:
            raise TokenError(f"{where} is there twice; remove one of them")
        accounts[token] = words[1] if len(words) == 2 else ""
    if not accounts:
        raise TokenError(f"{file} holds no token (write one in a line)", fields={"path": str(file)})
    return accounts


def _checked(token: str, where: str) -> bytes:
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise TokenError(f"{where} has characters other than printable ASCII without spaces")
    if len(token) < MIN_LENGTH:
        raise TokenError(
            f"{where} has {len(token)} characters, which can be guessed; take {MIN_LENGTH} or more "
            "(python -c 'import secrets; print(secrets.token_urlsafe())' makes one)"
        )
    return token.encode("ascii")
