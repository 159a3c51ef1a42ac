"""Asks a page ten times a second, in a process of its own: what else the bench does must not make it late.

python -m kit.probe HOST PORT PATH SECONDS
"""

from __future__ import annotations

import http.client
import json
import sys
import time

PER_S = 10


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
    print(json.dumps(probe(host, int(port), path, float(seconds))))
