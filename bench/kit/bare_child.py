"""The other end of `kit.bare`: `bare_child.py READ WRITE`, until the end of its input."""

from __future__ import annotations

import os
import sys


def main(n_read: int, n_write: int) -> None:
    into, out = memoryview(bytearray(n_read)), memoryview(bytes(n_write))
    while True:
        rest = into
        while rest:
            count = os.readv(0, [rest])
            if count == 0:
                return
            rest = rest[count:]
        rest = out
        while rest:
            rest = rest[os.writev(1, [rest]) :]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
