"""A tiny worker in Python that misbehaves in the way its first argument names.

It speaks the pipe protocol with nothing but msgpack, so that it shares no mistake with the package under
test.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

Map = dict[str, Any]

RECIPE: Map = {
    "n_ctx": 4096,
    "n_batch": 512,
    "n_ubatch": 128,
    "prefill_chunk": 128,
    "n_threads": 1,
    "flash_attn": True,
    "repack": True,
    "kv_unified": True,
    "n_gpu_layers": 0,
    "main_gpu": 0,
    "split_mode": "layer",
    "type_k": "f16",
    "type_v": "f16",
    "boundary": "f32",
    "rope_scaling": "model",
    "rope_freq_base": 0.0,
    "rope_freq_scale": 0.0,
    "yarn_ext_factor": -1.0,
    "yarn_attn_factor": -1.0,
    "yarn_beta_fast": -1.0,
    "yarn_beta_slow": -1.0,
    "yarn_orig_ctx": 0,
}

CAPACITY: Map = {
    "max_sessions": 4,
    "kv_cells": 4096,
    "max_batch": 512,
    "session_cells": 4096,
    "can_trim": True,
}


def hello(**changes: Any) -> Map:
    build = {
        "engine": "misbehaving",
        "engine_version": "1",
        "pinned_package": changes.pop("pinned_package", ""),
        "pinned_commit": "",
        "library_commit": "",
        "library_version": "",
        "devices": [],
    }
    return {
        "type": "hello",
        "protocol_min": 1,
        "protocol_max": 1,
        "max_frame_bytes": 1 << 20,
        "pid": os.getpid(),
        "worker_version": "0",
        "engines": ["misbehaving"],
        "build": build,
        **changes,
    }


def loaded(request: Map, recipe: Map = RECIPE, owned_layers: int = 12) -> Map:
    return {
        "type": "loaded",
        "id": request["id"],
        "identity": {"artifact": "a" * 64, "start": 0, "end": 12, "recipe": recipe, "shard": "b" * 64},
        "model": {
            "architecture": "none",
            "name": "none",
            "n_layer": 12,
            "n_embd": 8,
            "n_vocab": 64,
            "n_ctx_train": 0,
        },
        "ownership": {
            "layers": [0, 12],
            "owned_layers": owned_layers,
            "tensors": 1,
            "bytes": 1,
            "token_embedding": True,
            "output_head": True,
            "vocabulary": False,
        },
        "memory": {"weights_bytes": 1, "kv_bytes": 1, "compute_bytes": 1},
        "capacity": CAPACITY,
        "vocabulary": None,
    }


def frame(message: Map, version: int = 1) -> bytes:
    body: bytes = msgpack.packb(message)
    return struct.pack("<2sBBI", b"GW", version, 0, len(body)) + body


def write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def send(message: Map) -> None:
    write(frame(message))


def requests() -> Iterator[Map]:
    """The host's requests, until its end of file."""
    while header := read_exactly(8):
        yield msgpack.unpackb(read_exactly(struct.unpack("<4xI", header)[0]))


def read_exactly(count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            return b""
        data += piece
    return data


def serve(answer: Callable[[Map], None] | None = None, *, heeds_shutdown: bool = True) -> None:
    """Says hello, loads, and leaves every other request to `answer`."""
    send(hello())
    for request in requests():
        if request["type"] == "load":
            send(loaded(request))
        elif request["type"] == "shutdown" and heeds_shutdown:
            return
        elif answer is not None:
            answer(request)


def linger() -> None:
    """Lives on until it is killed."""
    while True:
        time.sleep(3600)


def grandchild_that_holds_the_pipes() -> None:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])


# ---- the behaviours -----------------------------------------------------------------------------


def silent_start() -> None:
    linger()


def exits_at_once() -> None:
    print("cannot go on", file=sys.stderr, flush=True)
    sys.exit(5)


def half_frame_then_exit() -> None:
    write(frame(hello())[:20])
    sys.exit(3)


def half_frame_then_silence() -> None:
    write(frame(hello())[:20])
    os.close(1)
    linger()


def huge_length() -> None:
    write(struct.pack("<2sBBI", b"GW", 1, 0, 0xFFFFFFFF))
    linger()


def garbage() -> None:
    write(b"Welcome to the worker!\n")
    linger()


def other_versions() -> None:
    write(frame(hello(protocol_min=7, protocol_max=9), version=7))
    linger()


