"""Asks a page ten times a second, in a process of its own: what else the bench does must not make it late.

    python -m kit.probe HOST PORT PATH SECONDS

prints the milliseconds of each answer in a line of its own, and a last line that says that these are all.
"""

from __future__ import annotations

import http.client
import sys
import time

PER_S = 10
END = "that is all"


def figures_in(lines: list[str]) -> list[float]:
    """What it printed."""
    return [float(line) for line in lines[: lines.index(END)]]


def probe(host: str, port: int, path: str, seconds: float) -> list[float]:
    """Milliseconds until each answer was read, over one connection. Raises RuntimeError for one that is not
    200."""
    connection = http.client.HTTPConnection(host, port, timeout=30)
    took = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        took.append(1000 * (time.perf_counter() - began))
        if answer.status != 200:
            raise RuntimeError(f"{path} was answered with {answer.status}")
        time.sleep(1 / PER_S)
    return took


if __name__ == "__main__":
    host, port, path, seconds = sys.argv[1:]
    print(*probe(host, int(port), path, float(seconds)), END, sep="\n")
