"""Identities as they travel: made, and compared field by field."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

from gguf_worker.identity import Difference, Identity, Recipe, error_fields
from gguf_worker.identity import differences as differing
from gguf_worker.protocol.messages import Build
from gguf_worker_v1 import common_pb2


def recipe_text(recipe: Recipe) -> dict[str, str]:
    """Every field as text: what is equal as text is equal, down to the last bit of a number."""
    return {name: _text(value) for name, value in recipe.to_map().items()}


def identity_to_pb(identity: Identity) -> common_pb2.Identity:
    """The same, `shard` included where it was attested."""
    return common_pb2.Identity(
        artifact=identity.artifact,
        start=identity.start,
        end=identity.end,
        recipe=recipe_text(identity.recipe),
        shard=identity.shard or "",
    )


def asked(identity: common_pb2.Identity) -> common_pb2.Identity:
    """The same without `shard`, as an open names it."""
    return common_pb2.Identity(
        artifact=identity.artifact, start=identity.start, end=identity.end, recipe=identity.recipe
    )


def differences(expected: common_pb2.Identity, actual: common_pb2.Identity) -> list[Difference]:
    """Every field that differs, `shard` excepted; a recipe's field that only one of them has is `missing` in
    the other."""
    left, right = _values(expected), _values(actual)
    return differing({**dict.fromkeys(right, "missing"), **left}, right)


def describe_differences(found: Sequence[Difference]) -> tuple[str, dict[str, str]]:
    """A line for people, and an error's fields."""
    return "; ".join(map(str, found)), error_fields(found)


def build_class_of(build: Build) -> str:
    """A word that is the same for builds that compute the same bits: engine, commit and kinds of devices for
    people, and a digest of all that can make a difference."""
    gpus = sorted((d.kind, d.name, d.description) for d in build.devices if d.kind != "cpu")
    kinds = sorted({device.kind for device in build.devices}) or ["cpu"]
    everything = [
        build.engine,
        build.engine_version,
        build.library_commit,
        build.library_version,
        build.features,
        kinds,
        gpus,
    ]
    digest = hashlib.sha256(json.dumps(everything).encode()).hexdigest()
    return "-".join(filter(None, (build.engine, build.library_commit[:7], *kinds, digest[:8])))


def _values(identity: common_pb2.Identity) -> Mapping[str, object]:
    recipe = {f"recipe.{name}": value for name, value in sorted(identity.recipe.items())}
    return {"artifact": identity.artifact, "start": identity.start, "end": identity.end, **recipe}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value + 0.0:.9g}"  # minus zero is zero
    return str(value)
