"""`python -m gguf_worker.cli` is the command `gguf-worker`."""

from gguf_worker.cli.app import main

main()
