"""Compares what a worker attests with what it was asked to hold."""

from __future__ import annotations

from dataclasses import asdict, replace

from gguf_worker.errors import IdentityMismatch
from gguf_worker.identity import Difference, Identity, Recipe, differences, error_fields, recipe_values
from gguf_worker.protocol.messages import Loaded
from gguf_worker.supervision.spec import ShardSpec


def check_attested(spec: ShardSpec, loaded: Loaded) -> None:
    """Raises IdentityMismatch, naming every field that differs with both values.

    Checked are the identity (artifact where one was asked for, range, recipe) and the ownership: the layers
    that the engine counted must be those of the range.
    """
    found = differences(_asked(spec, loaded), _attested(loaded))
    if found:
        raise IdentityMismatch(_message(found), fields=error_fields(found))


def check_unchanged(before: Identity, loaded: Loaded) -> None:
    """Raises IdentityMismatch where a worker that took another's place holds anything else, down to the bytes
    of the file that the library maps."""
    found = differences(asdict(before), asdict(loaded.identity))
    if found:
        raise IdentityMismatch(_message(found), fields=error_fields(found))


def _asked(spec: ShardSpec, loaded: Loaded) -> dict[str, object]:
    start, end = _asked_range(spec, loaded)
    asked: dict[str, object] = {} if spec.artifact is None else {"artifact": spec.artifact}
    return {
        **asked,
        "start": start,
        "end": end,
        **recipe_values(_asked_recipe(spec, loaded)),
        "ownership.layers": (start, end),
        "ownership.owned_layers": end - start,
    }


def _asked_recipe(spec: ShardSpec, loaded: Loaded) -> Recipe:
    """The recipe with what it left open settled: the number of threads may be any, a prefill chunk of 0
    stands for the ubatch."""
    recipe = spec.recipe
    return replace(
        recipe,
        n_threads=recipe.n_threads or loaded.identity.recipe.n_threads,
        prefill_chunk=recipe.prefill_chunk or recipe.n_ubatch,
    )


def _asked_range(spec: ShardSpec, loaded: Loaded) -> tuple[int, int]:
    """Layers 0:0 are all that the file holds, which for an exported slice is its own range."""
    if spec.layers == (0, 0):
        return loaded.identity.start, loaded.identity.end
    return spec.layers[0], spec.layers[1] or loaded.model.n_layer


def _attested(loaded: Loaded) -> dict[str, object]:
    identity = loaded.identity
    return {
        "artifact": identity.artifact,
        "start": identity.start,
        "end": identity.end,
        **recipe_values(identity.recipe),
        "ownership.layers": loaded.ownership.layers,
        "ownership.owned_layers": loaded.ownership.owned_layers,
    }


def _message(found: list[Difference]) -> str:
    listed = "; ".join(map(str, found))
    return f"the worker did not load what it was asked to, and was stopped: {listed}"
