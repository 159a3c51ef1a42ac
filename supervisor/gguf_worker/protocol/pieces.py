"""How many rows go in one piece. No I/O.

A sequence is cut in the same places wherever its stage is, because the places can change a result.
"""

from __future__ import annotations

from typing import Final

from gguf_worker.protocol.messages import Model, Output

FRAME_OVERHEAD_BYTES: Final = 4096
"""More than all keys of a forward or a result but their rows occupy."""

TOKEN_BYTES: Final = 5
"""Most that one token takes beside the hidden row that it stands for."""


def most_rows(
    output: Output, *, model: Model, row_bytes: int, prefill_chunk: int, max_batch: int, max_frame_bytes: int
) -> int:
    """Rows that one forward may carry so that they fit in one step, and they and its answer in one frame:
    whole prefill chunks where at least one fits."""
    columns = {Output.LOGITS_ALL: model.n_vocab, Output.EMBEDDING: model.n_embd_out}
    answer_bytes = 4 * columns[output] if output in columns else row_bytes
    fitting = (max_frame_bytes - FRAME_OVERHEAD_BYTES) // max(row_bytes + TOKEN_BYTES, answer_bytes)
    most = max(1, min(max_batch, fitting))
    return most if most < prefill_chunk else most - most % prefill_chunk
