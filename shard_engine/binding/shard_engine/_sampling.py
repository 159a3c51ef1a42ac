"""`shard_sampling`, from Python and back."""

from typing import Any

from ._convert import members
from ._native import ffi, find_api
from ._types import Sampling

_NO_START = 0xFFFFFFFF
_POINTERS = ("logit_bias", "grammar", "grammar_start")


def default_sampling(engine: str = "llama") -> Sampling:
    """What an engine draws with where nothing was asked for."""
    raw = ffi.new("shard_sampling *")
    find_api(engine).default_sampling(raw)
    return _read(raw)


def _read(raw: Any) -> Sampling:
    pairs = tuple((raw.logit_bias[i].token, raw.logit_bias[i].bias) for i in range(raw.n_logit_bias))
    start = None if raw.grammar_start == _NO_START else raw.grammar_start
    grammar = "" if raw.grammar == ffi.NULL else ffi.string(raw.grammar).decode()
    return members(Sampling, raw, logit_bias=pairs, grammar=grammar, grammar_start=start)


class SamplingBridge:
    """A `shard_sampling`, filled, and all that it points to; NULL for None."""

    def __init__(self, sampling: Sampling | None) -> None:
        self.pointer: Any = ffi.NULL
        if sampling is not None:
            self._fill(sampling)

    def _fill(self, sampling: Sampling) -> None:
        self.pointer = raw = ffi.new("shard_sampling *")
        for name in Sampling.__dataclass_fields__.keys() - set(_POINTERS):
            setattr(raw, name, getattr(sampling, name))
        self._bias = ffi.new("shard_logit_bias[]", [tuple(pair) for pair in sampling.logit_bias])
        self._grammar = ffi.new("char[]", sampling.grammar.encode()) if sampling.grammar else ffi.NULL
        raw.logit_bias, raw.n_logit_bias, raw.grammar = self._bias, len(sampling.logit_bias), self._grammar
        raw.grammar_start = _NO_START if sampling.grammar_start is None else sampling.grammar_start
