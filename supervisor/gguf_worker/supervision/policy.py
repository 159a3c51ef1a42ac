"""When a worker that died is started again, and when it is given up. Pure: time and chance are arguments."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

CAUSES_KEPT = 16
"""Last failures that are remembered for the reason of a give-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How often a worker is started again, and how long after its death. Times are in seconds."""

    max_restarts: int = 5
    """Most restarts within `window_s`, and most in a row that did not lead to a stable run. 0: never."""
    window_s: float = 600.0
    """The sliding window in which restarts are counted."""
    backoff_initial_s: float = 0.5
    """Before the first restart after a stable run."""
    backoff_factor: float = 2.0
    """Each further restart waits this many times longer than the one before it."""
    backoff_max_s: float = 30.0
    """The longest wait, before jitter."""
    jitter: float = 0.2
    """Part of the wait, 0 to 1, by which it is lengthened or shortened at random: workers that died of one
    cause do not all come back in the same moment."""
    stable_after_s: float = 60.0
    """A worker that was ready for so long had a stable run: the backoff begins anew behind it."""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("max_restarts", self.max_restarts, 0),
            ("window_s", self.window_s, 0),
            ("backoff_initial_s", self.backoff_initial_s, 0),
            ("backoff_factor", self.backoff_factor, 1),
            ("backoff_max_s", self.backoff_max_s, 0),
            ("jitter", self.jitter, 0),
            ("stable_after_s", self.stable_after_s, 0),
        ):
            if not value >= least:
                raise ValueError(f"RestartPolicy.{name} is {value}; it must be at least {least}")
        for name in ("backoff_initial_s", "backoff_factor", "backoff_max_s"):
            if math.isinf(getattr(self, name)):
                raise ValueError(f"RestartPolicy.{name} is infinite; no worker would be started again")
        if self.jitter > 1:
            raise ValueError(f"RestartPolicy.jitter is {self.jitter}; it must be at most 1")

    @classmethod
    def never(cls) -> Self:
        """The first death is the last one."""
        return cls(max_restarts=0)

    def backoff_s(self, in_a_row: int, chance: float) -> float:
        """The wait before a restart that `in_a_row` unstable ones preceded; `chance` is in [0, 1)."""
        wait = self.backoff_initial_s
        for _ in range(in_a_row):
            if wait >= self.backoff_max_s:
                break
            wait *= self.backoff_factor
        return min(wait, self.backoff_max_s) * (1 + self.jitter * (2 * chance - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One death or failed start of a worker, as the policy sees it."""

    at: float
    """Of the caller's clock, in seconds."""
    cause: str
    """A short name that equal failures share: an exit cause, with the signal or status."""
    ready_for_s: float = 0.0
    """How long the worker had been ready; 0 where it never was."""
    may_retry: bool = True
    """False for what the next attempt would meet again: a rejected load, a wrong identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Start another worker after `delay_s`."""

    delay_s: float
    number: int
    """Restarts within the window, this one included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Start none."""

    reason: str
    """One line, with the last causes and how often each was met."""
    causes: tuple[str, ...]
    """The last failures, oldest first."""


Decision = Restart | GiveUp


@dataclass(slots=True)
class RestartHistory:
    """What has happened to one worker, and what follows from it.

    Two counts end a loop of crashes: restarts within the sliding window, however well each worker began;
    and restarts in a row without a stable run, however long each of them took. The second one is needed
    because a worker that takes minutes to load and then crashes would otherwise outlast any window.
    """

    policy: RestartPolicy
    _restarted_at: deque[float] = field(default_factory=deque)
    _in_a_row: int = 0
    _causes: deque[str] = field(default_factory=lambda: deque(maxlen=CAUSES_KEPT))

    def decide(self, failure: Failure, chance: Callable[[], float]) -> Decision:
        """What to do about a failure. `chance` gives numbers in [0, 1)."""
        self._causes.append(failure.cause)
        if not failure.may_retry:
            return self._give_up(f"{failure.cause}: another attempt would meet the same")
        if 0 < failure.ready_for_s >= self.policy.stable_after_s:
            self._in_a_row = 0
        while self._restarted_at and self._restarted_at[0] <= failure.at - self.policy.window_s:
            self._restarted_at.popleft()
        if self._in_a_row >= self.policy.max_restarts:
            return self._give_up(self._exhausted("in a row without a stable run", self._in_a_row))
        if len(self._restarted_at) >= self.policy.max_restarts:
            within = f"within {self.policy.window_s:g} s"
            return self._give_up(self._exhausted(within, len(self._restarted_at)))
        delay_s = self.policy.backoff_s(self._in_a_row, chance())
        self._restarted_at.append(failure.at + delay_s)
        self._in_a_row += 1
        return Restart(delay_s=delay_s, number=len(self._restarted_at))

    def reset(self) -> None:
        """Forgets every failure: whoever asks for it has mended the cause."""
        self._restarted_at.clear()
        self._causes.clear()
        self._in_a_row = 0

    def _exhausted(self, where: str, restarts: int) -> str:
        times = "1 restart" if restarts == 1 else f"{restarts} restarts"
        return f"{times} {where}; causes: {self._tally()}" if restarts else self._causes[-1]

    def _tally(self) -> str:
        return ", ".join(
            cause if n == 1 else f"{cause} ({n} times)" for cause, n in Counter(self._causes).items()
        )

    def _give_up(self, reason: str) -> GiveUp:
        return GiveUp(reason=reason, causes=tuple(self._causes))
