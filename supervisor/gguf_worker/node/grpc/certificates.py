"""TLS files, checked before anything relies on them: gRPC itself would only fail each handshake."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

from gguf_worker.errors import GgufWorkerError

_SEQUENCE, _INTEGER, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0x02, 0x17, 0x18
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


class CertificateError(GgufWorkerError):
    """Raised for a TLS file that cannot be used; names it and what is wrong."""

    default_code = "certificate"


def read_pair(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """Certificate chain and private key, in PEM. Raises CertificateError where one is missing or no PEM,
    where they do not belong together, and where the certificate is not valid now."""
    chain, private = _read_certificates(certificate), _read(key)
    if b"PRIVATE KEY-----" not in private:
        raise CertificateError(
            f"{key} holds no private key in PEM (it must have a block BEGIN PRIVATE KEY)",
            fields={"path": str(key)},
        )
    _check_together(certificate, key)
    _check_valid_now(certificate, chain)
    return chain, private


def read_authorities(file: Path) -> bytes:
    """Certificates of authorities, in PEM. Raises CertificateError."""
    authorities = _read_certificates(file)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except (OSError, ValueError) as error:
        raise CertificateError(
            f"{file} holds no certificates that OpenSSL can read: {error}", fields={"path": str(file)}
        ) from error
    return authorities


def validity(pem: bytes) -> tuple[datetime, datetime]:
    """When the first certificate of a chain begins and ends to be valid. Raises ValueError for what is no
    certificate."""
    begin = pem.index(_BEGIN)
    end = pem.index(_END, begin) + len(_END)
    der = ssl.PEM_cert_to_DER_cert(pem[begin:end].decode("ascii"))
    # Certificate { tbsCertificate { [0] version, serialNumber, signature, issuer, validity { from, to } ...
    tag, at, _ = _element(der, 0)
    tag, at, _ = _element(der, at)
    tag, start, after = _element(der, at)
    if tag != _INTEGER:
        tag, start, after = _element(der, after)
    for _ in ("signature", "issuer", "validity"):
        tag, start, after = _element(der, after)
    if tag != _SEQUENCE:
        raise ValueError("no certificate: there is no validity in it")
    begins, ends_at = _time(der, start)
    ends, _ = _time(der, ends_at)
    return begins, ends


def _check_together(certificate: Path, key: Path) -> None:
    def passphrase() -> str:
        raise CertificateError(
            f"{key} is encrypted: give a key without a passphrase", fields={"path": str(key)}
        )

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=passphrase)
    except ssl.SSLError as error:
        mismatch = "the key does not belong to the certificate" if "MISMATCH" in str(error.reason) else None
        reason = mismatch or f"OpenSSL cannot use them ({error.reason or error})"
        raise CertificateError(
            f"{certificate} and {key}: {reason}", fields={"certificate": str(certificate), "key": str(key)}
        ) from error
    except OSError as error:
        raise CertificateError(f"{certificate} and {key} cannot be read: {error}") from error


def _check_valid_now(file: Path, chain: bytes) -> None:
    try:
        begins, ends = validity(chain)
    except (ValueError, IndexError) as error:
        raise CertificateError(f"{file} holds no certificate: {error}", fields={"path": str(file)}) from error
    now = datetime.now(UTC)
    if now >= ends:
        raise CertificateError(
            f"{file} expired at {ends:%Y-%m-%d %H:%M:%S} UTC: renew it",
            fields={"path": str(file), "expired": ends.isoformat()},
        )
    if now < begins:
        raise CertificateError(
            f"{file} is not valid before {begins:%Y-%m-%d %H:%M:%S} UTC: check this machine's clock",
            fields={"path": str(file), "begins": begins.isoformat()},
        )


def _read_certificates(file: Path) -> bytes:
    data = _read(file)
    if _BEGIN not in data or _END not in data:
        raise CertificateError(
            f"{file} holds no certificate in PEM (it must have a block BEGIN CERTIFICATE)",
            fields={"path": str(file)},
        )
    return data


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise CertificateError(
            f"{file} cannot be read: {(error.strerror or str(error)).lower()}", fields={"path": str(file)}
        ) from error


# ---- as much of DER as a validity needs -----------------------------------------------------------


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag of the element at an offset, where its content starts, and where the next element is."""
    tag, length, start = der[at], der[at + 1], at + 2
    if length & 0x80:
        n_bytes = length & 0x7F
        length = int.from_bytes(der[start : start + n_bytes], "big")
        start += n_bytes
    return tag, start, start + length


def _time(der: bytes, at: int) -> tuple[datetime, int]:
    tag, start, after = _element(der, at)
    text = der[start:after].decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year: 1950 to 2049
        text = ("19" if text >= "5" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("no certificate: its validity is no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC), after
