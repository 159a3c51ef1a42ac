"""`gguf-worker serve` from its start to its end, as a service manager and a browser see it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess

import anyio
import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from commandline import TIMEOUT_S, CommandLine
from gguf_worker.cli.serve import exit_status_of
from gguf_worker.node.tracker.tracker import Superseded
from gguf_worker.serving.signals import StopRequest, given_up_if_asked
from served import MODEL, serving

HTTP = ("--http", "127.0.0.1:0")


def test_service_is_announced_answers_and_stops(gguf_worker: CommandLine) -> None:
    """Ready when all workers are; every page answers; SIGTERM ends it with 0 and nothing is left."""
    with serving(gguf_worker, "--shards", "3", *HTTP) as served:
        assert "STATUS=ready: 3 of 3 workers ready" in served.wait_notified("READY=1")
        assert served.get("/healthz")[::2] == (200, "ok\n")
        assert served.get("/readyz")[::2] == (200, "ready: 3 of 3 workers ready\n")
        assert served.get("/nothing")[0] == 404
        status = served.status()
        assert status["phase"] == "ready"
        assert [worker["layers"] for worker in status["workers"]] == ["0:4", "4:8", "8:12"]
        for worker in status["workers"]:
            start, end = worker["identity"]["layers"]
            assert worker["layers"] == f"{start}:{end}"
            assert worker["ownership"]["owned_layers"] == 4
            assert worker["memory"]["weights_bytes"] > 0
            assert worker["execution"]["is_fresh"]
            assert (worker["state"], worker["restarts"], worker["causes"]) == ("ready", 0, {})
            environment = psutil.Process(worker["pid"]).environ()
            assert "NOTIFY_SOCKET" not in environment, "it is not the worker's to use"
        assert served.stop() == 0
        assert served.wait_notified("STOPPING=1")
        assert [end["cause"] for end in served.logged("worker_ended")] == ["clean"] * 3
        assert [line["unreleased"] for line in served.logged("worker_released")] == [[]] * 3
        assert served.process.stdout is not None
        assert served.process.stdout.read() == ""
    assert gguf_worker.leftovers() == []


@pytest.mark.parametrize(
    ("accept", "parse", "kind"),
    [
        ("text/plain", plain, "text/plain"),
        ("application/openmetrics-text; version=1.0.0", openmetrics, "application/openmetrics-text"),
    ],
)
def test_metrics_are_read_by_their_own_parser(
    accept: str, parse: object, kind: str, gguf_worker: CommandLine
) -> None:
    """Both formats are well formed and have the figures of each worker."""
    assert callable(parse)
    with serving(gguf_worker, "--shards", "2", *HTTP) as served:
        served.wait_notified("READY=1")
        code, headers, page = served.get("/metrics", Accept=accept)
        assert code == 200
        assert headers["content-type"].startswith(kind)
        samples = {
            (s.name, s.labels.get("layers"), s.labels.get("state")): s.value
            for f in parse(page)
            for s in f.samples
        }
        for layers in ("0:6", "6:12"):
            assert samples["gguf_worker_ready", layers, None] == 1
            assert samples["gguf_worker_state", layers, "ready"] == 1
            assert samples["gguf_worker_state", layers, "backoff"] == 0
            assert samples["gguf_worker_restarts_total", layers, None] == 0
            assert samples["gguf_worker_resident_memory_bytes", layers, None] > 0
        assert served.stop() == 0


def test_killed_worker_is_replaced_and_counted(gguf_worker: CommandLine) -> None:
    """Not ready between death and restart, ready again with the same identity; the count and the cause are
    there afterwards."""
    with serving(gguf_worker, "--shards", "2", "--restart-backoff", "2", *HTTP) as served:
        served.wait_notified("READY=1")
        before = served.status()["workers"]
        os.kill(before[1]["pid"], signal.SIGKILL)
        served.wait_notified("STATUS=degraded: 1 of 2 workers ready; layers 6:12: backoff")
        assert served.get("/readyz")[0] == 503
        assert served.get("/healthz")[0] == 200
        served.wait_notified("STATUS=ready")
        assert served.get("/readyz")[0] == 200
        first, second = served.status()["workers"]
        assert first == {**before[0], **{k: first[k] for k in ("uptime_s", "totals", "execution")}}
        assert second["pid"] != before[1]["pid"]
        assert second["identity"] == before[1]["identity"]
        assert (second["restarts"], second["causes"]) == (1, {"signal_other": 1})
        (end,) = second["ends"]
        assert (end["pid"], end["signal"], end["cause"]) == (before[1]["pid"], "SIGKILL", "signal_other")
        page = served.get("/metrics")[2]
        assert 'gguf_worker_restarts_total{layers="6:12"} 1.0' in page
        assert 'gguf_worker_exits_total{cause="signal_other",layers="6:12"} 1.0' in page
        assert served.stop() == 0
        assert [line["level"] for line in served.logged("worker_ended")] == ["error", "info", "info"]
        assert served.told.count("READY=1") == 1


def test_worker_that_dies_too_often_ends_the_service(gguf_worker: CommandLine) -> None:
    """With its own exit status, and the causes in the log."""
    with serving(gguf_worker, "--restarts", "1", "--restart-backoff", "0", *HTTP) as served:
        served.wait_notified("READY=1")
        (first,) = served.pids()
        os.kill(first, signal.SIGKILL)
        served.wait_notified("STATUS=ready")
        (second,) = served.pids()
        os.kill(second, signal.SIGSEGV)
        assert served.wait() == 69
        (gave_up,) = served.logged("gave_up")
        assert gave_up["causes"] == ["signal_other SIGKILL", "signal_other SIGSEGV"]
        (failed,) = served.logged("failed")
        assert failed["code"] == "given_up"
        assert "SIGSEGV" in failed["message"]


@pytest.mark.parametrize(("number", "exit_status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_second_signal_kills_the_workers_at_once(
    number: signal.Signals, exit_status: int, gguf_worker: CommandLine
) -> None:
    """A worker that does not answer is not waited for: it is killed on the rung where the ladder stood."""
    with serving(gguf_worker, *HTTP) as served:
        served.wait_notified("READY=1")
        (pid,) = served.pids()
        os.kill(pid, signal.SIGSTOP)
        served.process.send_signal(number)
        served.wait_notified("STOPPING=1")
        assert served.get("/readyz")[::2] == (503, "draining: 0 of 1 workers ready; layers 0:12: draining\n")
        assert served.get("/healthz")[0] == 200
        assert served.stop(number) == exit_status
        (end,) = served.logged("worker_ended")
        assert (end["cause"], end["signal"], end["stop_rung"]) == ("signal_ours", "SIGKILL", "kill")
        assert served.logged("killing")


def test_watchdog_is_fed(gguf_worker: CommandLine) -> None:
    """At least twice in each period; the variables are not inherited by workers."""
    with serving(gguf_worker, *HTTP, WATCHDOG_USEC="400000") as served:
        served.wait_notified("READY=1")
        for _ in range(3):
            served.wait_notified("WATCHDOG=1")
        (pid,) = served.pids()
        assert "WATCHDOG_USEC" not in psutil.Process(pid).environ()
        assert served.stop() == 0


def test_range_of_layers_is_divided(gguf_worker: CommandLine) -> None:
    """`--layers` with `--shards`: only these layers, among so many workers."""
    with serving(gguf_worker, "--layers", "2:8", "--shards", "2", *HTTP) as served:
        served.wait_notified("READY=1")
        assert [worker["layers"] for worker in served.status()["workers"]] == ["2:5", "5:8"]
        assert served.stop() == 0


def test_address_that_others_can_reach_is_warned_of(gguf_worker: CommandLine) -> None:
    """Status is shown there all the same, because it was asked for."""
    with serving(gguf_worker, "--http", "0.0.0.0:0") as served:
        served.wait_notified("READY=1")
        assert served.get("/readyz")[0] == 200
        assert served.stop() == 0
        (warning,) = served.logged("http_exposed")
        assert warning["level"] == "warning"
        assert "other machines" in warning["message"]


def test_port_that_is_taken_is_named(gguf_worker: CommandLine) -> None:
    """Before anything is loaded."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with serving(gguf_worker, "--http", taken) as served:
            assert served.wait() == 1
            (failed,) = served.logged("failed")
            assert failed["code"] == "address"
            assert f"cannot listen on {taken}: address already in use" in failed["message"]
            assert len(served.log) == 1


