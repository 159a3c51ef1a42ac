"""`gguf-worker plan`, and `run` dividing by bytes, on the fake engine."""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
from collections.abc import Sequence
from typing import Any

import pytest

from commandline import TIMEOUT_S, CommandLine
from gguf_worker.cli.errors import CommandError
from gguf_worker.cli.plan import parse_capacities

MODEL = "fake:layers=12,embd=8,vocab=256"
FAKE = ("--engine", "fake")


def _plan(gguf_worker: CommandLine, *arguments: str, status: int = 0) -> Any:
    result = gguf_worker("plan", MODEL, *FAKE, "--json", *arguments)
    assert (result.returncode, result.stderr) == (status, ""), result.stderr
    return json.loads(result.stdout)


def _layers(plan: Any) -> list[list[int]]:
    return [stage["layers"] for stage in plan["stages"]]


def test_plan_divides_by_bytes(gguf_worker: CommandLine) -> None:
    """The stages cover the model and their parts add up to what each needs."""
    found = _plan(gguf_worker, "--shards", "3")
    assert set(found) == {
        *("model", "artifact", "n_layer", "cut_period", "cuts", "fits", "total_bytes", "stages", "commands")
    }
    assert (found["model"], found["n_layer"], found["cut_period"], found["fits"]) == (MODEL, 12, 1, True)
    assert [layer for start, end in _layers(found) for layer in range(start, end)] == list(range(12))
    assert found["cuts"] == [stage["layers"][0] for stage in found["stages"][1:]]
    for stage in found["stages"]:
        parts = stage["weights_bytes"] + stage["kv_bytes"] + stage["compute_bytes"]
        assert stage["total_bytes"] == parts > 0
        assert (stage["capacity_bytes"], stage["missing_bytes"]) == (None, 0)
    assert found["total_bytes"] == sum(stage["total_bytes"] for stage in found["stages"])


def test_plan_follows_the_recipe(gguf_worker: CommandLine) -> None:
    """A longer context and a larger type of KV cells need more; the commands carry both along."""
    small, large = (_plan(gguf_worker, "--shards", "2", "-c", context) for context in ("256", "4096"))
    assert large["stages"][0]["kv_bytes"] == 16 * small["stages"][0]["kv_bytes"]
    assert "--ctx-size 256" in small["commands"][0]
    assert "--ctx-size" not in large["commands"][0]


def test_plan_is_what_run_does(gguf_worker: CommandLine) -> None:
    """`run --shards` cuts where the plan says, and the first command of a plan is one that runs."""
    options = ("-c", "512", "--temp", "2")
    planned = _plan(gguf_worker, "--shards", "5", "-c", "512", "-ctk", "f32")
    command = shlex.split(planned["commands"][0])
    assert command[:2] == ["gguf-worker", "run"]
    for arguments in (
        ("run", MODEL, *FAKE, *options, "--shards", "5", "--prompt", "A"),
        (*command[1:-1], "A"),
    ):
        result = gguf_worker(*arguments, "-n", "2", "--json")
        assert result.returncode == 0, result.stderr
        assert [shard["layers"] for shard in json.loads(result.stdout)["shards"]] == _layers(planned)


def test_plan_fits_machines(gguf_worker: CommandLine) -> None:
    """A larger machine gets more layers, and each its own command."""
    found = _plan(gguf_worker, "--memory", "1M,2M")
    (small, large) = found["stages"]
    assert (small["capacity_bytes"], large["capacity_bytes"]) == (1 << 20, 2 << 20)
    assert small["layers"][1] - small["layers"][0] < large["layers"][1] - large["layers"][0]
    assert [command.split()[:2] for command in found["commands"]] == [["gguf-worker", "serve"]] * 2
    for command, (start, end) in zip(found["commands"], _layers(found), strict=True):
        assert f"--layers {start}:{end}" in command


