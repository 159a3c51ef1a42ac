"""Bytes through pipes that are full, closed, or slow to be read."""

from __future__ import annotations

import os
from collections.abc import Iterator

import anyio
import pytest

from gguf_worker.process.pipes import Descriptor, open_pipe
from gguf_worker.process.transport import FrameWriter, read_while

pytestmark = pytest.mark.anyio


class Pipe:
    """A pipe whose write end is ours and non-blocking."""

    def __init__(self) -> None:
        read_end, write_end = open_pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        self.reader, self.writer = Descriptor(read_end), Descriptor(write_end)

    def fill(self) -> int:
        """Fills it; how many bytes went in."""
        count = 0
        try:
            while True:
                count += os.write(self.writer.number, bytes(65536))
        except BlockingIOError:
            return count

    def read(self) -> bytes:
        try:
            return os.read(self.reader.number, 1 << 22)
        except BlockingIOError:
            return b""


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.reader.close()
    pipe.writer.close()


async def read_all(pipe: Pipe, count: int) -> bytes:
    data = b""
    with anyio.fail_after(10):
        while len(data) < count:
            await anyio.wait_readable(pipe.reader.number)
            data += pipe.read()
    return data


async def test_post_writes_at_once_what_the_pipe_takes(pipe: Pipe) -> None:
    """No task is needed for a frame that fits."""
    writer = FrameWriter(descriptor=pipe.writer, on_broken=lambda: pytest.fail("not broken"))
    ticket = writer.post([b"head", memoryview(b"body")])
    assert ticket.written
    assert pipe.read() == b"headbody"


async def test_frames_larger_than_the_pipe_arrive_whole_and_in_order(pipe: Pipe) -> None:
    """Frames that wait are written one after the other, never into each other."""
    writer = FrameWriter(descriptor=pipe.writer, on_broken=lambda: pytest.fail("not broken"))
    frames = [bytes([index]) * 3_000_000 for index in range(3)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        for frame in frames:
            writer.post([frame[:10], memoryview(frame)[10:]])
        assert await read_all(pipe, 9_000_000) == b"".join(frames)
        tasks.cancel_scope.cancel()


async def test_withdrawn_frame_is_not_written_unless_it_was_begun(pipe: Pipe) -> None:
    """A frame that waits can be taken back; one that was begun goes on from a copy of the sender's memory."""
    writer = FrameWriter(descriptor=pipe.writer, on_broken=lambda: pytest.fail("not broken"))
    size = 4_000_000
    memory = bytearray(b"a" * size)
    begun, waiting = writer.post([memoryview(memory)]), writer.post([b"b" * 10])
    last = writer.post([b"c" * 10])
    assert not writer.withdraw(begun)
    assert writer.withdraw(waiting)
    memory[:] = b"z" * size
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        data = await read_all(pipe, size + 10)
        tasks.cancel_scope.cancel()
    assert data == b"a" * size + b"c" * 10
    assert last.written


async def test_post_into_a_full_pipe_waits_for_room(pipe: Pipe) -> None:
    """Nothing is written before there is room, and then everything."""
    writer = FrameWriter(descriptor=pipe.writer, on_broken=lambda: pytest.fail("not broken"))
    filled = pipe.fill()
    ticket = writer.post([b"late"])
    assert not ticket.started
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run)
        assert (await read_all(pipe, filled + 4))[-4:] == b"late"
        tasks.cancel_scope.cancel()
    assert ticket.written


async def test_broken_pipe_is_told_once_and_later_frames_are_dropped(pipe: Pipe) -> None:
    """A reader that is gone is no error of the sender; whoever owns the process hears of it once."""
    told = []
    writer = FrameWriter(descriptor=pipe.writer, on_broken=lambda: told.append(True))
    pipe.reader.close()
    writer.post([b"x"])
    writer.post([b"y"])
    assert told == [True]


async def test_close_wakes_a_writer_that_waits(pipe: Pipe) -> None:
    """The end of file can be given while a frame waits for room."""
    writer = FrameWriter(descriptor=pipe.writer, on_broken=lambda: pytest.fail("not broken"))
    pipe.fill()
    writer.post([b"never"])
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.run)
            await anyio.wait_all_tasks_blocked()
            writer.close()


async def test_read_while_raises_what_its_callback_raises(pipe: Pipe) -> None:
    """An error in the callback ends the task that reads, and no other."""

    def fail() -> bool:
        raise KeyError

    os.write(pipe.writer.number, b"x")
    with anyio.fail_after(10), pytest.raises(KeyError):
        await read_while(pipe.reader, fail)
    assert pipe.read() == b"x"


async def test_descriptor_knows_whether_it_is_closed(pipe: Pipe) -> None:
    """A number that stands for another file by now counts as closed."""
    assert not pipe.reader.verify_closed()
    number = pipe.reader.number
    pipe.reader.close()
    pipe.reader.close()
    assert pipe.reader.verify_closed()
    other = Descriptor(os.open(os.devnull, os.O_RDONLY))
    try:
        assert other.number == number
        assert pipe.reader.verify_closed()
    finally:
        other.close()
