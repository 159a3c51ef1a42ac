"""The node service: supervised stages as parts of a mesh.

What travels between machines is the protobuf package `gguf_worker.v1`; its generated types are used as they
are in this room, and nowhere else.
"""
