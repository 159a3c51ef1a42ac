"""The pipe protocol without I/O: frames, messages and the host's state machine. See docs/protocol.md."""
