"""A node in a process of its own, to be killed: prints its address and runs until then."""

from __future__ import annotations

import anyio

from node.grpc.rigs import node


async def main() -> None:
    async with node() as running:
        print(running.address, flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
