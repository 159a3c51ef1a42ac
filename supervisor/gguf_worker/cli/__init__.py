"""The command line: each command parses into a frozen config and calls one function."""

from __future__ import annotations

import signal
import sys

__all__ = ["main"]


def main() -> None:
    """The console script: runs the command line and exits with its status."""
    try:
        # Imported here, because the imports take long enough to be interrupted.
        from gguf_worker.cli.app import run_command_line

        status = run_command_line()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        status = 130
    sys.exit(status)
