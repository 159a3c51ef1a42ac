"""The unsplit model in this very process, through llama.cpp's own calls: what every chain must equal.

Nothing of gguf-worker is used here, so that the two can only agree by computing the same.

    with Reference(path) as reference:
        run = reference.greedy(tokens, steps=64)
        run.prefill       # logits of every prompt position, float32 bytes
        run.decode[k]     # logits after the k-th generated token
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import llama_cpp as llama
import numpy as np
from gguf import GGMLQuantizationType

from toy.library import log_errors_only


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the reference shares with a recipe; the defaults are those of `gguf_worker.Recipe`."""

    n_ctx: int = 4096
    n_batch: int = 512
    n_ubatch: int = 128
    flash_attn: bool = True
    repack: bool = True
    type_k: str = "f16"
    type_v: str = "f16"
    max_sessions: int = 4
    threads: int = 0
    """0 leaves llama.cpp's own default."""
    embeddings: bool = False
    """The context gives embeddings, of every row and without pooling, beside the logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Greedy:
    """One greedy generation. A row of logits is `n_vocab` float32 values, as bytes."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    """The generated ids; the last one was drawn but not fed back."""
    prefill: bytes
    """Rows of all prompt positions."""
    decode: tuple[bytes, ...]
    """One row for each generated token that was fed back."""

    @property
    def n_logits(self) -> int:
        return (len(self.prefill) + sum(len(row) for row in self.decode)) // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Tokens of one session that share a step with others."""

    session: int
    position: int
    tokens: Sequence[int]


class Reference:
    """An open unsplit model. Raises OSError when stock llama.cpp cannot load it."""

    def __init__(self, path: Path, settings: Settings = Settings()) -> None:
        log_errors_only()
        llama.llama_backend_init()
        self._settings = settings
        self._model = self._load(path)
        self._context = self._create_context()
        self._vocabulary = llama.llama_model_get_vocab(self._model)
        self.n_vocab = int(llama.llama_vocab_n_tokens(self._vocabulary))
        self.window = int(llama.llama_model_n_swa(self._model))
        """Rows that a sliding-window layer sees; 0 where there is none."""

    def _load(self, path: Path) -> Any:
        parameters = llama.llama_model_default_params()
        parameters.n_gpu_layers = 0
        parameters.use_extra_bufts = self._settings.repack
        model = llama.llama_model_load_from_file(str(path).encode(), parameters)
        if not model:
            raise OSError(f"llama.cpp cannot load {path}")
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
        parameters.type_k = GGMLQuantizationType[settings.type_k.upper()]
        parameters.type_v = GGMLQuantizationType[settings.type_v.upper()]
        if settings.embeddings:
            parameters.embeddings = True
            parameters.pooling_type = llama.LLAMA_POOLING_TYPE_NONE
        if settings.threads:
            parameters.n_threads = parameters.n_threads_batch = settings.threads
        context = llama.llama_init_from_model(self._model, parameters)
        if not context:
            llama.llama_model_free(self._model)
            raise OSError("llama.cpp cannot make a context")
        return context

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        llama.llama_free(self._context)
        llama.llama_model_free(self._model)

    def tokenize(self, text: str) -> list[int]:
        """Token ids with the vocabulary's own leading token, special words not parsed."""
        raw = text.encode()
        tokens = (llama.llama_token * (len(raw) + 8))()
        count = llama.llama_tokenize(self._vocabulary, raw, len(raw), tokens, len(tokens), True, False)
        return list(tokens[:count])

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """Bytes of the text, special tokens rendered as nothing."""
        ids = (llama.llama_token * len(tokens))(*tokens)
        text = ctypes.create_string_buffer(64 * len(tokens) + 64)
        size = llama.llama_detokenize(self._vocabulary, ids, len(tokens), text, len(text), False, False)
        return text.raw[:size]

    def forward(self, tokens: Sequence[int], position: int, session: int = 0) -> bytes:
        """Logits of every row, `len(tokens) * n_vocab` float32 values; in pieces of n_batch."""
        size = self._settings.n_batch
        pieces = [
            Feed(session=session, position=position + start, tokens=tokens[start : start + size])
            for start in range(0, len(tokens), size)
        ]
        return b"".join(self._decode([piece]) for piece in pieces)

    def embed(self, tokens: Sequence[int], position: int, session: int = 0) -> bytes:
        """Embeddings of every row, `len(tokens) * n_embd_out` float32 values, in one call."""
        self._decode([Feed(session=session, position=position, tokens=tokens)])
        columns = int(llama.llama_model_n_embd_out(self._model))
        return ctypes.string_at(llama.llama_get_embeddings(self._context), len(tokens) * columns * 4)

    def forward_together(self, feeds: Sequence[Feed]) -> list[bytes]:
        """Logits of every row of each session's feed, in the calls that an engine's step is made of.

        Feeds of one row are computed together, in the order given, then each longer one alone: what a batch
        is made of can change its results, so a chain is compared under the same circumstances.
        """
        together = [feed for feed in feeds if len(feed.tokens) == 1]
        calls = [together] if together else []
        calls += [[feed] for feed in feeds if len(feed.tokens) > 1]
        logits = {feed.session: rows for call in calls for feed, rows in self._split(call)}
        return [logits[feed.session] for feed in feeds]

    def _split(self, feeds: Sequence[Feed]) -> Iterator[tuple[Feed, bytes]]:
        """Each feed with its own rows of one call's logits."""
        rows, start = self._decode(feeds), 0
        for feed in feeds:
            end = start + len(feed.tokens) * self.n_vocab * 4
            yield feed, rows[start:end]
            start = end

    def _decode(self, feeds: Sequence[Feed]) -> bytes:
        n_rows = sum(len(feed.tokens) for feed in feeds)
        batch = llama.llama_batch_init(n_rows, 0, 1)
        try:
            for feed in feeds:
                for position, token in enumerate(feed.tokens, feed.position):
                    row = batch.n_tokens
                    batch.token[row] = token
                    batch.pos[row] = position
                    batch.n_seq_id[row] = 1
                    batch.seq_id[row][0] = feed.session
                    batch.logits[row] = 1
                    batch.n_tokens += 1
            status = llama.llama_decode(self._context, batch)
            if status != 0:
                raise RuntimeError(f"llama_decode returned {status}")
            rows = llama.llama_get_logits(self._context)
            return ctypes.string_at(rows, n_rows * self.n_vocab * 4)
        finally:
            llama.llama_batch_free(batch)

    def clear(self, session: int = 0) -> None:
        """Forgets the session's rows."""
        llama.llama_memory_seq_rm(llama.llama_get_memory(self._context), session, -1, -1)

    def greedy(self, prompt: Sequence[int], steps: int) -> Greedy:
        """Prefills `prompt` in a fresh session and draws `steps` tokens, feeding each back but the last."""
        self.clear()
        prefill = self.forward(prompt, 0)
        tokens = [most_likely(prefill[-self.n_vocab * 4 :])]
        decode: list[bytes] = []
        while len(tokens) < steps:
            decode.append(self.forward(tokens[-1:], len(prompt) + len(decode)))
            tokens.append(most_likely(decode[-1]))
        return Greedy(prompt=tuple(prompt), tokens=tuple(tokens), prefill=prefill, decode=tuple(decode))


def most_likely(row: bytes) -> int:
    """The id of the largest logit, the lowest among equals."""
    return int(np.frombuffer(row, dtype="<f4").argmax())
