"""One suite of behaviour for every engine, in process and through the worker.

A test here talks to a `Shard` (see `shard.py`) and does not know which engine it is, nor whether a pipe lies
between. What is true of a shard is said once and holds for all four.
"""
