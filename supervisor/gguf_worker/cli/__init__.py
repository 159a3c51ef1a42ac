"""The command line: each command parses into a frozen config and calls one function."""

from gguf_worker.cli.app import main

__all__ = ["main"]
