"""Services for links, smaller than a node's."""

from __future__ import annotations

import anyio

from gguf_worker.node.transport import Transport, TransportClosed


class Echo:
    """Sends back what it gets, and remembers how each stream ended."""

    def __init__(self) -> None:
        self.opened: list[Transport] = []
        self.accounts: list[str] = []
        self.endings: list[str] = []
        self.ended = anyio.Event()

    async def serve(self, transport: Transport, *, account: str = "") -> None:
        self.opened.append(transport)
        self.accounts.append(account)
        try:
            while True:
                await transport.send(await transport.receive())
        except TransportClosed as error:
            self.endings.append(error.code)
        except BaseException:
            self.endings.append("cancelled")
            raise
        finally:
            self.ended.set()


class Held:
    """Reads nothing until it may; then sends small frames back."""

    def __init__(self) -> None:
        self.go_on = anyio.Event()

    async def serve(self, transport: Transport, *, account: str = "") -> None:  # noqa: ARG002
        await self.go_on.wait()
        try:
            while True:
                frame = await transport.receive()
                if len(frame) < 100:
                    await transport.send(frame)
        except TransportClosed:
            return
