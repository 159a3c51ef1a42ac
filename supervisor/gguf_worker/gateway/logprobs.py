"""Log probabilities in the shapes of both APIs. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from gguf_worker.gateway.pieces import Drawn

LEAST = -9999.0
"""What OpenAI writes for a probability of nothing; JSON has no infinity."""


def chat_logprobs(drawn: Sequence[Drawn]) -> dict[str, object]:
    """Of the chat API: an object for each token, with its bytes."""
    return {"content": [_chat_token(one) for one in drawn], "refusal": None}


def _chat_token(drawn: Drawn) -> dict[str, object]:
    step = drawn.step
    return {
        **_token(step.text_bytes, step.logprob),
        "top_logprobs": [_token(candidate.text, candidate.logprob) for candidate in step.top],
    }


def _token(raw: bytes, logprob: float) -> dict[str, object]:
    return {"token": raw.decode("utf-8", "replace"), "bytes": list(raw), "logprob": max(logprob, LEAST)}


def completion_logprobs(drawn: Sequence[Drawn], offset: int) -> dict[str, object]:
    """Of the completions API: one list for each figure. `offset` is where the choice's text begins."""
    return {
        "tokens": [spelled(one.step.text_bytes) for one in drawn],
        "token_logprobs": [max(one.step.logprob, LEAST) for one in drawn],
        "top_logprobs": [
            {spelled(candidate.text): max(candidate.logprob, LEAST) for candidate in one.step.top}
            for one in drawn
        ],
        "text_offset": [offset + one.start for one in drawn],
    }


def spelled(raw: bytes) -> str:
    """A token as text; where it is a part of a character, its bytes."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
