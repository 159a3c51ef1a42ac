"""`gguf-worker certify` as its users see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from commandline import CommandLine
from gguf_worker.certification import read_certificate
from gguf_worker.cli.certify import usual_cuts

QUICK = ("--ctx-size", "512", "--threads", "1", "--steps", "3", "--prompt", "the thing", "--prompt", "a")


def test_certify_writes_what_it_shows(
    gguf_worker: CommandLine, build_toy: Callable[[str], Path], tmp_path: Path
) -> None:
    """The exit status is 0, the file is the certificate that is printed, and it names the command without the
    folders of this machine."""
    model, output = build_toy("llama-q8_0"), tmp_path / "certificate.json"
    result = gguf_worker("certify", model, *QUICK, "--cuts", "3", "--output", output, "--json")
    assert (result.returncode, result.stderr) == (0, "")
    certificate = read_certificate(output)
    assert json.loads(result.stdout) == certificate.to_map()
    assert certificate.command.startswith(f"gguf-worker certify {model.name} --ctx-size 512")
    assert str(tmp_path) not in output.read_text()
    assert not list(tmp_path.glob("*.partial"))


def test_certify_that_finds_a_difference_fails(
    gguf_worker: CommandLine, build_toy: Callable[[str], Path], tmp_path: Path
) -> None:
    """A boundary that rounds gives exit status 1, a table with the counts, and a certificate that says no."""
    output = tmp_path / "certificate.json"
    words = (*QUICK, "--boundary", "f16", "--cuts", "3", "--output", output)
    result = gguf_worker("certify", build_toy("llama-q8_0"), *words)
    assert result.returncode == 1
    assert "NOT EQUAL" in result.stdout
    assert not read_certificate(output).is_exact


@pytest.mark.parametrize(
    ("kind", "words", "reason"),
    [
        ("llama-one-layer", (), "no place to be cut"),
        ("llama-q8_0", ("--cuts", "9"), "6 layers"),
        ("llama-q8_0", ("--cuts", "3,2"), "smallest first"),
        ("llama-bpe", ("--cuts", "3", "--prompt", ""), "the prompt '' has no tokens"),
    ],
)
def test_certify_that_cannot_be_done_is_refused(
    kind: str,
    words: tuple[str, ...],
    reason: str,
    gguf_worker: CommandLine,
    build_toy: Callable[[str], Path],
) -> None:
    """What cannot be certified is one line that says why; nothing is measured."""
    result = gguf_worker("certify", build_toy(kind), *QUICK, *words, "--json")
    assert result.returncode != 0
    assert result.stdout == ""
    assert reason in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".", "is a folder (name a file in it)"),
        ("missing/certificate.json", "cannot be written: No such file"),
    ],
)
def test_certify_whose_output_cannot_be_written_measures_nothing(
    name: str,
    reason: str,
    gguf_worker: CommandLine,
    build_toy: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """It says so before it takes the time, not after it."""
    result = gguf_worker("certify", build_toy("llama-q8_0"), *QUICK, "--output", tmp_path / name)
    assert (result.returncode, result.stdout) == (2, "")
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ((), ()),
        ((3,), ((3,),)),
        ((1, 2), ((2,), (1, 2))),
        ((6, 12, 18), ((12,), (6, 18))),
        (tuple(range(1, 30)), ((15,), (10, 20))),
    ],
)
def test_usual_cuts(allowed: tuple[int, ...], expected: tuple[tuple[int, ...], ...]) -> None:
    """Halves, and thirds where two different cuts can be made."""
    assert usual_cuts(allowed) == expected
