"""Certificates as a tracker knows them, and which of them a stage may rely on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gguf_worker import certification
from gguf_worker.identity import Recipe, differences
from gguf_worker.node.identity import recipe_text
from gguf_worker_v1 import common_pb2, registration_pb2


def certificate_message(certificate: certification.Certificate) -> registration_pb2.Certificate:
    """What a tracker is told of a certificate."""
    return registration_pb2.Certificate(
        id=certificate.id,
        artifact=certificate.artifact,
        recipe=recipe_text(certificate.recipe),
        engine=str(certificate.build["engine"]),
        library_commit=str(certificate.build["library_commit"]),
        exact=certificate.is_exact,
        batch_invariant=certificate.is_batch_invariant,
        chunk_invariant=certificate.is_chunk_invariant,
    )


def certificate_for(
    stage: common_pb2.Stage, certificates: Mapping[str, registration_pb2.Certificate]
) -> registration_pb2.Certificate | None:
    """The certificate that stands for a stage: exact, of its artifact, recipe, engine and library. Of several
    the one that says most."""
    return min(
        (one for one in _same_recipe(stage, certificates) if one.exact and _same_build(stage, one)),
        key=lambda one: (-one.batch_invariant - one.chunk_invariant, one.id),
        default=None,
    )


def why_dark(stage: common_pb2.Stage, certificates: Mapping[str, registration_pb2.Certificate]) -> str:
    """Why no certificate stands for a stage, with the remedy."""
    recipe = _unusual(stage.identity.recipe)
    certify = f"run `gguf-worker certify` with the nodes' recipe ({recipe}), and give one of them the file"
    nearest = min(
        _same_recipe(stage, certificates), key=lambda one: (not _same_build(stage, one), one.id), default=None
    )
    if nearest is None:
        return f"no certificate is known for its recipe: {certify} with --certificate"
    if _same_build(stage, nearest):
        return (
            f"certificate {nearest.id[:12]} says that a cut model is not exact with this recipe: take another"
        )
    measured, served = (f"{one.engine} {one.library_commit}" for one in (nearest, stage.build))
    return (
        f"certificate {nearest.id[:12]} was measured with {measured}, and the nodes have {served}: {certify} "
        "with --certificate"
    )


def why_not(stage: common_pb2.Stage, certificate: registration_pb2.Certificate) -> str:
    """Why this certificate does not stand for a stage: what was measured, and what is served."""
    measured, served = (one.artifact[:12] for one in (certificate, stage.identity))
    if certificate.artifact != stage.identity.artifact:
        return f"it is of the artifact {measured}, and this is {served}"
    if found := differences(_recipe_values(certificate.recipe), _recipe_values(stage.identity.recipe)):
        return "; ".join(map(str, found))
    if not _same_build(stage, certificate):
        measured, served = (f"{one.engine} {one.library_commit}" for one in (certificate, stage.build))
        return f"it was measured with {measured}, and this is {served}"
    return "it says that a cut model is not exact with this recipe"


def _recipe_values(recipe: Mapping[str, str]) -> dict[str, object]:
    return {f"recipe.{name}": value for name, value in sorted(recipe.items())}


def _unusual(recipe: Mapping[str, str]) -> str:
    """What a recipe does not leave as it usually is; a whole ubatch is the usual prefill chunk."""
    usual = recipe_text(Recipe()) | {"prefill_chunk": recipe.get("n_ubatch", "")}
    changed = [f"{name} {value}" for name, value in sorted(recipe.items()) if usual.get(name) != value]
    return ", ".join(changed) or "the usual one"


def _same_recipe(
    stage: common_pb2.Stage, certificates: Mapping[str, registration_pb2.Certificate]
) -> Iterable[registration_pb2.Certificate]:
    return [
        one
        for one in certificates.values()
        if one.artifact == stage.identity.artifact and one.recipe == stage.identity.recipe
    ]


def _same_build(stage: common_pb2.Stage, certificate: registration_pb2.Certificate) -> bool:
    return (certificate.engine, certificate.library_commit) == (
        stage.build.engine,
        stage.build.library_commit,
    )
