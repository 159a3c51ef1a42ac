"""The end of a node: takes links and has each served."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

import anyio
from anyio.abc import TaskGroup
from nats import errors
from nats.aio.msg import Msg

from gguf_worker._tasks import plain_task_group
from gguf_worker.errors import GgufWorkerError
from gguf_worker.logs import log_event
from gguf_worker.node.nats import Nats, nats_errors
from gguf_worker.node.relay.chunk import VERSION, Chunk, Kind, decode, encode
from gguf_worker.node.relay.ending import Ending
from gguf_worker.node.relay.handshake import Answer, Question
from gguf_worker.node.relay.link import Link, LinkLimits, LinkTimers
from gguf_worker.node.relay.subjects import connect_subject, down_subject, is_name, up_subject
from gguf_worker.node.relay.transport import RelayTransport, is_no_responders
from gguf_worker.node.transport import Transport
from gguf_worker.work import new_id

logger = logging.getLogger(__name__)

ASK_S = 1.0
"""How long somebody who has the name may take to say so."""
DEFAULT_MAX_LINKS = 1024

Authenticate = Callable[[str], str | None]
"""The account of a token; None where it is none."""


class RelayNameError(GgufWorkerError):
    """Raised when a node cannot have a name on the relay: `name_taken`, or `name` where it is none."""

    default_code = "name_taken"


class Service(Protocol):
    """Whatever serves streams."""

    async def serve(self, transport: Transport, *, account: str = "") -> None:
        """Runs one stream to its end."""


class RelayListener:
    """A node's name on the relay."""

    def __init__(
        self,
        nats: Nats,
        name: str,
        service: Service,
        *,
        instance: str,
        authenticate: Authenticate | None,
        max_links: int,
        limits: LinkLimits,
        timers: LinkTimers,
    ) -> None:
        self._nats = nats
        self._service = service
        self._authenticate = authenticate
        self._max_links = max_links
        self._limits = limits
        self._share = limits.new_share()
        self._timers = timers
        self._links: dict[str, RelayTransport] = {}
        self.name = name
        self.instance = instance

    @property
    def links(self) -> int:
        """Links that are open now."""
        return len(self._links)

    async def on_question(self, tasks: TaskGroup, message: Msg) -> None:
        """Somebody asks for a link, or who has this name."""
        answer = self._answer(tasks, message.data)
        if answer.refusal is not None:
            log_event(
                logger,
                logging.WARNING,
                "relay_link_refused",
                f"relay {self.name}: refused a link: {answer.refusal.message}",
                node=self.name,
                code=answer.refusal.code,
            )
        with suppress(errors.Error):  # nobody waits for the answer, or there is no connection any more
            await message.respond(answer.to_json())

    def _answer(self, tasks: TaskGroup, data: bytes) -> Answer:
        try:
            question = Question.from_json(data)
        except ValueError as error:
            return _refusal("unreachable", f"this is no question for a link: {error}")
        if question.version != VERSION:
            return _refusal(
                "version",
                f"relay version {question.version} is not spoken here, but {VERSION}; use the same release",
                expected=str(VERSION),
                actual=str(question.version),
            )
        if not question.connection:
            return Answer(instance=self.instance)
        account = "" if self._authenticate is None else self._authenticate(question.token)
        if account is None:
            return _refusal("unauthenticated", f"node {self.name} does not know this token; check it")
        if question.connection in self._links or len(self._links) >= self._max_links:
            return _refusal(
                "unreachable",
                f"node {self.name} has {len(self._links)} of {self._max_links} links; try again later",
                retryable=True,
                reason="capacity",
            )
        return self._accept(tasks, question, account)

    def _accept(self, tasks: TaskGroup, question: Question, account: str) -> Answer:
        epoch = secrets.randbits(64)
        limits = limits_with(self._limits, question.max_frame_bytes)
        link = Link(
            epoch=epoch,
            peer_window=question.window_bytes,
            limits=limits,
            share=self._share,
            timers=self._timers,
            now=time.monotonic(),
        )
        self._share.links += 1

        async def forget() -> None:
            del self._links[question.connection]
            self._share.links -= 1

        transport = RelayTransport(
            self._nats,
            link,
            sends_to=down_subject(self.name, question.connection),
            receives_from=up_subject(self.name, question.connection),
            peer=f"relay:{question.connection[:8]}",
            limits=limits,
            when_closed=forget,
        )
        transport.start()
        self._links[question.connection] = transport
        tasks.start_soon(self._serve, transport, account)
        return Answer(
            instance=self.instance,
            epoch=epoch,
            window_bytes=limits.first_window,
            max_frame_bytes=limits.max_frame_bytes,
        )

    async def _serve(self, transport: RelayTransport, account: str) -> None:
        try:
            await self._service.serve(transport, account=account)
        except Exception:
            logger.exception("relay %s: serving %s failed", self.name, transport.peer)
        finally:
            await transport.aclose()

    async def on_message(self, message: Msg) -> None:
        """Something on any link of this name."""
        connection = message.subject.split(".")[-2]
        transport = self._links.get(connection)
        if transport is not None:
            await transport.deliver(message)
        elif not is_no_responders(message):
            await self._disown(connection, message.data)

    async def _disown(self, connection: str, data: bytes) -> None:
        """Tells whoever believes in a link that there is none: this node was started anew."""
        chunk = decode(data)
        if chunk is not None and chunk.kind is not Kind.RESET:
            with suppress(errors.Error):
                reset = encode(Chunk(kind=Kind.RESET, epoch=chunk.epoch))
                await self._nats.client.publish(down_subject(self.name, connection), reset)


