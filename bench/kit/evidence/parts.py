"""The commands whose outcome is evidence."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kit.evidence.folder import SETTING, Folder

ROOT = Path(__file__).parents[3]
BENCH = ROOT / "bench"
PARTS = ("setting", "bench", "faults", "faults-mesh", "certificate")
"""In the order in which they are run."""
CERTIFICATE = "certificate-smollm2-135m-q4_1"
LONGER = {"gateway": ["--seconds", "300"]}
"""What a bench is told that takes its time for evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One of them."""

    name: str
    """Its file in the folder without `.json`; of a program that writes several, what they begin with."""
    part: str
    arguments: tuple[str, ...]
    """Behind the interpreter."""
    shown: str
    """As a reader would type it."""


def commands(model: Path, folder: Folder, *, is_tiny: bool = False) -> list[Command]:
    """All, in order. Tiny ones are only to see that they run."""
    made = [_setting(), *(_bench(question, is_tiny) for question in questions())]
    made += [_faults(is_tiny), _faults_mesh(is_tiny), _certificate(folder, is_tiny)]
    return [_placed(command, model, folder) for command in made]


def questions() -> list[str]:
    """Names of what is in bench/."""
    return sorted(path.stem for path in BENCH.glob("*.py"))


def chosen(all_commands: Sequence[Command], names: Sequence[str], done: set[str]) -> list[Command]:
    """Those that parts or single commands are named of; without any name, those that are not done yet.
    Raises ValueError for a name that there is not."""
    known = {command.name for command in all_commands} | {command.part for command in all_commands}
    if unknown := sorted(set(names) - known):
        raise ValueError(f"no part or command is called {', '.join(unknown)}; there are {sorted(known)}")
    if not names:
        return [command for command in all_commands if command.name not in done]
    return [command for command in all_commands if {command.name, command.part} & set(names)]


# ---- each of them -------------------------------------------------------------------------------

MODEL, FOLDER = "MODEL", "FOLDER"
"""Stand for what they are, in arguments and in what is shown."""


def _setting() -> Command:
    words = ["-m", "kit.evidence.setting", MODEL, "--evidence", FOLDER]
    return _command("setting", "setting", words, "PYTHONPATH=bench:tests python")


def _bench(question: str, is_tiny: bool) -> Command:
    more = ["--tiny"] if is_tiny else LONGER.get(question, [])
    words = [f"bench/{question}.py", MODEL, *more, "--evidence", FOLDER]
    return _command(f"bench-{question}", "bench", words, "PYTHONPATH=tests python")


def _faults(is_tiny: bool) -> Command:
    words = ["-m", "gguf_worker.testing", "--model", MODEL, "--evidence", FOLDER]
    return _command("faults", "faults", [*words, *(["--only", "limit"] if is_tiny else [])])


def _faults_mesh(is_tiny: bool) -> Command:
    words = ["-m", "gguf_worker.testing.mesh", "--model", MODEL, "--evidence", FOLDER]
    less = ["--only", "storm", "--works", "50"]
    return _command("faults-mesh", "faults-mesh", [*words, *(less if is_tiny else [])])


def _certificate(folder: Folder, is_tiny: bool) -> Command:
    """Of each division that the benches run with, so that its shards are known to be exact."""
    splits = folder.read(SETTING).get("splits", [])
    cuts = [",".join(map(str, split["cuts"])) for split in splits if split["cuts"]]
    recipe = ["--ctx-size", "512", "--threads", "1", "--no-kv-unified"]
    words = ["certify", MODEL, *recipe, "--steps", "1" if is_tiny else "8"]
    words += [word for text in (cuts[:1] if is_tiny else cuts) for word in ("--cuts", text)]
    words += ["--output", f"{FOLDER}/{CERTIFICATE}.json"]
    return Command(
        name=CERTIFICATE,
        part="certificate",
        arguments=("-m", "gguf_worker.cli", *words),
        shown=" ".join(["gguf-worker", *words]),
    )


def _command(name: str, part: str, words: Sequence[str], interpreter: str = "python") -> Command:
    return Command(name=name, part=part, arguments=tuple(words), shown=" ".join([interpreter, *words]))


def _placed(command: Command, model: Path, folder: Folder) -> Command:
    """With the model and the folder of this machine in the arguments."""

    def place(word: str) -> str:
        if word == MODEL:
            return str(model)
        return str(folder.path) + word.removeprefix(FOLDER) if word.startswith(FOLDER) else word

    arguments = tuple(place(word) for word in command.arguments)
    return Command(name=command.name, part=command.part, arguments=arguments, shown=command.shown)


def line_of(command: Command) -> list[str]:
    """For the system."""
    return [sys.executable, *command.arguments]
