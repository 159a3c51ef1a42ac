"""Running the command line as its users do: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class CommandLine:
    """`gguf-worker` with a cache folder of its own, by which its workers are found."""

    cache_dir: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "GGUF_WORKER_CACHE": str(self.cache_dir), "COLUMNS": "100"}

    @staticmethod
    def command(*arguments: str | Path) -> list[str]:
        return [sys.executable, "-m", "gguf_worker.cli", *map(str, arguments)]

    def __call__(
        self,
        *arguments: str | Path,
        wrapper: Sequence[str] = (),
        before_exec: Callable[[], None] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Runs it to its end; `wrapper` is a command that runs the rest of its arguments."""
        return subprocess.run(
            [*wrapper, *self.command(*arguments)],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            preexec_fn=before_exec,
        )

    def workers(self) -> list[psutil.Process]:
        """Living worker processes that were started with this cache folder."""
        return [process for process in psutil.process_iter() if self._is_worker(process)]

    def _is_worker(self, process: psutil.Process) -> bool:
        try:
            if "gguf-shard-wor" not in process.name() or process.status() == psutil.STATUS_ZOMBIE:
                return False
            return process.environ().get("GGUF_WORKER_CACHE") == str(self.cache_dir)
        except psutil.Error:
            return False

    def leftovers(self) -> list[Path]:
        """Files in the cache that no finished run may leave behind."""
        files = (path for path in self.cache_dir.rglob("*") if path.is_file())
        return [path for path in files if path.parent.name not in ("digests", "locks")]
