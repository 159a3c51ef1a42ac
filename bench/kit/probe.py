"""Asks a page ten times a second, in a process of its own: what else the bench does must not make it late.

    python -m kit.probe HOST PORT PATH SECONDS

prints the milliseconds of each answer in a line of its own, or that it was none as it should be, and a last
line that says that these are all.
"""

from __future__ import annotations

import http.client
import sys
import time

PER_S = 10
END = "that is all"
PROBLEM = "problem: "


def figures_in(lines: list[str]) -> tuple[list[float], list[str]]:
    """What it printed: milliseconds, and what was no answer as it should be."""
    told = lines[: lines.index(END)]
    problems = [line for line in told if line.startswith(PROBLEM)]
    return [float(line) for line in told if not line.startswith(PROBLEM)], problems


def probe(host: str, port: int, path: str, seconds: float) -> list[str]:
    """Milliseconds until each answer was read, over one connection, and after how many seconds one was not
    200."""
    connection = http.client.HTTPConnection(host, port, timeout=30)
    told = []
    start = time.monotonic()
    while time.monotonic() < start + seconds:
        began = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        told.append(str(1000 * (time.perf_counter() - began)))
        if answer.status != 200:
            told.append(
                f"{PROBLEM}{path} was answered with {answer.status} after {time.monotonic() - start:.1f} s"
            )
        time.sleep(1 / PER_S)
    return told


if __name__ == "__main__":
    host, port, path, seconds = sys.argv[1:]
    print(*probe(host, int(port), path, float(seconds)), END, sep="\n")
