"""What a shard says about itself is what was loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.shard import SMALL, OpenShard, Subject

RANGES = [(0, 6), (0, 2), (2, 4), (4, 6)]


@pytest.mark.parametrize("layers", RANGES)
def test_describe_counts_the_tensors_of_the_range(
    subject: Subject, open_shard: OpenShard, layers: tuple[int, int]
) -> None:
    """Owned layers, bytes and parts are exactly those of the layers asked for."""
    artifact = subject.inspect(subject.model.path)
    loaded = open_shard(subject, layers=layers).description
    first, last = layers[0] == 0, layers[1] == artifact.n_layer
    expected = sum(artifact.layer_bytes[slice(*layers)])
    expected += artifact.embedding_bytes * first + artifact.head_bytes * last
    if artifact.tied_head and first and last:
        expected -= artifact.embedding_bytes  # one tensor, both embedding and head
    assert loaded.layers == layers
    assert loaded.owned_layers == layers[1] - layers[0]
    assert loaded.owned_bytes == expected
    assert loaded.token_embedding == first
    assert loaded.output_head == last
    assert loaded.vocabulary == (first or last)


def test_describe_names_artifact_and_recipe(subject: Subject, open_shard: OpenShard) -> None:
    """Artifact, recipe, model and capacity are those of what was opened; end 0 is the last layer."""
    artifact = subject.inspect(subject.model.path)
    loaded = open_shard(subject, max_sessions=3).description
    assert loaded.artifact == artifact.artifact_sha256
    assert loaded.layers == (0, subject.model.n_layer)
    assert loaded.recipe == replace(SMALL, prefill_chunk=SMALL.n_ubatch)  # what was left open is settled
    assert (loaded.n_layer, loaded.n_embd) == (artifact.n_layer, artifact.n_embd)
    assert loaded.n_vocab == artifact.n_vocab
    assert (loaded.max_sessions, loaded.kv_cells, loaded.session_cells) == (3, SMALL.n_ctx, SMALL.n_ctx)
    assert (loaded.max_batch, loaded.can_trim) == (SMALL.n_batch, True)


def test_describe_counts_cells_of_sessions_apart(subject: Subject, open_shard: OpenShard) -> None:
    """Without kv_unified every session has n_ctx cells of its own, which all count, and take their bytes."""
    shared = open_shard(subject, max_sessions=3).description
    apart = open_shard(subject, max_sessions=3, recipe=replace(SMALL, kv_unified=False)).description
    assert (apart.kv_cells, apart.session_cells) == (3 * SMALL.n_ctx, SMALL.n_ctx)
    assert apart.memory.kv_bytes == 3 * shared.memory.kv_bytes


def test_describe_tells_shards_apart(subject: Subject, open_shard: OpenShard) -> None:
    """All shards name one artifact; each names its own file, the whole one the artifact itself."""
    described = [open_shard(subject, layers=layers).description for layers in RANGES]
    assert len({loaded.artifact for loaded in described}) == 1
    assert len({loaded.shard for loaded in described}) == len(RANGES)
    assert described[0].shard == described[0].artifact


def test_describe_measures_memory(subject: Subject, open_shard: OpenShard) -> None:
    """Weights hold at least what is owned; twice the KV cells take twice the bytes."""
    small = open_shard(subject, layers=(2, 4)).description
    wide = type(SMALL)(n_ctx=2 * SMALL.n_ctx, n_batch=SMALL.n_batch, n_ubatch=SMALL.n_ubatch)
    large = open_shard(subject, layers=(2, 4), recipe=wide).description
    assert small.memory.weights_bytes >= small.owned_bytes > 0
    assert large.memory.kv_bytes == 2 * small.memory.kv_bytes > 0
    assert small.memory.compute_bytes > 0


def test_describe_first_inner_and_last_stage_differ_in_vocabulary(
    subject: Subject, open_shard: OpenShard
) -> None:
    """The first and the last stage know the special tokens, the ones between do not."""
    first, inner, last = (open_shard(subject, layers=layers) for layers in RANGES[1:])
    assert first.specials == last.specials
    assert first.specials is not None
    assert inner.specials is None
    assert (first.description.n_vocab, inner.description.n_vocab) == (last.description.n_vocab, 0)
