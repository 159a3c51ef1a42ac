"""Embeddings: rows of the last stage, pooled to one vector of length 1."""

from __future__ import annotations

import base64
import math
import struct
from array import array
from collections.abc import Sequence

import anyio.to_thread

from gguf_worker.gateway.errors import ApiError
from gguf_worker.gateway.model import ServedModel
from gguf_worker.protocol.messages import Output
from gguf_worker.work import Work

POOLINGS = ("mean", "cls", "last")


def pooling_of(model: ServedModel, asked: str | None) -> str:
    """How the model's rows become one. Raises ApiError where it gives none, or nobody knows how."""
    about = model.about
    if not about.n_embd_out:
        raise ApiError(f"the model {model.name!r} gives no embeddings", code="no_embeddings")
    if about.pooling in POOLINGS:
        if asked not in (None, about.pooling):
            raise ApiError(f"the model pools by {about.pooling}", param="pooling")
        return about.pooling
    if about.pooling == "rank":
        raise ApiError(f"the model {model.name!r} ranks texts; that is no embedding", code="no_embeddings")
    if asked is None:
        raise ApiError(
            f"the model {model.name!r} is not made for embeddings: its file does not say how to pool them "
            "(the parameter pooling may: mean, last or cls)",
            param="pooling",
            code="no_embeddings",
        )
    return asked


async def embed(model: ServedModel, tokens: Sequence[int], pooling: str, work: Work) -> list[float]:
    """The vector of one text."""
    async with model.route.open_chain(work=work) as chain:
        most = chain.stages[0].prefill_chunk  # so that no more rows are held at a time than one has
        pool = _Pool(pooling)
        for start in range(0, len(tokens), most):
            result = await chain.forward(tokens[start : start + most], Output.EMBEDDING)
            assert result.embedding is not None
            # In a thread: rows times columns are more than what waits on the event loop has time for.
            await anyio.to_thread.run_sync(pool.add, bytes(result.embedding), result.columns)
        await chain.close("stop")
    return pool.vector()


def as_base64(vector: Sequence[float]) -> str:
    """Little-endian float32."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


class _Pool:
    """Rows that come a few at a time."""

    def __init__(self, pooling: str) -> None:
        self._pooling = pooling
        self._vector: list[float] = []

    def add(self, raw: bytes, columns: int) -> None:
        values = array("f", raw)
        if self._pooling == "last":
            self._vector = list(values[-columns:])
        elif self._pooling == "cls":
            self._vector = self._vector or list(values[:columns])
        else:
            sums = [math.fsum(values[column::columns]) for column in range(columns)]
            before = self._vector or [0.0] * columns
            self._vector = [one + other for one, other in zip(before, sums, strict=True)]

    def vector(self) -> list[float]:
        """Of length 1; a sum of rows has the direction of their mean. Raises ApiError where the model has
        computed no numbers, which JSON cannot tell."""
        length = math.sqrt(math.fsum(value * value for value in self._vector))
        if not math.isfinite(length):
            raise ApiError(
                "the model's vector of a text is not finite: its weights or its recipe are not sound",
                status=500,
                kind="server_error",
                code="non_finite",
            )
        return [value / length for value in self._vector] if length else self._vector
