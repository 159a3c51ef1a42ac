"""`gguf-worker certify`: measures whether a cut model computes what the unsplit one does."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.status import Status

from gguf_worker.certification import Certificate, CertifyPlan, Comparison, certify, default_prompts
from gguf_worker.cli.division import check_may_be_cut
from gguf_worker.cli.errors import EXIT_FAILED, CommandError
from gguf_worker.cli.inspect import InspectConfig, look_at
from gguf_worker.cli.layers import ranges_of_cuts
from gguf_worker.cli.options import RecipeOptions, arguments_of
from gguf_worker.cli.text import plain_table, print_json, printable
from gguf_worker.supervision.spec import ShardSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyConfig:
    spec: ShardSpec
    """The whole model and the recipe."""
    cuts: tuple[tuple[int, ...], ...]
    """Empty: halves and thirds, where the model may be cut."""
    prompts: tuple[str, ...]
    """Empty: the built-in ones."""
    n_steps: int
    output: Path | None
    command: str
    json: bool


async def certify_model(config: CertifyConfig) -> int:
    """Prints the table or the certificate, writes the file, and gives the exit status: 0 only where every cut
    equals the unsplit model."""
    spec = config.spec
    if config.output is not None:
        check_output(config.output)
    found = await look_at(
        InspectConfig(model=spec.model, engine=spec.engine, cache_dir=spec.cache_dir, json=config.json)
    )
    check_may_be_cut(spec.model, found)
    plan = CertifyPlan(
        spec=spec,
        found=found,
        cuts=config.cuts or usual_cuts(found.allowed_cuts),
        prompts=config.prompts or default_prompts(),
        n_steps=config.n_steps,
        command=config.command,
    )
    check_cuts(plan)
    with _Reporter(silent=config.json) as reporter:
        certificate = await certify(plan, on_progress=reporter.report)
    # Shown first: what took long to measure is not lost where the file cannot be written after all.
    if config.json:
        print_json(certificate.to_map())
    else:
        print(describe(certificate))
    if config.output is not None:
        write(certificate, config.output)
    return 0 if certificate.is_exact else EXIT_FAILED


def command_line(
    model: str, recipe: RecipeOptions, cuts: Sequence[str], prompts: Sequence[str], n_steps: int
) -> str:
    """The command that measures the same again, wherever the model lies."""
    words = ["gguf-worker", "certify", Path(model).name, *arguments_of(recipe), "--steps", str(n_steps)]
    words += [word for text in cuts for word in ("--cuts", text)]
    words += [word for text in prompts for word in ("--prompt", text)]
    return shlex.join(words)


def usual_cuts(allowed: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Halves, and thirds where there are two cuts to make. Empty where the model cannot be cut."""
    if not allowed:
        return ()
    halves = (allowed[len(allowed) // 2],)
    third = (len(allowed) - 1) // 3
    thirds = (allowed[third], allowed[-1 - third])
    return (halves, thirds) if thirds[0] < thirds[1] else (halves,)


def check_cuts(plan: CertifyPlan) -> None:
    """Raises CommandError for a cut that is outside the model, or where there is none to make. What the
    architecture does not allow is refused by the worker, with the allowed ones."""
    if not plan.cuts:
        raise CommandError(
            f"{plan.spec.model} has no place to be cut: {plan.found.n_layer} layers, cut period "
            f"{plan.found.cut_period}",
            exit_status=EXIT_FAILED,
        )
    for cuts in plan.cuts:
        ranges_of_cuts(cuts, plan.found.n_layer)


def check_output(path: Path) -> None:
    """Raises CommandError where a file cannot be written, before anything is measured for it."""
    if path.is_dir():
        raise CommandError(f"--output {path} is a folder", remedy="name a file in it")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise CommandError(
            f"--output {path} cannot be written: {error.strerror}",
            remedy="check its folder and the permissions there",
        ) from error


def write(certificate: Certificate, path: Path) -> None:
    """Writes the certificate as JSON; the file appears whole or not at all. Raises OSError."""
    beside = path.with_name(path.name + ".partial")
    try:
        beside.write_text(json.dumps(certificate.to_map(), indent=2) + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def describe(certificate: Certificate) -> str:
    """The whole certificate as text."""
    rows = [
        (",".join(map(str, cut.cuts)), kind, *_figures(part))
        for cut in certificate.cuts
        for kind, part in (("alone", cut.alone), ("row by row", cut.stepwise), ("batched", cut.batched))
    ]
    columns = ("cut before", "computed", "logits compared", "different", "largest difference")
    verdict = "every cut equals the unsplit model, bit for bit" if certificate.is_exact else "NOT EQUAL"
    return "\n".join(
        (
            plain_table(columns, rows),
            "",
            f"verdict          {verdict}",
            f"batch-invariant  {_invariance(certificate.batch_invariance)}",
            f"chunk-invariant  {_invariance(certificate.chunk_invariance)}",
            f"artifact         {certificate.artifact}",
            f"certificate      {certificate.id}",
        )
    )


def _figures(part: Comparison) -> tuple[str, str, str]:
    return str(part.compared), str(part.different), f"{part.largest:g}"


def _invariance(part: Comparison) -> str:
    if part.is_exact:
        return f"yes: {part.compared} logits compared, none different"
    return f"no: {part.different} of {part.compared} logits differ, by {part.largest:g} at most"


class _Reporter:
    """What is done now, on stderr: one line that changes on a terminal, one line each elsewhere."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self._status: Status | None = None
        if not silent and sys.stderr.isatty():
            self._status = Console(stderr=True).status("starting the unsplit model")

    def __enter__(self) -> _Reporter:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def report(self, what: str, done: int, total: int) -> None:
        line = f"{printable(what)} ({done} of {total})"
        if self._status is not None:
            self._status.update(line)
        elif not self._silent:
            print(line, file=sys.stderr, flush=True)
