"""What the gateway needs of a model that is served, whichever stages compute it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from gguf_worker.errors import RouteError
from gguf_worker.gateway.admission import Admission, Need
from gguf_worker.gateway.errors import ApiError
from gguf_worker.gateway.options import Options
from gguf_worker.gateway.requests import TextOrTokens
from gguf_worker.generation.route import Route
from gguf_worker.generation.stage import Stage
from gguf_worker.protocol.messages import Capacity, Model, Vocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """How much a model can do."""

    n_ctx: int
    """Rows of one generation."""
    sessions: int
    """Generations at the same time."""
    cells: int
    """Rows of all of them together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What its owner decides."""

    concurrency: int | None = None
    """Generations at the same time; None is as many as the stages have sessions for."""
    queue: int = 64
    """Requests that wait beyond these."""
    default_max_tokens: int = 1024
    """Of a chat that does not say."""


@runtime_checkable
class _HasCapacity(Protocol):
    @property
    def capacity(self) -> Capacity: ...


@dataclass(slots=True, kw_only=True, eq=False)
class ServedModel:
    """A route under the name that clients call it by."""

    name: str
    route: Route
    about: Model
    vocabulary: Vocabulary
    limits: ModelLimits
    admission: Admission
    settings: ModelSettings
    fingerprint: str
    """Differs where the same seed may give another text."""
    created: int = field(default_factory=lambda: int(time.time()))
    _template: str | None = None
    _spelled: dict[str, str] = field(default_factory=dict)

    @classmethod
    async def of_route(
        cls, name: str, route: Route, *, identity: str, settings: ModelSettings | None = None
    ) -> ServedModel:
        """Waits until every stage is ready. `identity` says in any words what is computed, exactly. Raises
        RouteError where the stages are no complete model."""
        settings = settings or ModelSettings()
        stages = await route.stages()
        vocabulary = _checked(stages)
        limits = limits_of(stages)
        slots = min(settings.concurrency or limits.sessions, limits.sessions)
        return cls(
            name=name,
            route=route,
            about=stages[0].model,
            vocabulary=vocabulary,
            limits=limits,
            admission=Admission(slots=slots, cells=limits.cells, queue=settings.queue),
            settings=settings,
            fingerprint="fp_" + hashlib.sha256(identity.encode()).hexdigest()[:12],
        )

    # ---- its text ----

    async def tokens_of(self, text: TextOrTokens) -> tuple[int, ...]:
        """A prompt's tokens. Raises ApiError where there are none, or the model does not have them."""
        tokens = tuple(await self.route.tokenize(text)) if isinstance(text, str) else text
        if not tokens:
            raise ApiError("the prompt is empty, and this model begins with no token of its own")
        if max(tokens) >= self.vocabulary.n_tokens:
            raise ApiError(
                f"the prompt has the token {max(tokens)}; those of this model go up to "
                f"{self.vocabulary.n_tokens - 1}"
            )
        return tokens

    async def tokens_of_chat(self, prompt: str) -> tuple[int, ...]:
        """A rendered prompt's tokens. The template has written the special ones, as text; the model's first
        one is added where it has not."""
        tokens = tuple(await self.route.tokenize(prompt, add_special=False, parse_special=True))
        bos = self.vocabulary.bos
        if self.vocabulary.add_bos and bos >= 0 and tokens[:1] != (bos,):
            tokens = (bos, *tokens)
        return await self.tokens_of(tokens)

    async def text_of(self, tokens: Sequence[int]) -> str:
        """Tokens as text, without the special ones that a prompt begins and ends with."""
        return (await self.route.detokenize(tokens, remove_special=True)).decode("utf-8", "replace")

    async def chat_template(self) -> str:
        """The artifact's own; empty where it has none."""
        if self._template is None:
            self._template = await self.route.chat_template()
        return self._template

    async def spelling_of(self, special: Literal["bos", "eos"]) -> str:
        """How a template writes a special token; empty where the model has none."""
        if special not in self._spelled:
            token: int = getattr(self.vocabulary, special)
            raw = await self.route.detokenize([token], unparse_special=True) if token >= 0 else b""
            self._spelled[special] = raw.decode("utf-8", "replace")
        return self._spelled[special]

    # ---- its limits ----

    def max_tokens(self, n_prompt: int, options: Options) -> int:
        """How many tokens may follow a prompt. Raises ApiError where it does not fit in the context with
        what was asked for."""
        asked = options.max_tokens
        room = self.most_rows - n_prompt + 1
        needed = 1 if asked is None else asked
        if room < needed:
            wanted = "" if asked is None else f" and {asked} are to follow"
            raise ApiError(
                f"the model's context holds {self.most_rows} tokens; the prompt has {n_prompt}{wanted}",
                param=None if asked is None else "max_tokens",
                code="context_length_exceeded",
            )
        usual = options.usual_tokens or self.settings.default_max_tokens
        return min(room, usual) if asked is None else asked

    @property
    def most_rows(self) -> int:
        """Of one generation."""
        return min(self.limits.n_ctx, self.limits.cells)

    def need(self, choices: int, rows: int) -> Need:
        """What so many choices of so many rows take: as many at the same time as fit."""
        at_once = min(choices, self.admission.slots, max(1, self.limits.cells // max(1, rows)))
        return Need(slots=at_once, cells=min(at_once * rows, self.limits.cells))


def limits_of(stages: Sequence[Stage]) -> ModelLimits:
    """What the weakest stage allows. Where one says nothing of its sessions, it takes one."""
    capacities = [stage.capacity for stage in stages if isinstance(stage, _HasCapacity)]
    n_ctx = min(stage.n_ctx for stage in stages)
    rows = min((min(c.session_cells, n_ctx) or n_ctx for c in capacities), default=n_ctx)
    return ModelLimits(
        n_ctx=rows,
        sessions=max(1, min((c.max_sessions for c in capacities), default=1)),
        cells=min((c.kv_cells or rows for c in capacities), default=rows),
    )


def _checked(stages: Sequence[Stage]) -> Vocabulary:
    end = 0
    for stage in stages:
        if stage.layers[0] != end:
            raise RouteError(f"{stage.label} does not begin at layer {end}, where the stage before it ends")
        end = stage.layers[1]
    if end != stages[-1].model.n_layer:
        raise RouteError(f"the model has {stages[-1].model.n_layer} layers, and {end} of them are served")
    for stage in stages:
        if stage.vocabulary is not None:
            return stage.vocabulary
    raise RouteError("no stage has the model's vocabulary")
