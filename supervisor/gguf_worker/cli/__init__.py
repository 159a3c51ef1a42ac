"""The command line: each command parses into a frozen config and calls one function."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """The console script: runs the command line and exits with its status."""
    try:
        # Imported here, because imports take long enough to be interrupted.
        from gguf_worker.cli.app import run_command_line

        status = run_command_line()
        _ignore_interrupts()
    except KeyboardInterrupt:
        _ignore_interrupts()
        status = 130
    sys.exit(status)


def _ignore_interrupts() -> None:
    """The command has ended: another Ctrl-C changes nothing."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
