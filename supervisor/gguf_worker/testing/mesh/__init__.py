"""A whole mesh on this machine, and what can befall it: `python -m gguf_worker.testing.mesh`.

node      a node as a process of its own
here      a node in this process
site      a server, nodes as processes, and a client of them
witness   every frame between client and nodes
strikes   a text, and a blow at one moment of it
cases     what can befall, one case each
mischief  repeated and reordered messages of the relay
frames    a client that never reads
clock     a step of the wall clock
storm     many works while processes are killed at random
streams   a text in which something is killed after each token, read by a client of OpenAI's API
audit     the receipts, compared with what was seen
equality  a model over nodes, compared with a local chain
demo      `make demo-mesh`
"""
