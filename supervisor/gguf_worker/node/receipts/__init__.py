"""Receipts: what a node's works took, one for each work, whatever fails.

A work that goes on stands in a slot of a small file (`slots`), which each forward overwrites. When it is
settled it becomes a row in a SQLite file (`store`), and where there is a NATS server also a message of a
JetStream stream (`stream`, `publisher`). `query` lists and sums.
"""
