"""A stream of OpenAI's API over nodes in which something is killed after a token: its client sees a pause."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from gguf_worker.gateway.mesh_catalogue import MeshModels
from gguf_worker.gateway.model import ModelSettings
from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.testing.api import Api, api_over, undisturbed
from gguf_worker.testing.figures.figure import percentile
from gguf_worker.testing.mesh.every_token import N_TOKENS, REPLAY, Blow, Nodes, Sweep, Workers
from gguf_worker.testing.mesh.site import PROMPT, Site
from gguf_worker.testing.streams import GREEDY, SEEDED, Asked, Told, chat, completion, differences


def texts_asked(n_tokens: int) -> list[Asked]:
    """One of each endpoint."""
    return [completion("greedy", PROMPT, n_tokens, GREEDY), chat("seeded", PROMPT, n_tokens, SEEDED)]


async def streamed(
    site: Site,
    whole: ShardSpec,
    n_tokens: int = N_TOKENS,
    positions: Collection[int] | None = None,
    on_sweep: Callable[[Sweep], None] = lambda _: None,
) -> list[Sweep]:
    """Through a gateway over the nodes, each text twice: a random worker under a node of its route is killed
    after each token, and then a node while another one holds its layers. `positions` are the numbers of
    tokens after which that is done, where it is not all of them."""
    sweeps = []
    asked = texts_asked(n_tokens)
    expected = await undisturbed(whole, asked)
    workers, nodes = Workers(site=site), Nodes(site=site)
    chosen = range(1, n_tokens) if positions is None else positions
    async with api_over(MeshModels(site.direct, ModelSettings(), replay=REPLAY)) as api:
        for what, blow in (("a worker", workers.blow), ("a node", nodes.blow)):
            for one, wanted in zip(asked, expected, strict=True):
                reader = _Reader(api=api, blow=blow, positions=chosen)
                sweeps.append(await reader.sweep(f"{what} killed under a stream ({one.name})", one, wanted))
                on_sweep(sweeps[-1])
        await nodes.wait_back()
    return sweeps


@dataclass(kw_only=True)
class _Reader:
    """Reads a stream, and strikes while it stands still."""

    api: Api
    blow: Blow
    positions: Collection[int]
    kills: int = 0
    tokens: int = 0
    _read_at: float = field(default_factory=time.perf_counter)
    _pauses_ms: list[float] = field(default_factory=list)

    async def took(self, n_tokens: int) -> None:
        """The client has so many tokens."""
        self._pauses_ms.append((time.perf_counter() - self._read_at) * 1e3)
        if any(self.tokens < position <= n_tokens for position in self.positions):
            await self.blow(self.api.route)
            self.kills += 1
        self.tokens, self._read_at = n_tokens, time.perf_counter()

    async def sweep(self, name: str, asked: Asked, expected: Told) -> Sweep:
        """Everything of a text, compared with what it should be."""
        started = time.perf_counter()
        told, problems = Told(), list[str]()
        try:
            told = await self.api.tell(asked, self.took, is_held=True)
        except Exception as error:  # whatever the client raises is what its user would see
            problems.append(f"after {self.tokens} tokens: {error!r}")
        else:
            problems += differences(told, expected)
        pauses = self._pauses_ms[1:] or [0.0]
        return Sweep(
            name=name,
            tokens=len(told.tokens),
            kills=self.kills,
            stages_brought_back=self.api.replays,
            pause_ms_p50=round(percentile(pauses, 50), 1),
            pause_ms_max=round(max(pauses), 1),
            took_s=round(time.perf_counter() - started, 1),
            problems=tuple(problems),
        )
