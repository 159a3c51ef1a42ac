"""llama.cpp through its own calls, in a process of its own; `library.py` speaks with it.

Run as a program with a JSON object of Settings. It prints the port that it listens on, and answers one line
of JSON with another on the one connection that it takes. Between two of them it sleeps.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp as llama
import numpy as np

ALL_LAYERS = 1 << 20
_PLACED = re.compile(r"layer\s+(\d+) assigned to device ([^,\s]+)")
_ERROR = 4  # GGML_LOG_LEVEL_ERROR


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What it is told at its start."""

    model: str
    threads: int
    n_ctx: int
    n_batch: int
    n_ubatch: int
    max_sessions: int
    flash_attn: bool
    rpc: tuple[str, ...]
    """Addresses of RPC servers, which then hold all layers in equal parts."""


class Engine:
    """A loaded model with a context. Raises OSError where llama.cpp cannot, or puts a layer elsewhere."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._log = Log()
        llama.llama_backend_init()
        self._devices = add_rpc_devices(settings.rpc)
        began = time.perf_counter()
        self._model = self._load()
        self._context = self._create_context()
        self.load_s = time.perf_counter() - began
        self.layers = self._log.placed
        self._log.errors_only()
        self._check_places()
        vocabulary = llama.llama_model_get_vocab(self._model)
        self._n_vocab = int(llama.llama_vocab_n_tokens(vocabulary))
        self._batch = llama.llama_batch_init(settings.n_batch, 0, 1)

    def _load(self) -> Any:
        parameters = llama.llama_model_default_params()
        parameters.n_gpu_layers = ALL_LAYERS if self._settings.rpc else 0
        # Without this they would be divided by the free memory of each server, which changes as they load.
        shares = (ctypes.c_float * llama.llama_max_devices())(*([1.0] * len(self._settings.rpc)))
        if self._settings.rpc:
            parameters.tensor_split = shares
        model = llama.llama_model_load_from_file(os.fsencode(self._settings.model), parameters)
        if not model:
            raise OSError(f"llama.cpp cannot load the model: {self._log.last_error}")
        return model

    def _create_context(self) -> Any:
        settings = self._settings
        parameters = llama.llama_context_default_params()
        parameters.n_ctx = settings.n_ctx
        parameters.n_batch = settings.n_batch
        parameters.n_ubatch = settings.n_ubatch
        parameters.n_seq_max = settings.max_sessions
        parameters.kv_unified = True
        parameters.flash_attn_type = int(settings.flash_attn)
        parameters.n_threads = parameters.n_threads_batch = settings.threads
        context = llama.llama_init_from_model(self._model, parameters)
        if not context:
            raise OSError(f"llama.cpp cannot make a context: {self._log.last_error}")
        return context

    def _check_places(self) -> None:
        """No layer may be computed here, and every server must have some."""
        if self._settings.rpc and set(self.layers) != set(self._devices):
            raise OSError(f"the layers went to {dict(self.layers)}, not to {self._devices}")

    # ---- what is measured -----------------------------------------------------------------------

    def decode(self, prompt: Sequence[int], n_tokens: int) -> dict[str, Any]:
        """Greedy: the first token comes from the prefill, then `n_tokens` more."""
        self._clear()
        began = time.perf_counter()
        self._feed(0, 0, prompt)
        tokens = [self._most_likely()]
        first = time.perf_counter()
        for position in range(len(prompt), len(prompt) + n_tokens):
            self._step([0], [position], tokens[-1:])
            tokens.append(self._most_likely())
        return {"tokens": tokens, "first_s": first - began, "rest_s": time.perf_counter() - first}

    def prefill(self, tokens: Sequence[int]) -> dict[str, Any]:
        """Seconds until the logits of the last row are there."""
        self._clear()
        began = time.perf_counter()
        self._feed(0, 0, tokens)
        self._most_likely()
        return {"seconds": time.perf_counter() - began}

    def sessions(self, prompts: Sequence[Sequence[int]], n_tokens: int) -> dict[str, Any]:
        """All prompts one after the other, then every decode step of all in one batch."""
        self._clear()
        began = time.perf_counter()
        drawn: list[list[int]] = []
        for session, prompt in enumerate(prompts):
            self._feed(session, 0, prompt)
            drawn.append([self._most_likely()])
        decode_began = time.perf_counter()
        sessions = range(len(prompts))
        for step in range(n_tokens):
            positions = [len(prompt) + step for prompt in prompts]
            self._step(sessions, positions, [tokens[-1] for tokens in drawn])
            for session in sessions:
                drawn[session].append(self._most_likely(session))
        ended = time.perf_counter()
        return {"tokens": drawn, "seconds": ended - began, "decode_s": ended - decode_began}

    def _feed(self, session: int, position: int, tokens: Sequence[int]) -> None:
        """Rows of one session in pieces of n_batch; logits of the last one."""
        size = self._settings.n_batch
        for start in range(0, len(tokens), size):
            piece = tokens[start : start + size]
            positions = range(position + start, position + start + len(piece))
            self._fill([session] * len(piece), positions, piece)
            self._batch.logits[len(piece) - 1] = int(start + len(piece) == len(tokens))
            self._compute()

    def _step(self, sessions: Sequence[int], positions: Sequence[int], tokens: Sequence[int]) -> None:
        """One row of each session, with logits."""
        self._fill(sessions, positions, tokens)
        for row in range(len(tokens)):
            self._batch.logits[row] = 1
        self._compute()

    def _fill(self, sessions: Sequence[int], positions: Sequence[int], tokens: Sequence[int]) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for row, (session, position, token) in enumerate(zip(sessions, positions, tokens, strict=True)):
            batch.token[row] = token
            batch.pos[row] = position
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = session
            batch.logits[row] = 0

    def _compute(self) -> None:
        status = llama.llama_decode(self._context, self._batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}: {self._log.last_error}")

    def _most_likely(self, row: int = -1) -> int:
        """The id of the row's largest logit; quicker than llama.cpp's own greedy sampler, which fills an
        array of candidates first."""
        logits = llama.llama_get_logits_ith(self._context, row)
        return int(np.ctypeslib.as_array(logits, (self._n_vocab,)).argmax())

    def _clear(self) -> None:
        llama.llama_memory_clear(llama.llama_get_memory(self._context), False)


class Log:
    """What llama.cpp says: on which device each layer is, and its last error."""

    def __init__(self) -> None:
        self._device_of: dict[int, str] = {}
        self.last_error = ""
        self._callback = llama.llama_log_callback(self._take)  # kept: the library has a bare pointer
        llama.llama_log_set(self._callback, None)

    @property
    def placed(self) -> Counter[str]:
        """How many layers each device has; the head counts as one."""
        return Counter(self._device_of.values())

    def errors_only(self) -> None:
        """A callback into Python for each line of each step would be timed too."""
        self._callback = llama.llama_log_callback(self._take_error)
        llama.llama_log_set(self._callback, None)

    def _take(self, level: int, text: bytes, user_data: object) -> None:
        found = _PLACED.search(text.decode(errors="replace"))
        if found:
            self._device_of[int(found[1])] = found[2]
        self._take_error(level, text, user_data)

    def _take_error(self, level: int, text: bytes, _: object) -> None:
        if level == _ERROR:
            self.last_error = text.decode(errors="replace").strip()


def add_rpc_devices(addresses: Sequence[str]) -> list[str]:
    """Makes each server's devices known to llama.cpp, as its programs do for `--rpc`. Returns their names."""
    if not addresses:
        return []
    folder = Path(os.environ["LLAMA_CPP_LIB_PATH"])
    ggml = ctypes.CDLL(str(folder / "libggml.so"))
    rpc = ctypes.CDLL(str(folder / "libggml-rpc.so"))
    rpc.ggml_backend_rpc_add_server.restype = ctypes.c_void_p
    rpc.ggml_backend_rpc_add_server.argtypes = [ctypes.c_char_p]
    ggml.ggml_backend_register.argtypes = [ctypes.c_void_p]
    ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
    ggml.ggml_backend_dev_get.restype = ctypes.c_void_p
    ggml.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    ggml.ggml_backend_dev_name.restype = ctypes.c_char_p
    ggml.ggml_backend_dev_name.argtypes = [ctypes.c_void_p]
    before = ggml.ggml_backend_dev_count()
    for address in addresses:
        server = rpc.ggml_backend_rpc_add_server(address.encode())
        if not server:
            raise OSError(f"no RPC server answers at {address}")
        ggml.ggml_backend_register(server)
    devices = [ggml.ggml_backend_dev_get(n) for n in range(before, ggml.ggml_backend_dev_count())]
    return [ggml.ggml_backend_dev_name(device).decode() for device in devices]


