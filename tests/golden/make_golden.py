"""Writes frames.tsv, the golden frames of docs/protocol.md.

    python tests/golden/make_golden.py

The file is deterministic: run twice, it is the same. Columns, separated by tabs: name, direction
(`to_worker` or `to_host`), verdict (`ok`, `bad_frame` or `bad_message`), the frame in hexadecimal, and the
message as JSON, in which a binary value is {"$bin": "<hexadecimal>"} and a number that JSON has no word for
{"$float": "<as Python reads it>"}. A frame whose body is no valid map has `null` there.

Frames to the host hold the very bytes that the worker writes for the values in them (keys in the order of the
document, shortest integers, float32): the C tests encode the same values and compare.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

MAGIC = b"GW"
VERSION = 1
MAX_FRAME_BYTES = 64 * 1024 * 1024

ARTIFACT = "a1" * 32
SHARD = "b2" * 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Golden:
    """One line of the file."""

    name: str
    direction: str
    verdict: str
    frame: bytes
    message: Any


def frame(body: bytes, *, magic: bytes = MAGIC, version: int = VERSION, flags: int = 0) -> bytes:
    """A header and a body."""
    return magic + struct.pack("<BBI", version, flags, len(body)) + body


def pack(message: Any) -> bytes:
    """The body of a message, floats as float32."""
    body = msgpack.packb(message, use_bin_type=True, use_single_float=True)
    assert isinstance(body, bytes)
    return body


def plain(value: Any) -> Any:
    """The message as JSON has it."""
    if isinstance(value, bytes):
        return {"$bin": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": str(value)}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def good(name: str, direction: str, message: dict[str, Any]) -> Golden:
    """A frame that is right."""
    return Golden(
        name=name, direction=direction, verdict="ok", frame=frame(pack(message)), message=plain(message)
    )


def bad_message(name: str, message: dict[str, Any]) -> Golden:
    """A frame to the worker that holds a map, but no valid request."""
    return Golden(
        name=name,
        direction="to_worker",
        verdict="bad_message",
        frame=frame(pack(message)),
        message=plain(message),
    )


def bad_frame(name: str, data: bytes) -> Golden:
    """Bytes to the worker after which the stream cannot be trusted."""
    return Golden(name=name, direction="to_worker", verdict="bad_frame", frame=data, message=None)


def recipe() -> dict[str, Any]:
    """A recipe with every field."""
    return {
        "n_ctx": 4096,
        "n_batch": 512,
        "n_ubatch": 256,
        "prefill_chunk": 128,
        "n_threads": 3,
        "flash_attn": True,
        "repack": False,
        "kv_unified": True,
        "n_gpu_layers": -1,
        "main_gpu": 1,
        "split_mode": "none",
        "type_k": "f16",
        "type_v": "q8_0",
        "boundary": "f32",
        "rope_scaling": "yarn",
        "rope_freq_base": 10_000.0,
        "rope_freq_scale": 0.25,
        "yarn_ext_factor": 1.0,
        "yarn_attn_factor": 1.5,
        "yarn_beta_fast": 32.0,
        "yarn_beta_slow": -1.0,
        "yarn_orig_ctx": 2048,
    }


def sampling() -> dict[str, Any]:
    """A sampling with every key away from its default."""
    return {
        "temperature": 0.75,
        "seed": 2**32 - 1,
        "top_k": 40,
        "top_p": 0.9375,
        "min_p": 0.0625,
        "typical_p": 0.5,
        "repeat_penalty": 1.25,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repeat_last_n": -1,
        "logit_bias": [[1, -math.inf], [300, 2], [70_000, -0.5]],
        "grammar": 'root ::= "ja" | "nein"',
        "grammar_start": 7,
        "top_logprobs": 64,
    }


def asked_identity() -> dict[str, Any]:
    """An identity as `open` names it."""
    return {"artifact": ARTIFACT, "start": 4, "end": 8, "recipe": recipe()}


def hidden_rows() -> bytes:
    """Two rows of four values."""
    return struct.pack("<8f", 0.0, 1.0, -1.0, 0.5, 2.0, 4.0, -8.0, 0.25)


# ---- requests ------------------------------------------------------------------------------------------


def requests() -> Iterator[Golden]:
    """Every request, with and without its optional keys."""

    def ask(name: str, message: dict[str, Any]) -> Golden:
        return good(name, "to_worker", message)

    yield ask("ping", {"type": "ping", "id": 1})
    yield ask("health", {"type": "health", "id": 2})
    yield ask("cancel", {"type": "cancel", "id": 3, "request": 2})
    yield ask("shutdown", {"type": "shutdown", "id": 4})
    yield ask("inspect", {"type": "inspect", "id": 5, "model": "/models/a.gguf"})
    yield ask(
        "inspect_full",
        {
            "type": "inspect",
            "id": 6,
            "model": "fake:",
            "engine": "fake",
            "cache_dir": "/var/cache/gguf-worker",
        },
    )
    yield ask(
        "slice",
        {"type": "slice", "id": 7, "model": "/models/a.gguf", "output": "/models/b.gguf", "layers": [4, 8]},
    )
    yield ask(
        "slice_full",
        {
            "type": "slice",
            "id": 8,
            "model": "/models/ä.gguf",
            "output": "/models/b.gguf",
            "layers": [0, 8],
            "overwrite": True,
            "cache_dir": None,
        },
    )
    yield ask("load", {"type": "load", "id": 9, "model": "/models/a.gguf", "layers": [0, 0], "recipe": {}})
    yield ask(
        "load_full",
        {
            "type": "load",
            "id": 10,
            "model": "/models/a.gguf",
            "layers": [4, 8],
            "recipe": recipe(),
            "artifact": ARTIFACT,
            "max_sessions": 16,
            "mmap": False,
            "mlock": True,
            "cache_dir": "/var/cache/gguf-worker",
            "memory_available": 2**33,
            "numa": "distribute",
            "n_stages": 3,
        },
    )
    yield ask(
        "estimate", {"type": "estimate", "id": 23, "model": "/models/a.gguf", "layers": [0, 4], "recipe": {}}
    )
    yield ask(
        "estimate_full",
        {
            "type": "estimate",
            "id": 24,
            "model": "/models/a.gguf",
            "layers": [4, 8],
            "recipe": recipe(),
            "artifact": ARTIFACT,
            "max_sessions": 16,
            "mmap": False,
            "mlock": True,
            "cache_dir": None,
            "memory_available": 0,
            "numa": None,
        },
    )
    yield ask("open", {"type": "open", "id": 11, "identity": asked_identity()})
    yield ask(
        "open_sampling",
        {"type": "open", "id": 12, "identity": asked_identity(), "sampling": {"temperature": 0.5}},
    )
    yield ask(
        "open_sampling_full",
        {"type": "open", "id": 25, "identity": asked_identity(), "sampling": sampling(), "fork": None},
    )
    nothing: dict[str, Any] = {"logit_bias": [], "grammar": "", "grammar_start": None}
    yield ask(
        "open_sampling_nothing",
        {"type": "open", "id": 26, "identity": asked_identity(), "sampling": nothing},
    )
    yield ask(
        "open_fork",
        {"type": "open", "id": 27, "identity": asked_identity(), "fork": {"session": 3, "position": 200}},
    )
    yield ask("open_identity_missing", {"type": "open", "id": 13, "identity": {}})
    yield ask(
        "forward_tokens",
        {
            "type": "forward",
            "id": 14,
            "session": 1,
            "position": 0,
            "output": "hidden",
            "tokens": [1, 300, 70000],
        },
    )
    yield ask(
        "forward_hidden",
        {
            "type": "forward",
            "id": 15,
            "session": 2,
            "position": 3,
            "output": "token",
            "hidden": hidden_rows(),
        },
    )
    yield ask(
        "forward_hidden_and_tokens",
        {
            "type": "forward",
            "id": 28,
            "session": 2,
            "position": 3,
            "output": "token",
            "tokens": [1, 2],
            "hidden": hidden_rows(),
        },
    )
    yield ask(
        "forward_after_draw",
        {"type": "forward", "id": 32, "session": 2, "position": 4, "output": "token", "after_draw": True},
    )
    yield ask("trim", {"type": "trim", "id": 16, "session": 1, "position": 2})
    yield ask("close", {"type": "close", "id": 17, "session": 1})
    yield ask("tokenize", {"type": "tokenize", "id": 18, "text": "Hällo"})
    yield ask(
        "tokenize_full",
        {"type": "tokenize", "id": 19, "text": b"\xff\x00 raw", "add_special": False, "parse_special": True},
    )
    yield ask("detokenize", {"type": "detokenize", "id": 20, "tokens": [72, 105]})
    yield ask(
        "detokenize_full",
        {"type": "detokenize", "id": 21, "tokens": [], "remove_special": True, "unparse_special": True},
    )
    yield ask("token_info", {"type": "token_info", "id": 22, "tokens": [0, 1]})
    yield ask(
        "forward_embedding",
        {
            "type": "forward",
            "id": 29,
            "session": 2,
            "position": 0,
            "output": "embedding",
            "hidden": hidden_rows(),
        },
    )
    yield ask("chat_template", {"type": "chat_template", "id": 30})
    yield ask("chat_template_named", {"type": "chat_template", "id": 31, "name": "tool_use"})


def unusual_requests() -> Iterator[Golden]:
    """Frames that are right, at the edge of what the document allows."""

    def nested(levels: int) -> Any:
        value: Any = 0
        for _ in range(levels):
            value = [value]
        return value

    yield good("id_largest", "to_worker", {"type": "ping", "id": 2**64 - 1})
    yield good(
        "unknown_key", "to_worker", {"type": "ping", "id": 1, "colour": {"of": ["the", b"bike", None, -1.5]}}
    )
    yield good("depth_8", "to_worker", {"type": "ping", "id": 1, "deep": nested(7)})
    yield good(
        "keys_64", "to_worker", {"type": "ping", "id": 1, **{f"key_{index}": index for index in range(62)}}
    )
    yield good("text_as_bin", "to_worker", {"type": b"ping", "id": 1})
    wide = b"\x82" + pack("type") + pack("ping") + pack("id") + b"\xd3" + struct.pack(">q", 7)
    yield Golden(
        name="integer_wide",
        direction="to_worker",
        verdict="ok",
        frame=frame(wide),
        message={"type": "ping", "id": 7},
    )


# ---- answers -------------------------------------------------------------------------------------------


def loaded_identity() -> dict[str, Any]:
    """An identity as `loaded` says it."""
    return {**asked_identity(), "shard": SHARD}


def ownership() -> dict[str, Any]:
    """What a middle stage owns."""
    return {
        "layers": [4, 8],
        "owned_layers": 4,
        "tensors": 36,
        "bytes": 5_000_000_000,
        "token_embedding": False,
        "output_head": True,
        "vocabulary": True,
    }


def memory() -> dict[str, Any]:
    """Bytes by kind."""
    return {"weights_bytes": 5_000_000_000, "kv_bytes": 67_108_864, "compute_bytes": 1_048_576}


def capacity() -> dict[str, Any]:
    """What can be asked at once."""
    return {
        "max_sessions": 16,
        "kv_cells": 4096,
        "max_batch": 512,
        "session_cells": 2048,
        "can_trim": True,
    }


def hello() -> dict[str, Any]:
    """The worker's first word."""
    return {
        "type": "hello",
        "protocol_min": 1,
        "protocol_max": 1,
        "max_frame_bytes": MAX_FRAME_BYTES,
        "pid": 4711,
        "worker_version": "0.1.0",
        "engines": ["llama", "fake"],
        "build": {
            "engine": "llama",
            "engine_version": "0.1.0",
            "pinned_package": "0.3.36",
            "pinned_commit": "0c1e57098",
            "library_commit": "0c1e57098",
            "library_version": "0.5.0",
            "devices": [
                {
                    "name": "CPU",
                    "description": "A processor",
                    "kind": "cpu",
                    "memory_total": 8_589_934_592,
                    "memory_free": 4_294_967_296,
                }
            ],
            "features": "CPU : SSE3 = 1 | AVX2 = 1",
        },
    }


