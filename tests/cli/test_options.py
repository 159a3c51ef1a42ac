"""Options that commands share: what they become, and how they are written down again."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from gguf_worker import Recipe, Sampling, ShardSpec
from gguf_worker.cli.errors import CommandError
from gguf_worker.cli.options import (
    HostOptions,
    RecipeOptions,
    SamplingOptions,
    arguments_of,
    parse_logit_bias,
    with_options,
)

RECIPE_LINE = (
    "-c 1024 -t 3 -b 256 -ub 96 --prefill-chunk 64 -fa off -ctk q8_0 -ctv f32 --no-kv-unified "
    "--boundary bf16 --no-repack -ngl -1 -mg 1 -sm row --rope-scaling yarn "
    "--rope-freq-base 500000 --rope-freq-scale 0.25 "
    "--yarn-orig-ctx 512 --yarn-ext-factor 0.5 --yarn-attn-factor 2 --yarn-beta-fast 16 --yarn-beta-slow 3"
)
RECIPE = Recipe(
    n_ctx=1024,
    n_batch=256,
    n_ubatch=96,
    prefill_chunk=64,
    n_threads=3,
    flash_attn=False,
    repack=False,
    kv_unified=False,
    n_gpu_layers=-1,
    main_gpu=1,
    split_mode="row",
    type_k="q8_0",
    type_v="f32",
    boundary="bf16",
    rope_scaling="yarn",
    rope_freq_base=500000.0,
    rope_freq_scale=0.25,
    yarn_orig_ctx=512,
    yarn_ext_factor=0.5,
    yarn_attn_factor=2.0,
    yarn_beta_fast=16.0,
    yarn_beta_slow=3.0,
)
SAMPLING_LINE = (
    "--temp 0.5 -s 7 --top-k 40 --top-p 0.75 --min-p 0.25 --typical 0.5 --repeat-penalty 1.5 "
    "--repeat-last-n -1 --presence-penalty -0.5 --frequency-penalty 0.25 "
    "--logit-bias 5+1.5 --logit-bias 6-inf --logprobs 3"
)
SAMPLING = Sampling(
    temperature=0.5,
    seed=7,
    top_k=40,
    top_p=0.75,
    min_p=0.25,
    typical_p=0.5,
    repeat_penalty=1.5,
    repeat_last_n=-1,
    presence_penalty=-0.5,
    frequency_penalty=0.25,
    logit_bias=((5, 1.5), (6, -math.inf)),
    top_logprobs=3,
)
HOST_LINE = "-np 2 --no-mmap --mlock --numa isolate --no-memory-check --engine fake --cache-dir /somewhere"
SPEC = ShardSpec(
    "m",
    layers=(1, 2),
    recipe=RECIPE,
    engine="fake",
    max_sessions=2,
    mmap=False,
    mlock=True,
    numa="isolate",
    check_memory=False,
    cache_dir="/somewhere",
)

Groups = tuple[RecipeOptions, SamplingOptions, HostOptions]


def parse(line: str) -> Groups:
    """The groups that a command gets from these words."""
    taken: list[Groups] = []
    app = typer.Typer()

    @app.command()
    @with_options
    def command(
        recipe: RecipeOptions,
        sampling: SamplingOptions,
        host: HostOptions,
        other: Annotated[int, typer.Option("--other")] = 1,
    ) -> None:
        assert other == 1
        taken.append((recipe, sampling, host))

    result = CliRunner().invoke(app, line.split(), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return taken[0]


def test_options_have_the_defaults_of_the_library() -> None:
    """A command line without options is the default recipe, greedy sampling and a usual shard."""
    recipe, sampling, host = parse("")
    assert recipe.recipe() == Recipe()
    assert sampling.sampling() == Sampling()
    assert host.spec("m", Recipe()) == ShardSpec("m")
    assert (recipe, sampling, host) == (RecipeOptions(), SamplingOptions(), HostOptions())


def test_options_reach_every_field() -> None:
    """Each option under llama.cpp's name sets its field; every field of a recipe has an option."""
    recipe, sampling, host = parse(f"{RECIPE_LINE} {SAMPLING_LINE} {HOST_LINE}")
    assert recipe.recipe() == RECIPE
    assert sampling.sampling() == SAMPLING
    assert host.spec("m", RECIPE, layers=(1, 2)) == SPEC
    for given, usual in ((RECIPE, Recipe()), (SAMPLING, Sampling()), (SPEC, ShardSpec("m"))):
        untouched = {
            field.name for field in fields(usual) if getattr(given, field.name) == getattr(usual, field.name)
        }
        assert untouched <= {"model", "artifact", "fault_plan", "grammar", "grammar_start", "n_stages"}


@pytest.mark.parametrize("line", ["", RECIPE_LINE, SAMPLING_LINE, HOST_LINE, "--grammar root::=[0-9]+"])
def test_options_written_down_read_the_same(line: str) -> None:
    """The words that options are written as give the very same options."""
    groups = parse(line)
    words = [word for group in groups for word in arguments_of(group)]
    assert parse(" ".join(words)) == groups
    assert bool(words) is bool(line)


def test_batches_are_never_larger_than_the_context() -> None:
    """A small context makes the batches small too, unless they are given."""
    recipe = parse("-c 256")[0].recipe()
    assert (recipe.n_ctx, recipe.n_batch, recipe.n_ubatch) == (256, 256, 128)
    assert parse("-b 64")[0].recipe().n_ubatch == 64


def test_context_that_is_no_multiple_is_refused_with_the_next_one() -> None:
    """The remedy is the number to give."""
    with pytest.raises(CommandError, match="try --ctx-size 1024"):
        RecipeOptions(ctx_size=1000).recipe()


@pytest.mark.parametrize(
    ("options", "word"),
    [(SamplingOptions(top_p=0.0), "top_p"), (SamplingOptions(temp=math.inf), "temperature")],
)
def test_sampling_that_cannot_be_is_refused(options: SamplingOptions, word: str) -> None:
    """What the protocol does not allow is a wrong command line, not a defect."""
    with pytest.raises(CommandError, match=word):
        options.sampling()


def test_recipe_that_cannot_be_is_refused() -> None:
    """The same for a recipe."""
    with pytest.raises(CommandError, match="rope_freq_base"):
        RecipeOptions(rope_freq_base=math.inf).recipe()


@pytest.mark.parametrize("text", ["", "5", "5+", "+1", "5+inf", "5-nan", "a+1", "5 + 1", "5*2", "5+1e3"])
def test_logit_bias_refused_when_not_a_token_and_a_bias(text: str) -> None:
    """Anything else is refused with the way to write it."""
    with pytest.raises(CommandError, match=r"write it as 15043\+1"):
        parse_logit_bias(text)


def test_grammar_is_read_from_a_file(tmp_path: Path) -> None:
    """Its text is what `--grammar` would have been; both together are one too many."""
    path = tmp_path / "yes.gbnf"
    path.write_text('root ::= "yes"\n')
    assert SamplingOptions(grammar_file=path).sampling().grammar == 'root ::= "yes"\n'
    with pytest.raises(CommandError, match="give one of them"):
        SamplingOptions(grammar_file=path, grammar="root ::= [a]").sampling()
    path.write_bytes(b"\xff")
    with pytest.raises(CommandError, match="not UTF-8"):
        SamplingOptions(grammar_file=path).sampling()