def hello_twice() -> None:
    send(hello())
    send(hello())
    linger()


def refuses() -> None:
    fields = {"field": "library_commit", "expected": "aaa", "actual": "bbb"}
    message = "the library is bbb, not aaa: reinstall it"
    send(
        {
            "type": "error",
            "id": None,
            "code": "identity",
            "message": message,
            "retryable": False,
            "fields": fields,
        }
    )
    sys.exit(78)


def other_pin() -> None:
    send(hello(pinned_package="0.0.1"))
    for request in requests():
        if request["type"] == "shutdown":
            return


def attests_another_recipe() -> None:
    send(hello())
    for request in requests():
        if request["type"] == "load":
            send(loaded(request, recipe={**RECIPE, "n_ctx": 8192, "type_k": "q8_0"}))
        elif request["type"] == "shutdown":
            return


def attests_fewer_layers() -> None:
    send(hello())
    for request in requests():
        if request["type"] == "load":
            send(loaded(request, owned_layers=11))
        elif request["type"] == "shutdown":
            return


def good() -> None:
    serve()


def ignores_shutdown() -> None:
    serve(heeds_shutdown=False)


def ignores_shutdown_and_end_of_file() -> None:
    serve(heeds_shutdown=False)
    linger()


def ignores_all_but_kill() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    serve(heeds_shutdown=False)
    linger()


def stops_itself() -> None:
    serve(lambda _: os.kill(os.getpid(), signal.SIGSTOP))


def answers_nothing() -> None:
    serve(lambda _: None)


def answers_twice() -> None:
    def answer(request: Map) -> None:
        send({"type": "pong", "id": request["id"]})
        send({"type": "pong", "id": request["id"]})

    serve(answer)


def answers_another_question() -> None:
    serve(lambda request: send({"type": "closed", "id": request["id"], "session": 1, "kv_cells_freed": 0}))


def answers_without_a_key() -> None:
    serve(lambda request: send({"type": "closed", "id": request["id"], "session": 1}))


def exits_0_in_mid_request() -> None:
    serve(lambda _: os._exit(0))


def exits_3_in_mid_answer() -> None:
    def answer(request: Map) -> None:
        write(frame({"type": "pong", "id": request["id"]})[:11])
        os._exit(3)

    serve(answer)


def answers_then_dies() -> None:
    def answer(request: Map) -> None:
        send({"type": "pong", "id": request["id"]})
        os.kill(os.getpid(), signal.SIGKILL)

    serve(answer)


def closes_stdin() -> None:
    send(hello())
    for request in requests():
        if request["type"] == "load":
            send(loaded(request))
            os.close(0)
            linger()


def closes_stdout_then_exits() -> None:
    send(hello())
    for request in requests():
        if request["type"] == "load":
            send(loaded(request))
            os.close(1)
            time.sleep(0.3)
            os._exit(3)


def floods_stderr_then_crashes() -> None:
    def answer(_: Map) -> None:
        os.write(2, b"".join(b"line %d\n" % i for i in range(200_000)))
        os.write(2, b"last words")
        os.kill(os.getpid(), signal.SIGSEGV)

    serve(answer)


def dies_but_its_grandchild_holds_the_pipes() -> None:
    grandchild_that_holds_the_pipes()
    serve(lambda _: os._exit(4))


def stops_but_its_grandchild_holds_the_pipes() -> None:
    grandchild_that_holds_the_pipes()
    serve()


def loads_without_progress() -> None:
    send(hello())
    for request in requests():
        if request["type"] == "load":
            send({"type": "progress", "id": request["id"], "phase": "load", "done": 5, "total": 10})


def loads_then_exits() -> None:
    send(hello())
    for request in requests():
        send({"type": "progress", "id": request["id"], "phase": "load", "done": 1, "total": 1})
        time.sleep(0.05)
        send(loaded(request))
        os._exit(3)


def loads_slowly() -> None:
    """One byte at a time, each well within the stall deadline, all together well over it."""
    send(hello())
    for request in requests():
        if request["type"] == "load":
            for done in range(20):
                send({"type": "progress", "id": request["id"], "phase": "load", "done": done, "total": 20})
                time.sleep(0.05)
            send(loaded(request))
        elif request["type"] == "shutdown":
            return


def leaves_shared_memory() -> None:
    with open(f"/dev/shm/{os.environ['SHM_NAME']}", "wb"):  # noqa: PTH123 - held until the end
        serve()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
