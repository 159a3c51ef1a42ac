"""One toy model of one of llama.cpp's architectures, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gguf import GGMLQuantizationType as Type

Value = bool | int | float | str | Sequence[int] | Sequence[float] | Sequence[bool] | Sequence[str]
Keys = Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What a toy model of an architecture is made of.

    The library itself says which tensors the architecture has under these hyper-parameters (see
    `discover`), optional ones included; `without` leaves some of those out again.
    """

    architecture: str
    detail: str = ""
    """What sets it apart from the architecture's first variant; empty for the first one."""
    keys: Keys
    """Hyper-parameters; a key lacks the architecture's name that it has in the file, unless it starts with a
    dot."""
    without: tuple[str, ...] = ()
    """Optional tensors that the file leaves out, as patterns of `fnmatch`."""
    fused: bool = False
    """Queries, keys and values are one matrix, and gate and up of experts another, where the library takes
    both forms."""
    is_shell: bool = False
    """The file has no tensors but one: the library cannot say which ones the architecture has, and the engine
    refuses it by its name."""
    tokens: int = 0
    """Tokens beyond those of the toy vocabulary."""
    cuts: tuple[tuple[int, ...], ...] = ()
    """Where to cut it, if not at its middle and near both ends."""
    weights: Type = Type.F32
    """ggml type of every matrix whose rows it fits; all else stays f32."""

    @property
    def name(self) -> str:
        return f"{self.architecture}-{self.detail}" if self.detail else self.architecture

    @property
    def layers(self) -> int:
        """Layers that a token passes; those that only predict further tokens come after them."""
        count, further = self.keys["block_count"], self.keys.get("nextn_predict_layers", 0)
        assert isinstance(count, int)
        assert isinstance(further, int)
        return count - further
