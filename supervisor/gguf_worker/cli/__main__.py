"""`python -m gguf_worker.cli` is the command `gguf-worker`."""

from gguf_worker.cli import main

main()
