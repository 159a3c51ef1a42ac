"""The end of a client: asks nodes for links."""

from __future__ import annotations

import time
from contextlib import suppress

import anyio
from nats import errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from gguf_worker.node.nats import Nats
from gguf_worker.node.relay.ending import Ending
from gguf_worker.node.relay.handshake import Answer, Question
from gguf_worker.node.relay.link import Link, LinkLimits, LinkTimers
from gguf_worker.node.relay.listener import limits_with
from gguf_worker.node.relay.subjects import (
    connect_subject,
    down_subject,
    is_name,
    new_connection,
    up_subject,
)
from gguf_worker.node.relay.transport import RelayTransport
from gguf_worker.node.transport import TransportClosed

EARLY_MESSAGES = 256
"""What a node may send before its answer is read; more is lost, and sent again."""


class RelayDialer:
    """Implements Dialer; an address is a node's name on the relay."""

    def __init__(
        self,
        nats: Nats,
        *,
        token: str = "",
        limits: LinkLimits | None = None,
        timers: LinkTimers | None = None,
    ) -> None:
        self._nats = nats
        self._token = token
        self._limits = limits or LinkLimits()
        self._share = self._limits.new_share()
        self._timers = timers or LinkTimers()

    async def connect(self, address: str, *, timeout_s: float) -> RelayTransport:
        """A link to the node of this name, at once refused where NATS knows of none."""
        if not is_name(address):
            raise _unreachable(f"{address!r} is no relay name")
        with anyio.move_on_after(timeout_s):
            await self._nats.wait_connected()
            return await self._connect(address, timeout_s)
        if not self._nats.is_connected:
            raise _unreachable(f"there is no connection to the relay {self._nats.url}", retryable=True)
        raise _unreachable(f"node {address} does not answer on the relay {self._nats.url}", retryable=True)

    async def _connect(self, name: str, timeout_s: float) -> RelayTransport:
        connection = new_connection()
        early = _Early()
        subscription = await self._subscribe(down_subject(name, connection), early)
        try:
            answer = await self._ask(name, connection, timeout_s)
            transport = self._transport(name, connection, answer, subscription)
        except BaseException:
            await _unsubscribe(subscription)
            raise
        transport.start()
        try:
            await early.pass_on_to(transport)
        except BaseException:
            await transport.aclose()
            raise
        return transport

    async def _subscribe(self, subject: str, early: _Early) -> Subscription:
        try:
            return await self._nats.client.subscribe(subject, cb=early.on_message)
        except errors.Error as error:
            raise _unreachable(f"the relay {self._nats.url} takes no subscription: {error}") from error

    async def _ask(self, name: str, connection: str, timeout_s: float) -> Answer:
        question = Question(
            connection=connection,
            token=self._token,
            window_bytes=self._limits.first_window,
            max_frame_bytes=self._limits.max_frame_bytes,
        )
        try:
            message = await self._nats.client.request(
                connect_subject(name), question.to_json(), timeout=timeout_s
            )
            answer = Answer.from_json(message.data)
        except errors.NoRespondersError as error:
            raise _unreachable(f"no node is called {name} on the relay {self._nats.url}") from error
        except (errors.Error, ValueError) as error:
            raise _unreachable(
                f"node {name} gives no answer on the relay: {error}", retryable=True
            ) from error
        if answer.refusal is not None:
            raise answer.refusal.error()
        return answer

    def _transport(
        self, name: str, connection: str, answer: Answer, subscription: Subscription
    ) -> RelayTransport:
        limits = limits_with(self._limits, answer.max_frame_bytes)
        link = Link(
            epoch=answer.epoch,
            peer_window=answer.window_bytes,
            limits=limits,
            share=self._share,
            timers=self._timers,
            now=time.monotonic(),
        )
        self._share.links += 1

        async def forget() -> None:
            self._share.links -= 1
            await _unsubscribe(subscription)

        return RelayTransport(
            self._nats,
            link,
            sends_to=up_subject(name, connection),
            receives_from=down_subject(name, connection),
            peer=f"relay:{name}",
            limits=limits,
            when_closed=forget,
        )


class _Early:
    """Messages that came before there was a link for them."""

    def __init__(self) -> None:
        self._messages: list[Msg] = []
        self._transport: RelayTransport | None = None

    async def on_message(self, message: Msg) -> None:
        """The callback of the subscription, for all its life."""
        if self._transport is not None:
            await self._transport.deliver(message)
        elif len(self._messages) < EARLY_MESSAGES:
            self._messages.append(message)

    async def pass_on_to(self, transport: RelayTransport) -> None:
        """From now on they go to the link."""
        self._transport = transport
        for message in self._messages:
            await transport.deliver(message)
        self._messages.clear()


async def _unsubscribe(subscription: Subscription) -> None:
    with anyio.move_on_after(1.0, shield=True), suppress(errors.Error):
        await subscription.unsubscribe()


def _unreachable(message: str, *, retryable: bool = False) -> TransportClosed:
    return Ending(code="unreachable", message=message, retryable=retryable).error()
