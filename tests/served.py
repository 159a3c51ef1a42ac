"""`gguf-worker serve` in a process of its own, with the test as its service manager."""

from __future__ import annotations

import http.client
import json
import queue
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commandline import CommandLine

TIMEOUT_S = 60.0
MODEL = "fake:layers=12,embd=8,vocab=256"


@dataclass(slots=True)
class Served:
    """A running service: its notifications, its log, its pages."""

    process: subprocess.Popen[str]
    notifications: socket.socket
    log: list[dict[str, Any]] = field(default_factory=list)
    _lines: queue.Queue[str | None] = field(default_factory=queue.Queue)
    _told: list[str] = field(default_factory=list)

    # ---- what it says ----

    def wait_notified(self, text: str) -> list[str]:
        """The lines of the next notification that has a line which begins with `text`."""
        while True:
            lines = self.notifications.recv(4096).decode().splitlines()
            self._told += lines
            if any(line.startswith(text) for line in lines):
                return lines

    @property
    def told(self) -> list[str]:
        """All lines of notifications so far."""
        return self._told

    def wait_logged(self, event: str) -> dict[str, Any]:
        """The next line of the log with this event."""
        while (line := self._lines.get(timeout=TIMEOUT_S)) is not None:
            self.log.append(json.loads(line))
            if self.log[-1]["event"] == event:
                return self.log[-1]
        raise EOFError(f"the log ended without {event}: {self.log}")

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Every line with this event; to be called when the process has ended."""
        while (line := self._lines.get(timeout=TIMEOUT_S)) is not None:
            self.log.append(json.loads(line))
        self._lines.put(None)
        return [line for line in self.log if line["event"] == event]

    # ---- what is asked of it ----

    def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
        """Status, headers and text of a page."""
        connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()
        finally:
            connection.close()

    @property
    def address(self) -> tuple[str, int]:
        listening = [line for line in self.log if line["event"] == "http_listening"]
        found = listening[0] if listening else self.wait_logged("http_listening")
        host, _, port = found["address"].rpartition(":")
        return host, int(port)

    def status(self) -> Any:
        return json.loads(self.get("/v1/status")[2])

    def pids(self) -> list[int]:
        return [worker["pid"] for worker in self.status()["workers"]]

    # ---- its end ----

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit status."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)


@contextmanager
def serving(
    gguf_worker: CommandLine,
    *arguments: str,
    model: str = MODEL,
    engine: str = "fake",
    **environment: str,
) -> Iterator[Served]:
    """Serves a model, of the fake engine by default; at the end it must have ended, with nothing left."""
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified,
    ):
        place = str(Path(folder) / "notify")  # a path of a socket has to be short
        notified.bind(place)
        notified.settimeout(TIMEOUT_S)
        command = gguf_worker.command("serve", model, "--engine", engine, *arguments)
        process = subprocess.Popen(
            command,
            env={**gguf_worker.environment, "NOTIFY_SOCKET": place, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        served = Served(process, notified)
        reader = threading.Thread(target=served.read_log)
        reader.start()
        try:
            yield served
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(TIMEOUT_S)
            reader.join(TIMEOUT_S)
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                stream.close()
        assert gguf_worker.workers() == []
