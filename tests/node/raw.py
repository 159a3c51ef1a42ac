"""The client's end of a stream, frame by frame: what no RemoteStage would do as well."""

from __future__ import annotations

from typing import Any

from gguf_worker.node import frames, versions
from gguf_worker.node.transport import TransportClosed
from gguf_worker.testing.memory_transport import MemoryLink
from gguf_worker_v1 import common_pb2, stage_pb2

HELLO = stage_pb2.Hello(version=versions.version(), software="tests")


class RawClient:
    """Sends whatever it is told, and numbers it."""

    def __init__(self, link: MemoryLink) -> None:
        self.link = link
        self.number = 0

    async def greet(self, hello: stage_pb2.Hello = HELLO) -> stage_pb2.Hello:
        """Both hellos."""
        await self.send_frame(stage_pb2.StageFrame(hello=hello))
        return (await self.receive()).hello

    async def open(self, identity: common_pb2.Identity, **fields: Any) -> stage_pb2.Opened:
        """Both hellos, and a session."""
        await self.greet()
        answer = await self.ask(open=stage_pb2.Open(identity=identity, **fields))
        assert answer.HasField("opened"), answer
        return answer.opened

    async def send(self, **body: Any) -> int:
        """A request with the next number, which it gives."""
        self.number += 1
        await self.send_frame(stage_pb2.StageFrame(request=self.number, **body))
        return self.number

    async def send_frame(self, frame: stage_pb2.StageFrame) -> None:
        await self.link.client.send(frame.SerializeToString())

    async def ask(self, **body: Any) -> stage_pb2.StageFrame:
        """A request and the next frame."""
        await self.send(**body)
        return await self.receive()

    async def receive(self) -> stage_pb2.StageFrame:
        return frames.decode(await self.link.client.receive()).message

    async def rest(self) -> tuple[list[stage_pb2.StageFrame], TransportClosed]:
        """Everything up to the end of the stream."""
        came = []
        while True:
            try:
                came.append(await self.receive())
            except TransportClosed as end:
                return came, end

    async def refusal(self) -> common_pb2.Error:
        """Why the stream was ended: the last frame, which speaks of no request."""
        came, _ = await self.rest()
        assert (came[-1].request, came[-1].WhichOneof("body")) == (0, "error")
        return came[-1].error


def tokens(
    position: int, *numbers: int, output: stage_pb2.Output = stage_pb2.OUTPUT_NONE
) -> stage_pb2.Forward:
    """A forward of the first stage."""
    return stage_pb2.Forward(position=position, tokens=numbers, output=output)
