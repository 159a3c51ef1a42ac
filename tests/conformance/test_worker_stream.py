"""The worker on a bare pipe: what no well-behaved client would do to it."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from typing import IO, Any

import msgpack
import pytest

from gguf_worker.process.executable import find_executable

WAIT_S = 30
BAD_FRAME_STATUS = 76


def frame(message: dict[str, Any]) -> bytes:
    body: bytes = msgpack.packb(message)
    return struct.pack("<2sBBI", b"GW", 1, 0, len(body)) + body


def read_frame(stream: IO[bytes]) -> dict[str, Any]:
    _, _, _, length = struct.unpack("<2sBBI", stream.read(8))
    message = msgpack.unpackb(stream.read(length))
    assert isinstance(message, dict)
    return message


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """A worker with the fake engine that has said hello."""
    command = [str(find_executable(None)), "--engine", "fake"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert read_frame(process.stdout)["type"] == "hello"
        yield process
        process.kill()


def tell(worker: subprocess.Popen[bytes], *messages: dict[str, Any]) -> None:
    assert worker.stdin is not None
    worker.stdin.write(b"".join(map(frame, messages)))
    worker.stdin.flush()


def hear(worker: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert worker.stdout is not None
    while (message := read_frame(worker.stdout))["type"] == "progress":
        pass
    return message


def load(model: str, request_id: int = 5) -> dict[str, Any]:
    return {"type": "load", "id": request_id, "model": model, "layers": [0, 0], "recipe": {}}


def test_invalid_message_with_an_id_in_use_answers_nobody(worker: subprocess.Popen[bytes]) -> None:
    """A message that is not valid cannot resolve the request whose id it names: that one keeps its answer."""
    tell(worker, load("fake:"), {"type": "no such thing", "id": 5})
    answers = [hear(worker), hear(worker)]
    (error,) = [answer for answer in answers if answer["type"] == "error"]
    (loaded,) = [answer for answer in answers if answer["type"] == "loaded"]
    assert loaded["id"] == 5
    assert error["code"] == "bad_message"
    assert error["id"] is None or answers.index(loaded) < answers.index(error)


def test_broken_stream_ends_the_worker_though_nobody_reads(worker: subprocess.Popen[bytes]) -> None:
    """A worker whose answers fill the pipe still ends, with its status, when its input turns to garbage."""
    tell(worker, load("fake:vocab=65536", 1))
    loaded = hear(worker)
    identity = {key: loaded["identity"][key] for key in ("artifact", "start", "end", "recipe")}
    tell(worker, {"type": "open", "id": 2, "identity": identity})
    session = hear(worker)["session"]
    forward = {"type": "forward", "id": 3, "session": session, "position": 0, "tokens": [5] * 60}
    tell(worker, {**forward, "output": "logits_all"})
    assert worker.stdout is not None
    assert worker.stdout.read(1) == b"G", "the answer is on its way and larger than any pipe"
    assert worker.stdin is not None
    worker.stdin.write(b"XX\0\0\0\0\0\0")
    worker.stdin.flush()
    assert worker.wait(timeout=WAIT_S) == BAD_FRAME_STATUS


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-"])
def test_worker_without_standard_streams_ends(closed: str) -> None:
    """Started without an input, a worker takes no other descriptor for it: it ends as at end of file."""
    command = f'exec "$0" --engine fake {closed}'
    process = subprocess.run(
        ["sh", "-c", command, str(find_executable(None))],
        stdout=subprocess.DEVNULL,
        timeout=WAIT_S,
        check=False,
    )
    assert process.returncode == 0
