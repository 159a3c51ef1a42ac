"""Whatever is wrong with a file or a disk: one line with the remedy, and nothing left behind."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import toy
from commandline import CommandLine
from gguf_worker import GgufWorkerError, default_cache_dir
from gguf_worker.cli.doctor import check_storage

MALFORMED = [kind for kind in toy.MALFORMED if kind not in ("unsupported-architecture", "missing-split-file")]


def _check_refused(gguf_worker: CommandLine, result: subprocess.CompletedProcess[str], *words: str) -> None:
    """One line on stderr that names `words`, nothing on stdout, a failing status, and nothing left."""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]
    assert result.stdout == ""
    assert result.returncode in (1, 2)
    assert gguf_worker.workers() == []
    assert gguf_worker.leftovers() == []


def _run(gguf_worker: CommandLine, model: Path | str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return gguf_worker("run", model, "--prompt", "the", "--max-tokens", "2", "--json", *arguments)


@pytest.mark.parametrize("kind", MALFORMED)
def test_inspect_refuses_malformed_file(
    kind: str, gguf_worker: CommandLine, build_malformed: Callable[[str], Path]
) -> None:
    """Inspecting a file that is no whole GGUF names the file."""
    path = build_malformed(kind)
    _check_refused(gguf_worker, gguf_worker("inspect", path, "--json"), path.name)


@pytest.mark.parametrize("kind", MALFORMED)
def test_run_refuses_malformed_file(
    kind: str, gguf_worker: CommandLine, build_malformed: Callable[[str], Path]
) -> None:
    """Running a file that is no whole GGUF names the file; no worker is left."""
    path = build_malformed(kind)
    _check_refused(gguf_worker, _run(gguf_worker, path, "--shards", "2"), path.name)


@pytest.mark.parametrize("kind", MALFORMED)
def test_slice_refuses_malformed_file(
    kind: str, gguf_worker: CommandLine, build_malformed: Callable[[str], Path], tmp_path: Path
) -> None:
    """Slicing a file that is no whole GGUF names the file and writes nothing."""
    path, output = build_malformed(kind), tmp_path / "out"
    output.mkdir()
    result = gguf_worker("slice", path, "--layers", "0:2", "--output", output / "slice.gguf", "--json")
    _check_refused(gguf_worker, result, path.name)
    assert list(output.iterdir()) == []


def test_missing_split_file_is_named(
    gguf_worker: CommandLine, build_malformed: Callable[[str], Path]
) -> None:
    """When one file of a split set is not there, that file is named."""
    path = build_malformed("missing-split-file")
    missing = "llama-split-00002-of-00003.gguf"
    _check_refused(gguf_worker, gguf_worker("inspect", path, "--json"), missing)
    _check_refused(gguf_worker, _run(gguf_worker, path), missing)


def test_unsupported_architecture_is_refused(
    gguf_worker: CommandLine, build_malformed: Callable[[str], Path], tmp_path: Path
) -> None:
    """An architecture that is not in the table is refused by its name, not guessed."""
    path, output = build_malformed("unsupported-architecture"), tmp_path / "slice.gguf"
    _check_refused(gguf_worker, _run(gguf_worker, path, "--shards", "2"), "no-such-architecture")
    result = gguf_worker("slice", path, "--layers", "0:2", "--output", output, "--json")
    _check_refused(gguf_worker, result, "no-such-architecture")
    assert not output.exists()


@pytest.mark.parametrize("layers", ["0:7", "5:99", "6:7"])
def test_range_outside_the_model_is_refused(
    layers: str, gguf_worker: CommandLine, build_toy: Callable[[str], Path], tmp_path: Path
) -> None:
    """A range that is not inside the model is refused, naming how many layers there are."""
    output = tmp_path / "slice.gguf"
    result = gguf_worker("slice", build_toy("llama-q8_0"), "--layers", layers, "--output", output, "--json")
    _check_refused(gguf_worker, result, "6")
    assert not output.exists()


@pytest.mark.parametrize("cuts", ["6", "2,9"])
def test_cut_outside_the_model_is_refused(
    cuts: str, gguf_worker: CommandLine, build_toy: Callable[[str], Path]
) -> None:
    """A cut that is not inside the model is refused, naming how many layers there are."""
    _check_refused(gguf_worker, _run(gguf_worker, build_toy("llama-q8_0"), "--cuts", cuts), "6 layers")


def test_file_that_is_not_there_is_named(gguf_worker: CommandLine, tmp_path: Path) -> None:
    """A path without a file is named."""
    path = tmp_path / "nowhere.gguf"
    _check_refused(gguf_worker, gguf_worker("inspect", path, "--json"), str(path))
    _check_refused(gguf_worker, _run(gguf_worker, path), str(path))


def test_folder_is_not_a_model(gguf_worker: CommandLine, tmp_path: Path) -> None:
    """A folder in place of a file is named."""
    _check_refused(gguf_worker, gguf_worker("inspect", tmp_path, "--json"), str(tmp_path))


def _obey_permissions() -> None:
    """Takes from root, before it runs a program, what lets it read every file (capabilities(7))."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        pr_capbset_drop, cap_dac_override, cap_dac_read_search = 24, 1, 2
        for capability in (cap_dac_override, cap_dac_read_search):
            libc.prctl(pr_capbset_drop, capability, 0, 0, 0)