@pytest.mark.parametrize(
    "address", ["8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "::1:80", "a b:80"]
)
def test_address_that_is_none_is_wrong_usage(address: str, gguf_worker: CommandLine) -> None:
    """Exit status 2 and one line."""
    result = gguf_worker("serve", MODEL, "--engine", "fake", "--http", address)
    assert result.returncode == 2
    assert result.stderr.startswith("error: --http: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["--restart-window", "--restart-backoff", "--drain-timeout"])
@pytest.mark.parametrize("value", ["nan", "inf", "-1", "soon"])
def test_time_that_is_none_is_wrong_usage(option: str, value: str, gguf_worker: CommandLine) -> None:
    """Exit status 2 and one line that names it."""
    result = gguf_worker("serve", MODEL, "--engine", "fake", f"{option}={value}")
    assert result.returncode == 2
    assert f"{value} is not a number of seconds" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("model", "arguments", "says"),
    [
        ("fake:layers=0", (), "layers"),
        (MODEL, ("--layers", "3:99"), "99"),
        (MODEL, ("--layers", "3:99", "--shards", "2"), "layers 3:99 are no part of this model"),
        (MODEL, ("--layers", "2:4", "--shards", "3"), "layers 2:4 cannot be cut into 3 shards"),
    ],
)
def test_what_cannot_be_served_ends_with_one_error(
    model: str, arguments: tuple[str, ...], says: str, gguf_worker: CommandLine
) -> None:
    """Exit status 1, and the reason in the log's own format."""
    with serving(gguf_worker, *arguments, model=model) as served:
        assert served.wait() == 1
        (failed,) = served.logged("failed")
        assert says in failed["message"]
        assert not any(line["event"] == "restart_scheduled" for line in served.log)


def test_node_whose_name_was_taken_is_not_started_again() -> None:
    """The unit says RestartPreventExitStatus=2; two nodes of one name would end each other in turns."""
    assert exit_status_of(Superseded.of("node-a")) == 2


@pytest.mark.anyio
async def test_stop_does_not_wait_until_the_model_was_looked_at() -> None:
    """Hashing a large file takes minutes."""
    stop = StopRequest()

    with anyio.fail_after(20):
        async with given_up_if_asked(stop):
            stop.take(signal.SIGTERM)
            await anyio.sleep_forever()


@pytest.mark.anyio
async def test_stop_after_the_start_is_for_the_service_to_follow() -> None:
    stop = StopRequest()
    async with given_up_if_asked(stop) as has_started:
        has_started()
        stop.take(signal.SIGTERM)
        await anyio.wait_all_tasks_blocked()
        followed = True
    assert followed


def test_terminal_shows_a_table_and_ctrl_c_stops(gguf_worker: CommandLine) -> None:
    """A live view below a log for people; Ctrl-C is a stop in good order, and the cursor is there again."""
    terminal, its_end = pty.openpty()
    command = gguf_worker.command("serve", MODEL, "--engine", "fake", "--shards", "2")
    process = subprocess.Popen(
        command,
        env={**gguf_worker.environment, "TERM": "xterm"},
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(its_end)
    try:
        shown = _read_until(terminal, rb"6:12.{1,20}ready.{1,90}0/4 .{1,20}0/4096")
        assert "ready: 2 of 2 workers ready" in shown
        assert "restarts" in shown
        os.write(terminal, b"\x03")
        rest = _read_until(terminal, None)
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
        os.close(terminal)
    assert "asked to stop" in rest
    assert rest.rindex("\x1b[?25h") > rest.rfind("\x1b[?25l")
    assert gguf_worker.workers() == []


def _take_terminal() -> None:
    """Makes stdin the controlling terminal, so that ^C on it is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_until(terminal: int, pattern: bytes | None) -> str:
    """What a terminal shows up to a match, or to its end."""
    shown = b""
    while pattern is None or not re.search(pattern, shown, re.DOTALL):
        assert select.select([terminal], [], [], TIMEOUT_S)[0], shown
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # every other end is closed
            chunk = b""
        if not chunk:
            assert pattern is None, shown
            break
        shown += chunk
    return shown.decode()