@asynccontextmanager
async def relay_listener(
    nats: Nats,
    name: str,
    service: Service,
    *,
    instance: str = "",
    authenticate: Authenticate | None = None,
    max_links: int = DEFAULT_MAX_LINKS,
    limits: LinkLimits | None = None,
    timers: LinkTimers | None = None,
) -> AsyncIterator[RelayListener]:
    """Has every stream that clients open to this name served, while it is open. Without `authenticate` every
    client is welcome, with no account. Raises RelayNameError where another node has the name, and NatsError.
    """
    if not is_name(name):
        raise RelayNameError(
            f"{name!r} is no relay name (63 letters, digits, _ and - at most, a letter or digit first)",
            code="name",
        )
    await _check_free(nats, name)
    listener = RelayListener(
        nats,
        name,
        service,
        instance=instance or new_id(),
        authenticate=authenticate,
        max_links=max_links,
        limits=limits or LinkLimits(),
        timers=timers or LinkTimers(),
    )
    async with (
        _subscribed(nats, up_subject(name), listener.on_message),
        plain_task_group() as tasks,
    ):
        async with _subscribed(nats, connect_subject(name), partial(listener.on_question, tasks)):
            await nats.flush(ASK_S)
            log_event(logger, logging.INFO, "relay_listening", f"relay {name}: listening", node=name)
            yield listener
        tasks.cancel_scope.cancel()  # the links say so to their clients, who are heard until then


def limits_with(limits: LinkLimits, peer_frame_bytes: int) -> LinkLimits:
    """What both ends of a link take."""
    return replace(
        limits, max_frame_bytes=min(limits.max_frame_bytes, peer_frame_bytes or limits.max_frame_bytes)
    )


@asynccontextmanager
async def _subscribed(
    nats: Nats, subject: str, callback: Callable[[Msg], Awaitable[None]]
) -> AsyncIterator[None]:
    with nats_errors(f"cannot subscribe to {subject}"):
        subscription = await nats.client.subscribe(subject, cb=callback)
    try:
        yield
    finally:
        with anyio.move_on_after(ASK_S, shield=True), suppress(errors.Error):
            await subscription.unsubscribe()


async def _check_free(nats: Nats, name: str) -> None:
    """Somebody who has the name and does not answer is taken for dead: NATS learns late of a machine that
    lost its power."""
    question = Question().to_json()
    with (
        nats_errors(f"relay {name}: cannot ask who has this name"),
        suppress(errors.NoRespondersError, errors.TimeoutError, ValueError),
    ):
        answer = await nats.client.request(connect_subject(name), question, timeout=ASK_S)
        raise RelayNameError(
            f"another node is called {name} on this relay; give one of them another name",
            fields={"name": name, "instance": Answer.from_json(answer.data).instance},
        )


def _refusal(code: str, message: str, *, retryable: bool = False, **fields: str) -> Answer:
    return Answer(refusal=Ending(code=code, message=message, retryable=retryable, fields=fields))