@pytest.mark.skipif(
    sys.platform != "linux" and os.geteuid() == 0, reason="root reads every file on this system"
)
def test_unreadable_file_is_named(
    gguf_worker: CommandLine, build_toy: Callable[[str], Path], tmp_path: Path
) -> None:
    """A file without permission to read is named."""
    path = tmp_path / "secret.gguf"
    shutil.copy(build_toy("llama-q8_0"), path)
    path.chmod(0)
    result = gguf_worker("inspect", path, "--json", before_exec=_obey_permissions)
    _check_refused(gguf_worker, result, str(path), "ermission")


def _limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def test_slice_refused_when_files_may_not_grow(
    gguf_worker: CommandLine, build_toy: Callable[[str], Path], tmp_path: Path
) -> None:
    """A limit on the size of files stops a slice as a full disk does: it is named and nothing is left."""
    output = tmp_path / "out" / "slice.gguf"
    output.parent.mkdir()
    arguments = ("slice", build_toy("llama-q8_0"), "--layers", "0:5", "--output", output, "--json")
    _check_refused(gguf_worker, gguf_worker(*arguments, before_exec=_limit_file_size), str(output))
    assert list(output.parent.iterdir()) == []


_FULL_DISK = """
mount -t tmpfs -o size=1m none "$0" || exit 200
"$@"
status=$?
test -z "$(ls -A "$0")" || exit 201
exit $status
"""
"""Runs a command with a small file system of its own at $0; 201 says that something was left on it."""


def _on_small_disk(folder: Path) -> list[str] | None:
    """A wrapper that mounts a small file system for one command only; None where that is not allowed."""
    for unshare in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        wrapper = [*unshare, "sh", "-c", _FULL_DISK, str(folder)]
        if (
            shutil.which("unshare")
            and subprocess.run([*wrapper, "true"], capture_output=True).returncode == 0
        ):
            return wrapper
    return None


