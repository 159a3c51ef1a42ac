"""The commands on a toy model, run as their users run them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

import pytest

from chain import SETTINGS, THREADS
from commandline import TIMEOUT_S, CommandLine
from reference import Reference
from toy import KINDS

KIND = "llama-q8_0"
PROMPT = "the other thing"


@pytest.fixture
def model(build_toy: Callable[[str], Path]) -> Path:
    return build_toy(KIND)


def _object(result: subprocess.CompletedProcess[str]) -> Any:
    """The one JSON object of a command that went well and said nothing else."""
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("division", "layers"),
    [
        ((), [[0, 6]]),
        (("--shards", "4"), [[0, 1], [1, 3], [3, 5], [5, 6]]),
        (("--cuts", "1,5"), [[0, 1], [1, 5], [5, 6]]),
    ],
)
def test_run_prints_one_object(
    division: tuple[str, ...], layers: list[list[int]], gguf_worker: CommandLine, model: Path
) -> None:
    """`run --json` gives text and tokens of the unsplit model, and says which workers made them."""
    with Reference(model, SETTINGS) as reference:
        tokens = list(reference.greedy(reference.tokenize(PROMPT), 8).tokens)
        text = reference.detokenize(tokens).decode(errors="replace")
    found = _object(
        gguf_worker(
            *("run", model, "--prompt", PROMPT, "--max-tokens", "8", "--threads", str(THREADS), "--json"),
            *division,
        )
    )
    assert set(found) == {"text", "tokens", "finish_reason", "replays", "shards", "timings"}
    assert (found["tokens"], found["finish_reason"]) == (tokens, "length")
    assert found["text"].strip() == text.strip()
    assert [shard["layers"] for shard in found["shards"]] == layers
    for shard in found["shards"]:
        assert set(shard) == {"layers", "pid", "owned_bytes", "rss_bytes", "llama_commit"}
        assert 0 < shard["owned_bytes"] < shard["rss_bytes"]
        assert len(shard["llama_commit"]) >= 7
    assert len({shard["pid"] for shard in found["shards"]}) == len(layers)
    assert set(found["timings"]) == {"load_s", "prefill_tokens_per_s", "decode_tokens_per_s"}
    assert all(value > 0 for value in found["timings"].values())
    assert gguf_worker.workers() == []


def test_run_streams_text_and_shows_workers(gguf_worker: CommandLine, model: Path) -> None:
    """Without --json the text goes to stdout; progress of every worker and the table go to stderr."""
    arguments = ("run", model, "--prompt", PROMPT, "--max-tokens", "8", "--shards", "3")
    result = gguf_worker(*arguments)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == _object(gguf_worker(*arguments, "--json"))["text"].strip()
    for layers in ("0:2", "2:4", "4:6"):
        assert f"layers {layers}: load" in result.stderr
    table = result.stderr.splitlines()[-4:]
    assert table[0].split() == ["layers", "pid", "owned", "resident", "tokens/s"]
    assert [line.split()[0] for line in table[1:]] == ["0:2", "2:4", "4:6"]


def test_run_outlives_a_worker(gguf_worker: CommandLine, model: Path) -> None:
    """A worker that is killed in mid-text is replaced, and the text is the same."""
    options = ("--max-tokens", "400", "--threads", str(THREADS), "--shards", "3")
    command = gguf_worker.command("run", model, "--prompt", PROMPT, *options)
    said = []
    for is_disturbed in (False, True):
        with subprocess.Popen(
            command, bufsize=0, env=gguf_worker.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            first = process.stdout.read(1)
            if is_disturbed:
                gguf_worker.workers()[1].kill()
            rest, stderr = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, stderr
        said.append(first + rest)
    assert said[0] == said[1]
    assert b"of which 1 died and were replaced" in stderr
    assert gguf_worker.workers() == []


def test_run_interrupted_leaves_nothing(gguf_worker: CommandLine, model: Path) -> None:
    """Ctrl-C in mid-generation ends with status 130, without a traceback and without a worker."""
    command = gguf_worker.command("run", model, "--prompt", PROMPT, "--max-tokens", "100000", "--shards", "3")
    with subprocess.Popen(
        command, env=gguf_worker.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
    assert gguf_worker.workers() == []


def _interrupt_until_it_ends(process: subprocess.Popen[bytes]) -> bytes:
    """Ctrl-C again and again; returns what came on stderr."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=0.01)[1]
    process.kill()
    raise AssertionError("the command did not end")


