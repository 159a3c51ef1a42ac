"""Whether shards form one complete model, before and after they are loaded. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gguf_worker.errors import RouteError
from gguf_worker.identity import Identity, differences, error_fields, recipe_values
from gguf_worker.protocol.messages import Ownership
from gguf_worker.supervision.spec import ShardSpec


def check_specs(specs: Sequence[ShardSpec]) -> None:
    """Raises RouteError where the specifications cannot become one model, before anything is started."""
    if not specs:
        raise RouteError("a route has at least one shard")
    _check_start(specs[0].layers[0])
    for index, (one, other) in enumerate(pairwise(specs), start=1):
        _check_contiguous(index, one.layers[1], other.layers[0])
        _check_same(index, recipe_values(specs[0].recipe), recipe_values(other.recipe))


def check_stages(identities: Sequence[Identity], ownerships: Sequence[Ownership], n_layer: int) -> None:
    """Raises RouteError where the loaded shards are not one model: one artifact, one recipe, every layer
    once and in order, an embedding at the start and a head at the end."""
    first, last = identities[0], identities[-1]
    _check_start(first.start)
    for index, (one, other) in enumerate(pairwise(identities), start=1):
        _check_contiguous(index, one.end, other.start)
        _check_same(index, _common_values(first), _common_values(other))
    if last.end != n_layer:
        raise _error("the last stage ends before the model does", "end", n_layer, last.end)
    if not ownerships[0].token_embedding:
        raise _error("the first stage takes no tokens", "token_embedding", True, False)
    if not ownerships[-1].output_head:
        raise _error("the last stage has no output head", "output_head", True, False)


def _common_values(identity: Identity) -> dict[str, object]:
    return {"artifact": identity.artifact, **recipe_values(identity.recipe)}


def _check_start(start: int) -> None:
    if start != 0:
        raise _error("the first stage does not start at layer 0", "start", 0, start)


def _check_contiguous(index: int, end: int, start: int) -> None:
    if end != start or end == 0:
        raise _error(f"stage {index} does not start where stage {index - 1} ends", "start", end, start)


def _check_same(index: int, expected: dict[str, object], actual: dict[str, object]) -> None:
    found = differences(expected, actual)
    if found:
        listed = "; ".join(map(str, found))
        raise RouteError(f"stage {index} differs from stage 0: {listed}", fields=error_fields(found))


def _error(text: str, field: str, expected: object, actual: object) -> RouteError:
    return RouteError(
        f"{text}: expected {field} {expected}, actual {actual}",
        fields={f"{field}.expected": str(expected), f"{field}.actual": str(actual)},
    )