def test_slice_refused_when_disk_is_full(
    gguf_worker: CommandLine, build_toy: Callable[[str], Path], tmp_path: Path
) -> None:
    """A full disk is named with the bytes that are needed, and nothing is left on it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    wrapper = _on_small_disk(disk)
    if wrapper is None:
        pytest.skip("this user may not mount a file system, so no disk can be filled")
    output = disk / "slice.gguf"
    arguments = ("slice", build_toy("llama-q8_0"), "--layers", "0:5", "--output", output, "--json")
    _check_refused(gguf_worker, gguf_worker(*arguments, wrapper=wrapper), str(output))


def test_run_refused_when_cache_disk_is_full(
    gguf_worker: CommandLine, build_toy: Callable[[str], Path]
) -> None:
    """A full disk under the cache is named, with nothing left in the cache."""
    result = gguf_worker(
        *("run", build_toy("llama-q8_0"), "--prompt", "the", "--shards", "2", "--json"),
        before_exec=_limit_file_size,
    )
    _check_refused(gguf_worker, result, str(gguf_worker.cache_dir))


def test_slice_keeps_existing_file(
    gguf_worker: CommandLine, build_toy: Callable[[str], Path], tmp_path: Path
) -> None:
    """An existing output is kept, byte for byte, unless --force is given."""
    output = tmp_path / "slice.gguf"
    output.write_bytes(b"mine")
    arguments = ("slice", build_toy("llama-q8_0"), "--layers", "0:2", "--output", output, "--json")
    _check_refused(gguf_worker, gguf_worker(*arguments), str(output))
    assert output.read_bytes() == b"mine"
    assert gguf_worker(*arguments, "--force").returncode == 0
    assert output.read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("run", "m.gguf"), "--prompt"),
        (("run", "m.gguf", "--prompt", "a", "--shards", "2", "--cuts", "1"), "--cuts"),
        (("run", "m.gguf", "--prompt", "a", "--temp", "-1"), "--temp"),
        (("run", "m.gguf", "--prompt", "a", "--ctx-size", "1000"), "--ctx-size 1024"),
        (("run", "m.gguf", "--prompt", "a", "-c", "2147483648"), "--ctx-size"),
        (("run", "m.gguf", "--prompt", "a", "-fa", "auto"), "--flash-attn"),
        (("run", "m.gguf", "--prompt", "a", "--top-p", "0"), "top_p"),
        (("run", "m.gguf", "--prompt", "a", "--logit-bias", "5"), "--logit-bias"),
        (("run", "m.gguf", "--prompt", "a", "--grammar-file", "/nowhere.gbnf"), "/nowhere.gbnf"),
        (("run", "m.gguf", "--prompt", "a", "--logprobs", "3"), "--json"),
        (("plan", "m.gguf"), "--memory"),
        (("plan", "m.gguf", "--shards", "2", "--memory", "1G"), "--memory"),
        (("plan", "m.gguf", "--memory", "1G,much"), "much"),
        (("plan", "m.gguf", "--memory", "1G,0"), "--memory"),
        (("run", "m.gguf", "--prompt", "a", "--threads", "2147483648"), "--threads"),
        (("run", "m.gguf", "--prompt", "a", "--cuts", "3,2"), "--cuts"),
        (("slice", "m.gguf", "--layers", "3", "--output", "o"), "--layers"),
        (("cache", "prune", "--max-size", "much"), "much"),
        (("no-such-command",), "no-such-command"),
    ],
)
def test_wrong_command_line_is_refused(
    arguments: tuple[str, ...], word: str, gguf_worker: CommandLine
) -> None:
    """A wrong option is named in one line, with exit status 2."""
    result = gguf_worker(*arguments)
    _check_refused(gguf_worker, result, word)
    assert result.returncode == 2


@pytest.mark.parametrize("arguments", [(), ("cache",)])
def test_help_is_all_that_no_arguments_print(arguments: tuple[str, ...], gguf_worker: CommandLine) -> None:
    """Without a command the help is printed, with the status of a wrong command line and no empty error."""
    result = gguf_worker(*arguments)
    assert "Usage: gguf-worker" in result.stdout
    assert (result.stderr, result.returncode) == ("", 2)


def test_empty_prompt_is_refused(gguf_worker: CommandLine, build_toy: Callable[[str], Path]) -> None:
    """A prompt that gives no tokens is refused by the name of its option, unless the model adds one."""
    result = gguf_worker("run", build_toy("llama-bpe"), "--prompt", "", "--max-tokens", "2", "--json")
    _check_refused(gguf_worker, result, "--prompt")


def test_file_name_cannot_steer_the_terminal(
    gguf_worker: CommandLine, build_toy: Callable[[str], Path], tmp_path: Path
) -> None:
    """Control characters of a file name come out as escapes, in progress lines and in tables."""
    path = tmp_path / "\x1b[2J\n.gguf"
    path.symlink_to(build_toy("llama-q8_0"))
    result = gguf_worker("inspect", path)
    assert result.returncode == 0
    for output in (result.stdout, result.stderr):
        assert "\x1b" not in output
        assert r"\x1b[2J\n.gguf" in output


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_of_the_terminal_will_do(
    encoding: str, gguf_worker: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A character that the terminal's encoding lacks is no error of its own."""
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    _check_refused(gguf_worker, gguf_worker("inspect", tmp_path / "模型.gguf"), "gguf")


@pytest.mark.parametrize("arguments", [("doctor",), ("--help",), ("cache", "ls"), ("cache", "ls", "--json")])
def test_closed_pipe_ends_quietly(arguments: tuple[str, ...], gguf_worker: CommandLine) -> None:
    """When nobody reads stdout any more the status is that of a broken pipe, and nothing is said."""
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        gguf_worker.command(*arguments),
        env=gguf_worker.environment,
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (result.stderr, result.returncode) == (b"", 141)


def test_closed_stderr_is_no_defect(gguf_worker: CommandLine, build_toy: Callable[[str], Path]) -> None:
    """Progress and errors have nowhere to go then, and stdout gets none of them."""
    closed = ("sh", "-c", 'exec "$@" 2>&-', "sh")
    result = gguf_worker("inspect", build_toy("llama-q8_0"), wrapper=closed)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("model ")
    failed = gguf_worker("inspect", "nowhere.gguf", wrapper=closed)
    assert (failed.returncode, failed.stdout, failed.stderr) == (1, "", "")


def _no_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_user_without_home_is_told_of_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any place for the cache the variable that names one is named, by `doctor` as a check."""
    for variable in ("HOME", "XDG_CACHE_HOME", "GGUF_WORKER_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "home", _no_home)
        with pytest.raises(GgufWorkerError, match="GGUF_WORKER_CACHE"):
            default_cache_dir()
        (check,) = check_storage(None)
    assert (check.ok, "GGUF_WORKER_CACHE" in check.remedy) == (False, True)


def test_doctor_reports_a_cache_that_it_cannot_look_at() -> None:
    """A cache path that cannot be examined fails its checks and hides no other."""
    checks = check_storage(Path("/" + "x" * 5000))
    assert [check.name for check in checks if not check.ok] == ["cache folder", "disk space"]