def health(**what: Any) -> dict[str, Any]:
    """A health answer with what a test changes."""
    return {
        "type": "health",
        "id": 2,
        "state": "idle",
        "phase": "",
        "phase_done": 0,
        "phase_total": 0,
        "progress": 0,
        "identity": None,
        "ownership": None,
        "memory": None,
        "capacity": None,
        "sessions": 0,
        "kv_cells_used": 0,
        "queued": 0,
        "requests": 0,
        "errors": 0,
        "rows": 0,
        "tokens_sampled": 0,
        "compute_us": 0,
        "rss_bytes": 12_582_912,
        "rss_before_load_bytes": 0,
        "uptime_us": 1500,
        **what,
    }


def result(request: int, output: str, **values: Any) -> dict[str, Any]:
    """A result with the values of its output."""
    return {
        "type": "result",
        "id": request,
        "session": 2,
        "length": 5,
        "kv_cells": 2,
        "output": output,
        "queue_us": 40,
        "compute_us": 60_000,
        "batch_rows": 3,
        **values,
    }


def inspected(**what: Any) -> dict[str, Any]:
    """An artifact of two layers in two files."""
    return {
        "type": "inspected",
        "id": 5,
        "artifact": ARTIFACT,
        "files": [
            {"path": "/models/a-00001-of-00002.gguf", "bytes": 3_000_000_000, "sha256": "c3" * 32},
            {"path": "/models/a-00002-of-00002.gguf", "bytes": 70_000, "sha256": "d4" * 32},
        ],
        "architecture": "llama",
        "model_name": "A model",
        "quantization": "q4_1",
        "n_layer": 2,
        "n_embd": 576,
        "n_vocab": 49_152,
        "n_ctx_train": 8192,
        "n_expert": 0,
        "n_tensors": 21,
        "tensor_bytes": 3_000_060_000,
        "embedding_bytes": 17_694_720,
        "head_bytes": 17_697_024,
        "tied_head": True,
        "layer_bytes": [1_000_000_000, 2_000_000_000],
        "slice": None,
        "supported": True,
        "cut_period": 1,
        "reason": "",
        **what,
    }


