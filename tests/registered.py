"""Nodes as trackers know them, made without a node: stages, registrations, certificates, views, a clock."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from gguf_worker.node.tracker.registration import make_registration
from gguf_worker.node.tracker.tracker import View
from gguf_worker_v1 import common_pb2, registration_pb2

N_LAYER = 30
RECIPE: Mapping[str, str] = {"boundary": "f32", "n_ctx": "4096", "n_threads": "1"}
BUILD_CLASS = "toy-1234567-cpu-0a1b2c3d"


def digest(text: str) -> str:
    """A digest of 64 digits, another one for each text."""
    return hashlib.sha256(text.encode()).hexdigest()


ARTIFACT = digest("the model")


def stage(
    start: int,
    end: int,
    *,
    artifact: str = ARTIFACT,
    recipe: Mapping[str, str] = RECIPE,
    build_class: str = BUILD_CLASS,
    commit: str = "1234567",
    n_layer: int = N_LAYER,
    name: str = "toy",
    state: str = "ready",
    sessions: int = 0,
    max_sessions: int = 4,
) -> common_pb2.Stage:
    """A stage that attested everything."""
    return common_pb2.Stage(
        identity=common_pb2.Identity(
            artifact=artifact, start=start, end=end, recipe=recipe, shard=digest(f"{start}:{end}")
        ),
        build=common_pb2.Build(engine="toy", library_commit=commit, build_class=build_class),
        model=common_pb2.Model(architecture="toy", name=name, n_layer=n_layer, n_embd=64, n_vocab=256),
        ownership=common_pb2.Ownership(
            start=start,
            end=end,
            owned_layers=max(0, end - start),
            token_embedding=start == 0,
            output_head=end == n_layer,
        ),
        capacity=common_pb2.Capacity(
            max_sessions=max_sessions,
            kv_cells=4096,
            max_batch=512,
            n_ctx=4096,
            prefill_chunk=512,
            row_bytes=256,
        ),
        load=common_pb2.Load(sessions=sessions),
        state=state,
    )


def registration(
    node: str,
    *stages: common_pb2.Stage,
    instance: str = "run1",
    revision: int = 1,
    lease_s: float = 6.0,
    draining: bool = False,
) -> registration_pb2.Registration:
    """What a node with these stages says."""
    made = make_registration(
        node=node,
        instance=instance,
        software="tests",
        stages=stages,
        endpoints=[registration_pb2.Endpoint(kind="grpc", address=f"{node}:7000")],
        lease_s=lease_s,
        draining=draining,
    )
    made.revision = revision
    return made


def certificate(
    *,
    artifact: str = ARTIFACT,
    recipe: Mapping[str, str] = RECIPE,
    commit: str = "1234567",
    exact: bool = True,
    number: int = 0,
) -> registration_pb2.Certificate:
    """A certificate for the stages that are made here."""
    return registration_pb2.Certificate(
        id=digest(f"certificate {artifact} {sorted(recipe.items())} {commit} {exact} {number}"),
        artifact=artifact,
        recipe=recipe,
        engine="toy",
        library_commit=commit,
        exact=exact,
    )


def view(
    *registrations: registration_pb2.Registration,
    certificates: Iterable[registration_pb2.Certificate] = (certificate(),),
) -> View:
    """What a tracker would know."""
    return View(
        registrations={one.node: one for one in registrations},
        certificates={one.id: one for one in certificates},
    )
