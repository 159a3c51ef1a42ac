"""The figures of supervision: one file per promise, each with one function that measures it."""
