"""Clients of a gateway that ask, stay or leave in any state of their requests, and ask again."""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from dataclasses import dataclass, field

import anyio

from kit.http import Address, post

STAYS_S = (0.0, 0.02, 0.1, 0.5, 3.0, 60.0)
"""After so many seconds a client loses its patience; one of these for each request."""
LEFT = "left"
WHOLE = "200"
FULL = "429"
WORD = "Hello "
_TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, and what became of it."""

    choices: int
    outcome: str
    """The status; `left` where the client did not wait; `error` and `broken` where a stream that had begun
    ended with an error, or without its end."""
    tokens: int = 0
    """That the answer says were drawn, of all choices."""


@dataclass(slots=True)
class Crowd:
    """Everybody's requests."""

    most_tokens: int
    """Of a choice."""
    asked: dict[str, Asked] = field(default_factory=dict)
    """By request id."""

    @property
    def outcomes(self) -> dict[str, int]:
        """How often each."""
        return dict(Counter(one.outcome for one in self.asked.values()).most_common())

    @property
    def problems(self) -> list[str]:
        """Outcomes that should not be."""
        return [
            f"{n} requests: {what}" for what, n in self.outcomes.items() if what not in (WHOLE, FULL, LEFT)
        ]

    async def come(self, address: Address, clients: int, seconds: float) -> None:
        """So many clients, for so long."""
        until = time.monotonic() + seconds
        async with anyio.create_task_group() as tasks:
            for index in range(clients):
                tasks.start_soon(self._client, address, index, until)

    async def _client(self, address: Address, index: int, until: float) -> None:
        """Request after request, each over a connection of its own."""
        chance = random.Random(index)
        number = 0
        while time.monotonic() < until:
            request_id, body = f"client-{index}-{number}", body_of(chance, self.most_tokens)
            outcome, tokens = LEFT, 0
            with anyio.move_on_after(chance.choice(STAYS_S)):
                outcome, tokens = outcome_of(await _answer(address, body, request_id))
            choices = body["n"]
            assert isinstance(choices, int)
            self.asked[request_id] = Asked(choices=choices, outcome=outcome, tokens=tokens)
            number += 1
            if outcome == FULL:
                await anyio.sleep(chance.random())


def body_of(chance: random.Random, most_tokens: int) -> dict[str, object]:
    """A request for completions."""
    is_streamed = chance.random() < 0.7
    return {
        "prompt": WORD * chance.randrange(1, 40),
        "max_tokens": chance.randint(1, most_tokens),
        "stream": is_streamed,
        **({"stream_options": {"include_usage": True}} if is_streamed else {}),
        "n": chance.choice((1, 1, 1, 2)),
    }


def outcome_of(answer: bytes) -> tuple[str, int]:
    """What an answer that was read to its end says, and how many tokens it counts."""
    status = answer[9:12].decode()
    if status != WHOLE:
        return status or "broken", 0
    if b'"error"' in answer:
        return "error", 0
    is_stream = b"text/event-stream" in answer
    counted = _TOKENS.findall(answer)
    if not counted or (is_stream and b"data: [DONE]" not in answer):
        return "broken", 0
    return WHOLE, int(counted[-1])


async def _answer(address: Address, body: object, request_id: str) -> bytes:
    answer = bytearray()
    async with await post(address, "/v1/completions", body, request_id=request_id) as stream:
        async for piece in stream:
            answer += piece
    return bytes(answer)
