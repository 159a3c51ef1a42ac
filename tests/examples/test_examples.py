"""The example programs, run as their readers would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
FAKE = ["fake:layers=12,embd=8,vocab=256", "--engine", "fake"]


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program's output; it must end well."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_embedding_program_goes_on_where_its_worker_died() -> None:
    """The text of a generation that survives a death is the text of one that had none."""
    calm = run("embed.py", *FAKE, "--max-tokens", "16")
    rehearsed = run("embed.py", *FAKE, "--max-tokens", "16", "--rehearse")
    assert rehearsed.stdout == calm.stdout != ""
    assert "0 restarts" in calm.stderr
    assert "1 restarts" in rehearsed.stderr
    assert "SIGKILL" in rehearsed.stderr
    assert "left behind: nothing" in rehearsed.stderr


def test_embedding_program_that_is_asked_to_stop_finishes_its_generation() -> None:
    """Also where it is asked twice."""
    calm = run("embed.py", *FAKE, "--max-tokens", "1500")
    process = subprocess.Popen(
        [sys.executable, EXAMPLES / "embed.py", *FAKE, "--max-tokens", "1500"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        begun = process.stdout.read(1)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr
    assert begun + stdout == calm.stdout
    assert "state=<WorkerState.DRAINING" in stderr


def test_route_of_many_shards_is_whole_again_after_a_death() -> None:
    """The same text twice, and a log in which every line is JSON with stage and process."""
    done = run("shards.py", *FAKE, "--cuts", "4,8", "--max-tokens", "12")
    assert "the same again" in done.stdout
    assert "{'signal_other': 1}" in done.stdout
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert {event["stage"] for event in events} == {0, 1, 2}
    restarts = [event for event in events if event["event"] == "RestartScheduled"]
    assert [(event["stage"], event["generation"]) for event in restarts] == [(1, 1)]
    ended = [event for event in events if event["event"] == "WorkerEnded"]
    assert sorted(event["exit"]["cause"] for event in ended) == ["clean", "clean", "clean", "signal_other"]


def test_example_ends_with_one_line_where_the_model_is_not_there() -> None:
    """A mistake of the user is no traceback."""
    for name in ("embed.py", "shards.py"):
        done = subprocess.run(
            [sys.executable, EXAMPLES / name, "fake:layers=0", "--engine", "fake"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert "error: " in done.stderr
        assert "Traceback" not in done.stderr


def test_mesh_in_one_process_generates_and_bills(tmp_path: Path) -> None:
    """Two nodes and a client: the text of one worker, and a receipt of each node."""
    certificate = tmp_path / "certificate.json"
    command = ["-m", "gguf_worker.cli", "certify", *FAKE, "--cuts", "6", "--steps", "1", "-p", "x"]
    subprocess.run(
        [sys.executable, *command, "--output", certificate],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        timeout=60,
        check=True,
    )
    alone = run("embed.py", *FAKE, "--max-tokens", "16")
    meshed = run("mesh.py", *FAKE, "--max-tokens", "16", "--cut", "6", "--certificate", str(certificate))
    assert meshed.stdout == alone.stdout != ""
    assert "route: first (layers 0:6), second (layers 6:12)" in meshed.stderr
    assert "receipt of first: layers 0:6, " in meshed.stderr
    assert "receipt of second: layers 6:12, " in meshed.stderr