def answers() -> Iterator[Golden]:
    """Every message of the worker."""

    def say(name: str, message: dict[str, Any]) -> Golden:
        return good(name, "to_host", message)

    yield say("hello", hello())
    yield say("pong", {"type": "pong", "id": 1})
    yield say("health_idle", health())
    yield say(
        "health_loading", health(state="loading", phase="load", phase_done=10, phase_total=20, progress=3)
    )
    yield say(
        "health_ready",
        health(
            state="ready",
            progress=2**40,
            identity=loaded_identity(),
            ownership=ownership(),
            memory=memory(),
            capacity=capacity(),
            sessions=2,
            kv_cells_used=300,
            queued=1,
            requests=99,
            errors=3,
            rows=1000,
            tokens_sampled=400,
            compute_us=7_000_000,
            rss_before_load_bytes=12_000_000,
        ),
    )
    yield say("cancelled", {"type": "cancelled", "id": 3, "request": 2, "state": "running"})
    yield say(
        "bye",
        {"type": "bye", "id": 4, "sessions": 2, "kv_cells": 300, **memory()},
    )
    yield say(
        "bye_unasked",
        {
            "type": "bye",
            "id": None,
            "sessions": 0,
            "kv_cells": 0,
            "weights_bytes": 0,
            "kv_bytes": 0,
            "compute_bytes": 0,
        },
    )
    yield say("inspected", inspected())
    yield say(
        "inspected_slice",
        inspected(slice=[0, 1], supported=False, cut_period=0, reason="architecture 'x' is not known here"),
    )
    yield say("sliced", {"type": "sliced", "id": 7, "output": "/models/b.gguf", "bytes": 1_000_000_000})
    model = {
        "architecture": "llama",
        "name": "A model",
        "n_layer": 8,
        "n_embd": 576,
        "n_vocab": 49_152,
        "n_ctx_train": 8192,
        "n_embd_out": 576,
        "pooling": "last",
    }
    vocabulary = {
        "n_tokens": 49_152,
        "bos": 1,
        "eos": 2,
        "eot": -1,
        "newline": 198,
        "padding": -1,
        "add_bos": True,
        "add_eos": False,
    }
    loaded = {
        "type": "loaded",
        "id": 9,
        "identity": loaded_identity(),
        "model": model,
        "ownership": ownership(),
        "memory": memory(),
        "capacity": capacity(),
    }
    yield say("loaded", {**loaded, "vocabulary": vocabulary})
    yield say("loaded_without_vocabulary", {**loaded, "vocabulary": None})
    yield say("estimated", {"type": "estimated", "id": 23, "memory": memory()})
    yield say("opened", {"type": "opened", "id": 11, "session": 2, "length": 0, "kv_cells": 0})
    yield say("opened_fork", {"type": "opened", "id": 27, "session": 4, "length": 200, "kv_cells": 200})
    rows = {"rows": 2, "columns": 4}
    halves = hidden_rows()[:16]
    yield say("result_none", result(14, "none"))
    yield say("result_hidden", result(14, "hidden", **rows, dtype="f32", hidden=hidden_rows()))
    yield say("result_hidden_f16", result(14, "hidden", **rows, dtype="f16", hidden=halves))
    yield say("result_hidden_bf16", result(14, "hidden", **rows, dtype="bf16", hidden=halves))
    yield say("result_logits", result(14, "logits", rows=1, columns=4, dtype="f32", logits=halves))
    yield say("result_logits_all", result(14, "logits_all", **rows, dtype="f32", logits=hidden_rows()))
    yield say("result_embedding", result(29, "embedding", **rows, dtype="f32", embedding=hidden_rows()))
    drawn = {"token": 198, "logprob": -0.5, "end_of_generation": False}
    text = b" a\xc3"
    yield say("result_token", result(15, "token", **drawn, text=text))
    top = [
        {"token": 198, "logprob": -0.5, "text": text},
        {"token": 7, "logprob": -1.25, "text": b""},
        {"token": 70_000, "logprob": -math.inf, "text": b"long enough for a header of its own kind"},
    ]
    yield say("result_token_top", result(15, "token", **drawn, top=top, text=text))
    yield say("trimmed", {"type": "trimmed", "id": 16, "session": 2, "length": 2, "kv_cells_freed": 3})
    yield say("closed", {"type": "closed", "id": 17, "session": 2, "kv_cells_freed": 2})
    yield say("tokenized", {"type": "tokenized", "id": 18, "tokens": [1, 300, 70000]})
    yield say("detokenized", {"type": "detokenized", "id": 20, "text": b"Hi\xc3"})
    yield say(
        "token_infos",
        {
            "type": "token_infos",
            "id": 22,
            "tokens": [
                {"attributes": 8, "control": True, "end_of_generation": True},
                {"attributes": 4, "control": False, "end_of_generation": False},
            ],
        },
    )
    yield say("chat_template_text", {"type": "chat_template", "id": 30, "template": b"{{ \xc3\xa4 }}"})
    yield say("chat_template_empty", {"type": "chat_template", "id": 31, "template": b""})
    yield say(
        "progress", {"type": "progress", "id": 9, "phase": "digest", "done": 65_536, "total": 4_294_967_296}
    )
    yield say(
        "error",
        {
            "type": "error",
            "id": 14,
            "code": "position",
            "message": "the session has 2 rows; send position 2",
            "retryable": False,
            "fields": {"expected": "2", "actual": "5"},
        },
    )
    yield say(
        "error_retryable",
        {
            "type": "error",
            "id": 15,
            "code": "busy",
            "message": "256 requests wait",
            "retryable": True,
            "fields": {},
        },
    )
    yield say(
        "error_of_no_request",
        {"type": "error", "id": None, "code": "bad_frame", "message": "no", "retryable": False, "fields": {}},
    )


