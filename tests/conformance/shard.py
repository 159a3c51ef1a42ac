"""What a test of this suite may ask of a shard, whatever is behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import shard_engine
from shard_engine import ArtifactInfo, Candidate, Forked, Memory, Recipe, Sampling, Vocabulary

SMALL = Recipe(n_ctx=256, n_batch=32, n_ubatch=32, n_threads=1)
"""The recipe of nearly all tests: small, so that limits are near."""

Progress = Callable[[str, int, int], bool | None]


class ShardError(Exception):
    """A refusal or failure, with the code and the fields that the pipe protocol gives it."""

    def __init__(self, code: str, message: str, fields: Mapping[str, str]) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.fields = dict(fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to open a shard."""

    model: str
    layers: tuple[int, int] = (0, 0)
    recipe: Recipe = SMALL
    artifact: str | None = None
    max_sessions: int = 4
    memory_available: int = 0
    cache_dir: Path | None = None
    fault_plan: str | None = None
    on_progress: Progress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Identity, ownership, memory and capacity, as loaded."""

    artifact: str
    shard: str
    layers: tuple[int, int]
    recipe: Recipe
    n_layer: int
    n_embd: int
    n_vocab: int
    n_embd_out: int
    pooling: str
    owned_layers: int
    owned_tensors: int
    owned_bytes: int
    token_embedding: bool
    output_head: bool
    vocabulary: bool
    memory: Memory
    max_sessions: int
    kv_cells: int
    session_cells: int
    max_batch: int
    can_trim: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One forward: rows of one session, and what to give back (`none`, `hidden`, `logits`, `logits_all`,
    `token`, `embedding`)."""

    session: int
    position: int
    tokens: Sequence[int] | None = None
    hidden: bytes | None = None
    output: str = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a forward gave: `values` are rows of `dtype` as bytes, empty for outputs without rows."""

    values: bytes
    n_rows: int
    n_columns: int
    dtype: str
    token: int | None
    logprob: float
    top: tuple[Candidate, ...]
    end_of_generation: bool
    text: bytes
    length: int
    kv_cells: int


class Shard(ABC):
    """One open shard."""

    @property
    @abstractmethod
    def description(self) -> Description: ...

    @property
    @abstractmethod
    def specials(self) -> Vocabulary | None:
        """The special tokens, where the shard has a vocabulary."""

    @abstractmethod
    def open_session(self, sampling: Sampling | None = None) -> int: ...

    @abstractmethod
    def fork(self, source: int, position: int, sampling: Sampling | None = None) -> Forked:
        """A session that begins with the first `position` rows of another one."""

    @abstractmethod
    def close_session(self, session: int) -> int:
        """Returns the KV cells freed."""

    @abstractmethod
    def trim(self, session: int, position: int) -> int:
        """Returns the KV cells freed."""

    @abstractmethod
    def forward_many(self, rows: Sequence[Rows]) -> list[Answer | ShardError]:
        """Several sessions at once: one step in process, requests in flight together through the worker."""

    @abstractmethod
    def forward_cancelled(self, rows: Rows) -> Answer:
        """A forward that is cancelled as soon as it is being computed."""

    @abstractmethod
    def kv_cells_used(self) -> int: ...

    @abstractmethod
    def progress(self) -> int: ...

    @abstractmethod
    def tokenize(
        self, text: bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]: ...

    @abstractmethod
    def detokenize(
        self, tokens: Sequence[int], *, remove_special: bool = False, unparse_special: bool = False
    ) -> bytes: ...

    @abstractmethod
    def token_info(self, token: int) -> shard_engine.TokenInfo: ...

    @abstractmethod
    def chat_template(self, name: str | None = None) -> str: ...

    @abstractmethod
    def close(self) -> None: ...

    def forward(self, session: int, position: int, **rows: object) -> Answer:
        """One forward; raises ShardError where it failed."""
        return self.forward_rows(Rows(session=session, position=position, **rows))  # type: ignore[arg-type]

    def forward_rows(self, rows: Rows) -> Answer:
        """The same, of rows that are there already."""
        (answer,) = self.forward_many([rows])
        if isinstance(answer, ShardError):
            raise answer
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that the suite runs on."""

    path: str
    n_layer: int
    prompts: tuple[tuple[int, ...], ...] = field(default=(), repr=False)


class Subject(ABC):
    """One engine behind one transport: opens shards, inspects and slices artifacts."""

    def __init__(self, engine: str, model: Model, cache_dir: Path) -> None:
        self.engine = engine
        self.model = model
        self.cache_dir = cache_dir

    def options(self, **changes: object) -> Options:
        """Options for this subject's model; `changes` are fields of Options."""
        return Options(**{"model": self.model.path, "cache_dir": self.cache_dir, **changes})  # type: ignore[arg-type]

    @abstractmethod
    def open(self, options: Options) -> Shard: ...

    @abstractmethod
    def estimate(self, options: Options) -> Memory:
        """What an open with these options would take."""

    @abstractmethod
    def inspect(self, model: str) -> ArtifactInfo: ...

    @abstractmethod
    def slice(self, model: str, layers: tuple[int, int], output: Path, *, overwrite: bool = False) -> int:
        """Returns the bytes written."""


class OpenShard(Protocol):
    """Opens a shard of a subject's model that lives as long as the test; `changes` are fields of Options."""

    def __call__(self, subject: Subject, **changes: object) -> Shard: ...
