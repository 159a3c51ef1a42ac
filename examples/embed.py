"""A program that embeds one supervised worker, from its start to its release.

    python examples/embed.py MODEL.gguf --prompt "Once upon a time"

It generates greedily, and goes on where it was when the worker dies in the middle (try `kill -9` on the pid
that it prints, or --rehearse): the tokens are this program's, so another worker can be given them again.
Ctrl-C and SIGTERM let a running generation finish, for half a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys

import anyio

from gguf_worker import (
    EventReader,
    Output,
    RestartPolicy,
    Result,
    Session,
    ShardSpec,
    StderrLine,
    Supervisor,
    Utf8Stream,
    WorkerSettings,
)
from gguf_worker.errors import GgufWorkerError, WorkerDied

DRAIN_S = 30.0


async def main(options: argparse.Namespace) -> int:
    """One worker's life; gives the exit status."""
    spec = ShardSpec(options.model, engine=options.engine)
    settings = WorkerSettings(restart=RestartPolicy(max_restarts=3, window_s=300))
    supervisor = Supervisor(spec, settings=settings)
    status = 0
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(log, supervisor.events())  # ends when the supervisor was left
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, tasks.start_soon, stop, supervisor)
            await serve(supervisor, options)
    except* GgufWorkerError as failed:
        for error in failed.exceptions:
            print(f"error: {error}", file=sys.stderr)
        status = 1
    return status


async def serve(supervisor: Supervisor, options: argparse.Namespace) -> None:
    """What a service does while its worker is there."""
    async with supervisor as worker:
        print(f"ready: {worker.identity} in process {worker.pid}", file=sys.stderr)
        prompt = await worker.tokenize(options.prompt)
        await generate(supervisor, prompt, options.max_tokens, rehearse=options.rehearse)
        metrics = await supervisor.metrics()
        print(f"{metrics.totals.tokens_sampled} tokens, {metrics.restarts} restarts", file=sys.stderr)
    assert supervisor.release is not None
    print(f"left behind: {supervisor.release.unreleased or 'nothing'}", file=sys.stderr)


async def generate(supervisor: Supervisor, prompt: list[int], max_tokens: int, *, rehearse: bool) -> None:
    """Streams text. A session belongs to one process; when that dies, another gets the tokens again."""
    tokens: list[int] = []
    text = Utf8Stream()
    while len(tokens) < max_tokens:
        worker = await supervisor.wait_ready()  # raises GivenUp when restarts did not help
        try:
            async with await worker.open_session() as session:
                result = await step(session, prompt + tokens)
                while take(result, tokens, text) and len(tokens) < max_tokens:
                    if rehearse and len(tokens) == max_tokens // 2:
                        rehearse = False
                        os.kill(worker.pid, signal.SIGKILL)
                    result = await step(session, tokens[-1:])
                break
        except WorkerDied as death:
            print(f"\n{death.message}; going on with another", file=sys.stderr)
    print(text.finish())


async def stop(supervisor: Supervisor) -> None:
    """Lets what runs finish, but not for ever: whoever still waits then gets a WorkerStopped."""
    if not await supervisor.drain(DRAIN_S):
        supervisor.kill()


async def step(session: Session, tokens: list[int]) -> Result:
    """Forwards tokens and draws the next one."""
    return await session.forward(tokens=tokens, output=Output.TOKEN)


def take(result: Result, tokens: list[int], text: Utf8Stream) -> bool:
    """Keeps a token and prints its text; False at the model's own end."""
    tokens.append(result.token)
    if not result.end_of_generation:
        print(text.feed(result.text), end="", flush=True)
    return not result.end_of_generation


async def log(events: EventReader) -> None:
    """Follows what happens to the worker. However slow this is, the supervisor does not wait for it."""
    async for event in events:
        if not isinstance(event, StderrLine):
            print(event, file=sys.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", help="a GGUF file; with --engine fake a specification such as fake:layers=12"
    )
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--engine", default="llama")
    parser.add_argument(
        "--rehearse", action="store_true", help="kill the worker in the middle, to see it go on"
    )
    sys.exit(anyio.run(main, parser.parse_args()))