# ---- what is wrong -------------------------------------------------------------------------------------


def bad_frames() -> Iterator[Golden]:
    """Each row of the first kind in the table of section 2."""
    ping = pack({"type": "ping", "id": 1})
    pair = pack("type") + pack("ping")
    yield bad_frame("magic_wrong", frame(ping, magic=b"GV"))
    yield bad_frame("magic_text", b"GET / HTTP/1.1\r\n\r\n")
    yield bad_frame("version_zero", frame(ping, version=0))
    yield bad_frame("version_unknown", frame(ping, version=2))
    yield bad_frame("flags_set", frame(ping, flags=1))
    yield bad_frame("length_over_limit", MAGIC + struct.pack("<BBI", VERSION, 0, MAX_FRAME_BYTES + 1))
    yield bad_frame("length_largest", MAGIC + struct.pack("<BBI", VERSION, 0, 2**32 - 1))
    yield bad_frame("body_empty", frame(b""))
    yield bad_frame("body_nil", frame(pack(None)))
    yield bad_frame("body_array", frame(pack(["ping", 1])))
    yield bad_frame("body_text", frame(pack("ping")))
    yield bad_frame("body_ends_early", frame(b"\x82" + pair))
    yield bad_frame("body_ends_in_text", frame(b"\x81" + pair[:-1]))
    yield bad_frame("body_ends_in_integer", frame(b"\x81" + pack("id") + b"\xcf\x00\x00"))
    yield bad_frame("bytes_after_map", frame(ping + b"\xc0"))
    yield bad_frame("map_after_map", frame(ping + ping))
    yield bad_frame("byte_never_used", frame(b"\x81" + pack("id") + b"\xc1"))
    yield bad_frame("key_twice", frame(b"\x83" + pair + pack("id") + pack(1) + pair))
    inner = b"\x82" + pack("n_ctx") + pack(256) + pack("n_ctx") + pack(512)
    yield bad_frame("key_twice_inside", frame(b"\x82" + pair + pack("recipe") + inner))
    yield bad_frame("key_integer", frame(b"\x82" + pair + pack(7) + pack(1)))
    yield bad_frame("key_nil", frame(b"\x82" + pair + pack(None) + pack(1)))
    yield bad_frame("keys_65", frame(pack({f"key_{index}": index for index in range(65)})))
    yield bad_frame("keys_many", frame(b"\xdf\xff\xff\xff\xff" + pair))
    yield bad_frame("array_huge", frame(b"\x82" + pair + pack("tokens") + b"\xdd\xff\xff\xff\xff" + b"\x01"))
    yield bad_frame("text_huge", frame(b"\x82" + pair + pack("text") + b"\xdb\xff\xff\xff\xff" + b"x"))
    yield bad_frame("bin_huge", frame(b"\x82" + pair + pack("hidden") + b"\xc6\xff\xff\xff\xff" + b"x"))
    yield bad_frame("depth_9", frame(b"\x82" + pair + pack("deep") + b"\x91" * 8 + b"\x00"))
    yield bad_frame("depth_maps", frame((b"\x81" + pack("a")) * 9 + b"\x00"))
    yield bad_frame("depth_1000", frame(b"\x82" + pair + pack("deep") + b"\x91" * 1000 + b"\x00"))