def memory() -> dict[str, int]:
    """Bytes of this process as the kernel counts them: `rss`, `pss`, `private` (clean and dirty),
    `anonymous`. Empty where there is no such file."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return {}
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return {
        "rss": 1024 * kib["Rss"],
        "pss": 1024 * kib["Pss"],
        "private": 1024 * (kib["Private_Clean"] + kib["Private_Dirty"]),
        "anonymous": 1024 * kib["Anonymous"],
    }


def serve(settings: Settings) -> None:
    """Listens, loads when it is told to, and answers until the connection ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        print("listening", server.getsockname()[1], flush=True)
        connection, _ = server.accept()
    with connection, connection.makefile("rwb") as stream:
        empty = memory()
        engine = Engine(settings)
        loaded = memory()
        ready = {"load_s": engine.load_s, "layers": dict(engine.layers)}
        calls: dict[str, Callable[..., dict[str, Any]]] = {
            "ready": lambda: ready,
            "decode": engine.decode,
            "prefill": engine.prefill,
            "sessions": engine.sessions,
            "memory": lambda: {"empty": empty, "loaded": loaded, "now": memory()},
        }
        for line in stream:
            question = json.loads(line)
            answer = calls[question.pop("call")](**question)
            stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()


if __name__ == "__main__":
    told = json.loads(sys.argv[1])
    serve(Settings(**{**told, "rpc": tuple(told["rpc"])}))
