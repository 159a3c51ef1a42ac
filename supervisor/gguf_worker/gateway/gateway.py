"""The gateway's own state: models, limits, who may ask, what is going on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import anyio
from prometheus_client.core import Metric

from gguf_worker.gateway.catalogue import Catalogue
from gguf_worker.gateway.chat import ChatPrompts
from gguf_worker.gateway.errors import ApiError, unavailable
from gguf_worker.gateway.figures import Figures
from gguf_worker.gateway.schemas import Grammars


class Keys(Protocol):
    """Who may ask."""

    def account(self, authorization: str | bytes | None) -> str | None:
        """The account of a request with this `authorization`; None where it is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """What a client may take."""

    max_body_bytes: int = 8 << 20
    body_timeout_s: float = 30.0
    request_timeout_s: float = 3600.0
    """From the end of the body to the end of the answer, waiting included."""


class Gateway:
    """What the endpoints share; `open_gateway` makes one."""

    def __init__(
        self,
        catalogue: Catalogue,
        prompts: ChatPrompts,
        *,
        keys: Keys | None = None,
        settings: GatewaySettings | None = None,
    ) -> None:
        self.catalogue = catalogue
        self.prompts = prompts
        self.grammars = Grammars()
        self.figures = Figures()
        self.keys = keys
        self.settings = settings or GatewaySettings()
        self.is_draining = False
        self._at_work: set[anyio.CancelScope] = set()
        self._idle = anyio.Event()

    def account_of(self, authorization: str | None) -> str:
        """Who pays for a request. Raises ApiError where it may not be made."""
        if self.keys is None:
            return ""
        account = self.keys.account(authorization)
        if account is not None:
            return account
        what = "is not one of this server's" if authorization else "is missing (Authorization: Bearer KEY)"
        raise ApiError(f"the API key {what}", status=401, code="invalid_api_key")

    def check_room(self) -> None:
        """Raises ApiError where a request that wants something generated would not even wait, whatever is in
        it: with a crowd at the door, the cheapest answer is the one that reads no body."""
        model = self.catalogue.only()
        if model is not None and not self.is_draining:
            model.admission.check_queue()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """A request that computes something. Raises ApiError where none is taken any more, or it is cut
        off."""
        if self.is_draining:
            raise unavailable("this server is stopping; ask another one", code="draining")
        with anyio.CancelScope() as scope:
            self._at_work.add(scope)
            try:
                yield
            finally:
                self._at_work.remove(scope)
                if not self._at_work:
                    self._idle.set()
                    self._idle = anyio.Event()
        if scope.cancelled_caught:
            raise unavailable("this server has stopped before the answer was complete", code="stopped")

    @property
    def active(self) -> int:
        """Requests that compute something, or wait to."""
        return len(self._at_work)

    async def drain(self, timeout_s: float) -> bool:
        """Takes no more requests and waits for those that there are. False where some have not ended."""
        self.is_draining = True
        with anyio.move_on_after(timeout_s):
            await self._wait_idle()
        return not self.active

    async def cut_off(self) -> None:
        """Cancels whatever is going on; every stage has given it up then."""
        self.is_draining = True
        for scope in self._at_work:
            scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._wait_idle()

    async def _wait_idle(self) -> None:
        while self._at_work:
            await self._idle.wait()

    # ---- a part of the pages ----

    def status(self) -> dict[str, object]:
        """For JSON."""
        return {
            "active": self.active,
            "draining": self.is_draining,
            **self.figures.status(self.catalogue.open_models()),
        }

    def collect(self) -> Iterator[Metric]:
        """For /metrics."""
        return self.figures.collect(self.catalogue.open_models())


@asynccontextmanager
async def open_gateway(
    catalogue: Catalogue, *, keys: Keys | None = None, settings: GatewaySettings | None = None
) -> AsyncIterator[Gateway]:
    """A gateway, with the process that it renders templates in."""
    async with ChatPrompts() as prompts:
        yield Gateway(catalogue, prompts, keys=keys, settings=settings)
