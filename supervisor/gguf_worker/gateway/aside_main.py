"""The other end of `aside`: a loop over questions, with limits of its own that hold whatever a question does,
and whether or not somebody still waits."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import Callable


class Refused(Exception):
    """Raised for a question that has no answer, with the reason."""


def answer_all(answer: Callable[[dict[str, object]], str], *, seconds: float, memory_bytes: int) -> None:
    """Answers until stdin ends. A question that takes longer than so many seconds ends the process."""
    with contextlib.suppress(ValueError, OSError):  # the system has a lower limit already, or none at all
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries may print
    for line in sys.stdin.buffer:
        # By the kernel, because no code of ours runs while a C function loops.
        signal.setitimer(signal.ITIMER_REAL, seconds)
        reply = _reply(answer, line)
        signal.setitimer(signal.ITIMER_REAL, 0)
        output.write(json.dumps(reply).encode() + b"\n")
        output.flush()


def _reply(answer: Callable[[dict[str, object]], str], line: bytes) -> dict[str, str]:
    try:
        return {"answer": answer(json.loads(line))}
    except Refused as refusal:
        return {"refused": str(refusal)}
    except MemoryError:
        return {"refused": "it takes too much memory"}
    except RecursionError:
        return {"refused": "it is nested too deeply"}
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"[:2000]}
