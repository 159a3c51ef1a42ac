"""A long run of the probe, read line by line."""

from __future__ import annotations

from gguf_worker.process.stderr import StderrRing
from kit.probe import END, PROBLEM, figures_in


def test_five_minutes_of_answers_are_read_whole() -> None:
    """Also where a line may be no longer than what is kept of one."""
    took = [index / 7 for index in range(3000)]
    problem = f"{PROBLEM}/health was answered with 503 after 7.0 s"
    lines: list[str] = []
    ring = StderrRing(max_lines=1, pid=1, on_line=lines.append)
    ring.feed("\n".join([*map(str, took), problem, END, ""]).encode())
    assert figures_in(lines) == (took, [problem])