def test_plan_that_does_not_fit_says_what_is_missing(gguf_worker: CommandLine) -> None:
    """The exit status is 1, and the figures are there, for programs and for people."""
    found = _plan(gguf_worker, "--memory", "300K,300K", status=1)
    assert (found["fits"], found["commands"]) == (False, [])
    assert sum(stage["missing_bytes"] for stage in found["stages"]) > 0
    result = gguf_worker("plan", MODEL, *FAKE, "--memory", "300K,300K")
    assert result.returncode == 1
    for words in ("of machine 1", "it does not fit", "--ctx-size", "--cache-type-k"):
        assert words in result.stdout


def test_plan_reads_for_people(gguf_worker: CommandLine) -> None:
    """A table with a row for each stage, then the commands."""
    result = gguf_worker("plan", MODEL, *FAKE, "--shards", "3")
    assert result.returncode == 0
    table, commands = result.stdout.split("\n\n")
    assert [line.split()[0] for line in table.splitlines()] == ["layers", "0:4", "4:8", "8:12"]
    assert [line.split()[1] for line in commands.splitlines()] == ["run", "serve", "serve", "serve"]


@pytest.mark.parametrize(("shards", "word"), [("13", "ask for 1 to 12")])
def test_more_shards_than_there_can_be_are_refused(shards: str, word: str, gguf_worker: CommandLine) -> None:
    """One line with how many there can be; `run` says the same."""
    for command in (("plan", MODEL), ("run", MODEL, "--prompt", "A")):
        result = gguf_worker(*command, *FAKE, "--json", "--shards", shards)
        assert (result.returncode, result.stdout) == (1, "")
        assert result.stderr.startswith("error: ")
        assert word in result.stderr


def test_capacities_read_from_text() -> None:
    """Sizes separated by commas, each of a machine that has memory."""
    assert parse_capacities("8GiB, 512M,1.5g") == (8 << 30, 512 << 20, 3 << 29)
    with pytest.raises(CommandError, match="without memory"):
        parse_capacities("8G,0")


def test_sampling_options_reach_the_draw(gguf_worker: CommandLine) -> None:
    """A bias decides the text, the same seed repeats it, and candidates come where they are asked for."""
    run = ("run", MODEL, *FAKE, "--prompt", "A", "-n", "4", "--shards", "2", "--json")
    biased = json.loads(gguf_worker(*run, "--logit-bias", "66+1000", "--logprobs", "2").stdout)
    assert biased["text"] == "BBBB"
    assert [one["token"] for one in biased["logprobs"]] == biased["tokens"] == [66] * 4
    for one in biased["logprobs"]:
        assert set(one) == {"token", "logprob", "top"}
        assert [set(candidate) for candidate in one["top"]] == [{"token", "logprob", "text"}] * 2
        assert one["top"][0]["logprob"] >= one["top"][1]["logprob"]
    warm = [
        json.loads(gguf_worker(*run, "--temp", "50", "--seed", seed).stdout)["tokens"]
        for seed in ("1", "1", "2")
    ]
    assert warm[0] == warm[1] != warm[2]


def _on_a_terminal(command: Sequence[str], environment: dict[str, str]) -> bytes:
    """What a command writes to a terminal as its stdout."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=slave, stderr=subprocess.PIPE
    ) as process:
        os.close(slave)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, stderr
    written = os.read(master, 65536)
    os.close(master)
    return written


def test_model_cannot_steer_the_terminal(gguf_worker: CommandLine) -> None:
    """An escape that a model generates is shown on a terminal, and is left as it is in a pipe."""
    run = ("run", MODEL, *FAKE, "--prompt", "A", "-n", "1", "--logit-bias", f"{0x1B}+1000")
    assert gguf_worker(*run).stdout == "\x1b\n"
    assert _on_a_terminal(gguf_worker.command(*run), gguf_worker.environment).strip() == rb"\x1b"


def test_shards_that_do_not_fit_together_are_refused(gguf_worker: CommandLine) -> None:
    """Workers that start together would each find room; all of them are compared with what is here first."""
    run = ("run", MODEL, *FAKE, "--prompt", "A", "-n", "1", "--shards", "2", "--json")
    huge = ("-c", "2147483392", "-b", "8", "-ub", "8")
    result = gguf_worker(*run, *huge)
    assert (result.returncode, result.stdout) == (1, "")
    for words in ("all shards need", "are available", "--no-memory-check"):
        assert words in result.stderr