def test_run_interrupted_twice_ends_the_same(gguf_worker: CommandLine, model: Path) -> None:
    """Further Ctrl-C while the workers are being stopped change nothing."""
    command = gguf_worker.command("run", model, "--prompt", PROMPT, "--max-tokens", "100000", "--shards", "3")
    with subprocess.Popen(
        command, env=gguf_worker.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        stderr = _interrupt_until_it_ends(process)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
    assert gguf_worker.workers() == []


_INTERRUPTED_IMPORT = """
import sys
from gguf_worker.cli import main

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
main()
"""


def test_interrupted_import_ends_quietly(gguf_worker: CommandLine) -> None:
    """Ctrl-C while the command line is still being imported is no traceback either."""
    result = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_IMPORT],
        env=gguf_worker.environment,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (result.stdout, result.stderr, result.returncode) == (b"", b"", 130)


def test_run_ends_when_nobody_reads(gguf_worker: CommandLine, model: Path) -> None:
    """A reader that goes away ends the generation with the status of a broken pipe; no worker is left."""
    command = gguf_worker.command("run", model, "--prompt", PROMPT, "--max-tokens", "100000", "--shards", "3")
    with subprocess.Popen(
        command, env=gguf_worker.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.stdout.close()
        stderr = process.stderr.read()
        status = process.wait(timeout=TIMEOUT_S)
    assert (status, b"rror" in stderr) == (141, False), stderr
    assert gguf_worker.workers() == []


def test_run_ends_when_the_context_is_full(gguf_worker: CommandLine, model: Path) -> None:
    """A generation that fills its KV cells ends with `length`, not with an error."""
    found = _object(
        gguf_worker("run", model, "--prompt", PROMPT, "--max-tokens", "1000", "--ctx-size", "256", "--json")
    )
    assert found["finish_reason"] in ("length", "stop")
    assert len(found["tokens"]) <= 256


def test_inspect_says_what_the_file_holds(gguf_worker: CommandLine, model: Path) -> None:
    """`inspect --json` has the shape, sizes, digests and allowed cuts of the model."""
    found = _object(gguf_worker("inspect", model, "--json"))
    toy = KINDS[KIND]
    assert (found["architecture"], found["n_layer"], found["n_embd"]) == ("llama", toy.layers, toy.embd)
    assert found["supported"] is True
    assert found["allowed_cuts"] == [1, 2, 3, 4, 5]
    assert found["quantization"].lower() == "q8_0"
    assert len(found["layer_bytes"]) == toy.layers
    parts = sum(found["layer_bytes"]) + found["embedding_bytes"] + found["head_bytes"]
    assert parts == found["tensor_bytes"]
    (file,) = found["files"]
    assert (file["path"], file["bytes"]) == (str(model), model.stat().st_size)
    assert file["sha256"] == found["artifact"]


def test_inspect_reads_for_people(gguf_worker: CommandLine, model: Path) -> None:
    """Without --json the same is a text with one row for layers of the same size."""
    result = gguf_worker("inspect", model)
    assert result.returncode == 0, result.stderr
    assert "before any layer, 1 to 5" in result.stdout
    assert "0:6" in result.stdout


def test_inspect_hashes_each_file_of_a_split_set(
    gguf_worker: CommandLine, build_toy: Callable[[str], Path]
) -> None:
    """A split set has one digest for each file, and one for all."""
    found = _object(gguf_worker("inspect", build_toy("llama-split"), "--json"))
    digests = {file["sha256"] for file in found["files"]}
    assert len(digests) == 3
    assert found["artifact"] not in digests


def test_inspect_tells_why_an_architecture_is_not_supported(
    gguf_worker: CommandLine, build_malformed: Callable[[str], Path]
) -> None:
    """Inspecting is not running: an unknown architecture is described, with the reason why it is refused."""
    found = _object(gguf_worker("inspect", build_malformed("unsupported-architecture"), "--json"))
    assert found["supported"] is False
    assert "no-such-architecture" in found["reason"]
    assert found["allowed_cuts"] == []


def test_slice_runs_as_the_same_artifact(gguf_worker: CommandLine, model: Path, tmp_path: Path) -> None:
    """An exported slice is named by the artifact that it was cut from, and says which layers it holds."""
    output = tmp_path / "middle.gguf"
    found = _object(gguf_worker("slice", model, "--layers", "2:4", "--output", output, "--json"))
    assert found == {"output": str(output), "bytes": output.stat().st_size, "layers": [2, 4]}
    whole = _object(gguf_worker("inspect", model, "--json"))
    part = _object(gguf_worker("inspect", output, "--json"))
    assert part["slice"] == [2, 4]
    assert part["artifact"] == whole["artifact"]


def test_cache_holds_shard_files_until_pruned(gguf_worker: CommandLine, model: Path) -> None:
    """A run in shards fills the cache; pruning everything empties it, and the next run makes it again."""
    run = ("run", model, "--prompt", PROMPT, "--max-tokens", "2", "--shards", "2", "--json")
    first = _object(gguf_worker(*run))
    entries = _object(gguf_worker("cache", "ls", "--json"))["entries"]
    assert len([entry for entry in entries if entry["kind"] == "shard"]) == 2
    pruned = _object(gguf_worker("cache", "prune", "--all", "--json"))
    assert {entry["path"] for entry in pruned["removed"]} == {entry["path"] for entry in entries}
    assert _object(gguf_worker("cache", "ls", "--json"))["entries"] == []
    assert _object(gguf_worker(*run))["tokens"] == first["tokens"]


def test_version_names_pin_and_library(gguf_worker: CommandLine) -> None:
    """`version --json` names the pinned package and commit, and the commit that is loaded."""
    found = _object(gguf_worker("version", "--json"))
    assert found["pinned_package"] == "0.3.36"
    assert found["library_commit"].split("-")[0] in found["pinned_commit"]
    assert found["worker"] == installed_version("gguf-worker") == found["gguf_worker"]


def test_doctor_finds_all_well(gguf_worker: CommandLine) -> None:
    """Where the tests run nothing that is needed is missing."""
    found = _object(gguf_worker("doctor", "--json"))
    assert found["ok"] is True
    names = [check["name"] for check in found["checks"]]
    assert {"python", "worker executable", "worker", "pin", "cache folder", "memory"} <= set(names)


def test_doctor_names_the_remedy(
    gguf_worker: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is missing has a remedy, and the exit status says so."""
    monkeypatch.setenv("GGUF_WORKER_EXECUTABLE", str(tmp_path / "nothing"))
    result = gguf_worker("doctor", "--json")
    assert result.returncode == 1
    missing = [check for check in json.loads(result.stdout)["checks"] if not check["ok"]]
    assert {"worker executable", "worker"} <= {check["name"] for check in missing}
    assert all(check["remedy"] for check in missing)


@pytest.mark.parametrize(
    "command", [(), ("run",), ("plan",), ("inspect",), ("slice",), ("cache", "prune"), ("doctor",)]
)
def test_help_teaches(command: tuple[str, ...], gguf_worker: CommandLine) -> None:
    """Every command explains itself."""
    result = gguf_worker(*command, "--help")
    assert result.returncode == 0
    assert "Usage: gguf-worker" in result.stdout.replace("python -m gguf_worker.cli", "gguf-worker")