def wrong_sampling() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each key of a sampling map outside its range or of another type."""
    yield "sampling_unknown", {"temperature": 1.0, "top_secret": 1}
    yield "temperature_infinite", {"temperature": math.inf}
    yield "temperature_nan", {"temperature": math.nan}
    yield "seed_negative", {"seed": -1}
    yield "seed_large", {"seed": 2**32}
    yield "top_k_negative", {"top_k": -1}
    yield "top_k_float", {"top_k": 40.0}
    yield "top_p_zero", {"top_p": 0.0}
    yield "top_p_large", {"top_p": 1.5}
    yield "min_p_negative", {"min_p": -0.25}
    yield "min_p_large", {"min_p": 2}
    yield "typical_p_zero", {"typical_p": 0}
    yield "repeat_penalty_zero", {"repeat_penalty": 0.0}
    yield "presence_penalty_infinite", {"presence_penalty": -math.inf}
    yield "frequency_penalty_flag", {"frequency_penalty": True}
    yield "repeat_last_n_low", {"repeat_last_n": -2}
    yield "logit_bias_map", {"logit_bias": {}}
    yield "logit_bias_flat", {"logit_bias": [1, 0.5]}
    yield "logit_bias_single", {"logit_bias": [[1]]}
    yield "logit_bias_triple", {"logit_bias": [[1, 0.5, 2]]}
    yield "logit_bias_token_float", {"logit_bias": [[1.0, 0.5]]}
    yield "logit_bias_token_large", {"logit_bias": [[2**31, 0.5]]}
    yield "logit_bias_nan", {"logit_bias": [[1, math.nan]]}
    yield "logit_bias_infinite", {"logit_bias": [[1, math.inf]]}
    yield "grammar_array", {"grammar": ["root"]}
    yield "grammar_with_nul", {"grammar": "a\0b"}
    yield "grammar_start_negative", {"grammar_start": -1}
    yield "grammar_start_large", {"grammar_start": 2**32 - 1}
    yield "top_logprobs_large", {"top_logprobs": 65}


def bad_messages() -> Iterator[Golden]:
    """Each row of the second kind, for every kind of key."""
    forward = {"type": "forward", "id": 1, "session": 1, "position": 0, "output": "none"}
    load = {"type": "load", "id": 1, "model": "fake:", "layers": [0, 0], "recipe": {}}
    opening = {"type": "open", "id": 1, "identity": asked_identity()}
    yield bad_message("type_unknown", {"type": "pong", "id": 1})
    yield bad_message("type_missing", {"id": 1})
    yield bad_message("type_integer", {"type": 1, "id": 1})
    yield bad_message("id_missing", {"type": "ping"})
    yield bad_message("id_nil", {"type": "ping", "id": None})
    yield bad_message("id_zero", {"type": "ping", "id": 0})
    yield bad_message("id_negative", {"type": "ping", "id": -1})
    yield bad_message("id_text", {"type": "ping", "id": "1"})
    yield bad_message("id_float", {"type": "ping", "id": 1.0})
    yield bad_message("map_empty", {})
    yield bad_message("cancel_request_missing", {"type": "cancel", "id": 1})
    yield bad_message("inspect_model_missing", {"type": "inspect", "id": 1})
    yield bad_message("inspect_model_nil", {"type": "inspect", "id": 1, "model": None})
    yield bad_message("inspect_model_empty", {"type": "inspect", "id": 1, "model": ""})
    yield bad_message("inspect_model_with_nul", {"type": "inspect", "id": 1, "model": "a\0b"})
    yield bad_message("inspect_model_long", {"type": "inspect", "id": 1, "model": "m" * 4096})
    yield bad_message(
        "slice_layers_three", {"type": "slice", "id": 1, "model": "a", "output": "b", "layers": [1, 2, 3]}
    )
    yield bad_message("slice_output_missing", {"type": "slice", "id": 1, "model": "a", "layers": [1, 2]})
    yield bad_message("load_layers_missing", {key: load[key] for key in load if key != "layers"})
    yield bad_message("load_layers_text", {**load, "layers": ["0", "1"]})
    yield bad_message("load_layers_negative", {**load, "layers": [-1, 1]})
    yield bad_message("load_recipe_missing", {key: load[key] for key in load if key != "recipe"})
    yield bad_message("load_recipe_array", {**load, "recipe": []})
    yield bad_message("load_recipe_wrong", {**load, "recipe": {"n_ctx": "4096"}})
    yield bad_message("load_recipe_large", {**load, "recipe": {"n_batch": 2**32}})
    yield bad_message("load_recipe_flag", {**load, "recipe": {"flash_attn": 1}})
    yield bad_message("load_recipe_unknown", {**load, "recipe": {"n_ctx": 512, "top_secret": 1}})
    unknown = {**asked_identity(), "recipe": {**recipe(), "top_secret": 1}}
    yield bad_message("open_recipe_unknown", {"type": "open", "id": 1, "identity": unknown})
    yield bad_message("load_recipe_text_long", {**load, "recipe": {"type_k": "f" * 64}})
    yield bad_message("load_recipe_float_text", {**load, "recipe": {"rope_freq_base": "10000"}})
    yield bad_message("load_recipe_float_nan", {**load, "recipe": {"rope_freq_base": math.nan}})
    yield bad_message("load_recipe_float_infinite", {**load, "recipe": {"rope_freq_scale": math.inf}})
    yield bad_message("load_recipe_float_for_uint", {**load, "recipe": {"yarn_orig_ctx": 1.0}})
    yield bad_message("load_memory_negative", {**load, "memory_available": -1})
    yield bad_message("load_stages_negative", {**load, "n_stages": -1})
    yield bad_message("load_numa_long", {**load, "numa": "n" * 64})
    yield bad_message(
        "estimate_recipe_missing", {"type": "estimate", "id": 1, "model": "m", "layers": [0, 0]}
    )
    yield bad_message("estimate_recipe_unknown", {**load, "type": "estimate", "recipe": {"top_secret": 1}})
    yield bad_message("load_sessions_zero", {**load, "max_sessions": 0})
    yield bad_message("load_mmap_integer", {**load, "mmap": 1})
    yield bad_message("open_identity_absent", {"type": "open", "id": 1})
    yield bad_message("open_identity_text", {"type": "open", "id": 1, "identity": "all"})
    yield bad_message(
        "open_start_text", {"type": "open", "id": 1, "identity": {**asked_identity(), "start": "4"}}
    )
    yield bad_message("open_temperature_negative", {**opening, "sampling": {"temperature": -0.5}})
    yield bad_message("open_temperature_text", {**opening, "sampling": {"temperature": "hot"}})
    for name, wrong in wrong_sampling():
        yield bad_message(f"open_{name}", {**opening, "sampling": wrong})
    yield bad_message("open_sampling_text", {**opening, "sampling": "greedy"})
    yield bad_message("open_fork_text", {**opening, "fork": "all"})
    yield bad_message("open_fork_empty", {**opening, "fork": {}})
    yield bad_message("open_fork_session_zero", {**opening, "fork": {"session": 0, "position": 1}})
    yield bad_message("open_fork_position_missing", {**opening, "fork": {"session": 1}})
    yield bad_message("open_fork_position_large", {**opening, "fork": {"session": 1, "position": 2**32}})
    yield bad_message("forward_without_rows", forward)
    yield bad_message("forward_after_no_draw", {**forward, "after_draw": False})
    yield bad_message("forward_after_draw_text", {**forward, "after_draw": "yes"})
    yield bad_message("forward_after_draw_and_tokens", {**forward, "after_draw": True, "tokens": [1]})
    yield bad_message(
        "forward_after_draw_and_hidden", {**forward, "after_draw": True, "hidden": hidden_rows()}
    )
    yield bad_message("forward_both_without_tokens", {**forward, "tokens": [], "hidden": hidden_rows()})
    yield bad_message("forward_both_without_hidden", {**forward, "tokens": [1], "hidden": b""})
    yield bad_message("forward_tokens_empty", {**forward, "tokens": []})
    yield bad_message("forward_tokens_text", {**forward, "tokens": "abc"})
    yield bad_message("forward_tokens_float", {**forward, "tokens": [1, 2.5]})
    yield bad_message("forward_tokens_large", {**forward, "tokens": [2**31]})
    yield bad_message("forward_hidden_empty", {**forward, "hidden": b""})
    yield bad_message("forward_hidden_text", {**forward, "hidden": "abcd"})
    yield bad_message("forward_output_unknown", {**forward, "output": "everything", "tokens": [1]})
    yield bad_message("forward_session_zero", {**forward, "session": 0, "tokens": [1]})
    yield bad_message("forward_position_large", {**forward, "position": 2**32, "tokens": [1]})
    yield bad_message("trim_position_missing", {"type": "trim", "id": 1, "session": 1})
    yield bad_message("close_session_text", {"type": "close", "id": 1, "session": "1"})
    yield bad_message("tokenize_text_array", {"type": "tokenize", "id": 1, "text": ["a"]})
    yield bad_message("tokenize_flag_nil", {"type": "tokenize", "id": 1, "text": "a", "add_special": None})
    yield bad_message("detokenize_tokens_missing", {"type": "detokenize", "id": 1})
    yield bad_message("token_info_tokens_map", {"type": "token_info", "id": 1, "tokens": {}})
    yield bad_message("chat_template_name_array", {"type": "chat_template", "id": 1, "name": ["a"]})
    yield bad_message("chat_template_name_long", {"type": "chat_template", "id": 1, "name": "n" * 64})
    yield bad_message("chat_template_name_with_nul", {"type": "chat_template", "id": 1, "name": "a\0b"})


def lines() -> Iterator[str]:
    """The lines of the file."""
    for source in (requests, unusual_requests, answers, bad_frames, bad_messages):
        for golden in source():
            text = json.dumps(golden.message, ensure_ascii=True, separators=(", ", ": "))
            yield "\t".join((golden.name, golden.direction, golden.verdict, golden.frame.hex(), text))


def render() -> str:
    """The whole file."""
    return "\n".join(lines()) + "\n"


def main() -> None:
    """Writes the file beside this one."""
    Path(__file__).with_name("frames.tsv").write_text(render(), encoding="ascii")


if __name__ == "__main__":
    main()
