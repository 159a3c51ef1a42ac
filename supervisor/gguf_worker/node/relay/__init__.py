"""The relay: whole frames between a client and a node that cannot be dialled, over NATS subjects.

NATS delivers what it delivers in order and at most once, and loses what it holds when a server or a
connection ends. `link` makes a reliable stream of frames of that, and knows nothing of NATS; `transport` puts
a link on two subjects; `listener` and `dialer` are the two ends. docs/node.md has the rules.
"""
