"""Makes everything befall a mesh on this machine that may, and prints the table: `make faults-mesh`.

Exit status 0 where every promise is kept, 1 where one is not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import anyio

from gguf_worker.supervision.spec import ShardSpec
from gguf_worker.testing import report
from gguf_worker.testing.mesh.audit import Audit, audit
from gguf_worker.testing.mesh.cases import N_TOKENS, CaseResult, all_cases, run_case
from gguf_worker.testing.mesh.clock import stepped_clock
from gguf_worker.testing.mesh.equality import Equality, equality
from gguf_worker.testing.mesh.every_token import DEMO_RECIPE, Sweep, demo, every_token
from gguf_worker.testing.mesh.site import FAKE, Held, Site, site, undisturbed
from gguf_worker.testing.mesh.storm import AT_ONCE, Storm, storm
from gguf_worker.testing.mesh.streams import streamed


def main() -> int:
    options = _options()
    evidence: dict[str, object] = {}
    kept = True
    if "cases" in options.only:
        kept = anyio.run(_run_cases, options, evidence) and kept
    if "storm" in options.only:
        kept = anyio.run(_run_storm, options, evidence) and kept
    if "every-token" in options.only:
        kept = anyio.run(_run_every_token, options, evidence) and kept
    if "streams" in options.only:
        kept = anyio.run(_run_streams, options, evidence) and kept
    if "equality" in options.only and options.model is not None:
        kept = anyio.run(_run_equality, options, evidence) and kept
    if options.evidence is not None:
        content = {**anyio.run(report.circumstances, _command(options)), **evidence}
        report.write(options.evidence / "faults-mesh.json", content)
    return 0 if kept else 1


# ---- what is run --------------------------------------------------------------------------------


async def _run_cases(options: argparse.Namespace, evidence: dict[str, object]) -> bool:
    expected = await undisturbed(N_TOKENS)
    results: list[CaseResult] = []
    async with site() as here:
        for case in all_cases():
            if options.case in case.name:
                results.append(await run_case(case, here, expected))
                print(case_line(results[-1]), flush=True)
        found = await _audit(here)
    clock = await _clock()
    print(audit_line(found, "all cases"), flush=True)
    evidence["cases"] = [_case_json(result) for result in results] + [clock]
    evidence["cases_receipts"] = asdict(found)
    return not (found.problems or clock["problems"] or any(result.problems for result in results))


async def _run_storm(options: argparse.Namespace, evidence: dict[str, object]) -> bool:
    expected = await undisturbed(N_TOKENS)
    started = time.perf_counter()
    async with site() as here:
        told = await storm(here, expected, options.works, options.seed, on_work=_say_how_far)
        took_s = time.perf_counter() - started
        found = await _audit(here)
    print(storm_line(told, options.works, took_s), flush=True)
    print(audit_line(found, f"{options.works} works"), flush=True)
    evidence["storm"] = {
        "works": options.works,
        "at_once": AT_ONCE,
        "took_s": round(took_s, 1),
        "ended": dict(told.ended),
        "killed": dict(told.blows),
        "stages_brought_back": told.replays,
        "errors": sorted(set(told.errors)),
        "problems": told.problems,
        "receipts": asdict(found),
    }
    return not (told.problems or found.problems)


def _say_how_far(told: Storm) -> None:
    """A sign of life for who waits."""
    if told.ended.total() % 1000 == 0:
        killed = told.blows.total()
        print(f"     {told.ended.total()} works, {killed} processes killed", file=sys.stderr, flush=True)


async def _run_every_token(options: argparse.Namespace, evidence: dict[str, object]) -> bool:
    held, whole = _model(options)
    async with site(held) as here:
        sweeps = await every_token(here, whole, on_sweep=_show_sweep)
        found = await _audit(here)
    print(audit_line(found, "these texts"), flush=True)
    evidence["every_token"] = {"texts": [asdict(sweep) for sweep in sweeps], "receipts": asdict(found)}
    return not (found.problems or any(sweep.problems for sweep in sweeps))


async def _run_streams(options: argparse.Namespace, evidence: dict[str, object]) -> bool:
    held, whole = _model(options)
    async with site(held) as here:
        sweeps = await streamed(here, whole, on_sweep=_show_sweep)
        found = await _audit(here)
    print(audit_line(found, "these streams"), flush=True)
    evidence["streams"] = {"texts": [asdict(sweep) for sweep in sweeps], "receipts": asdict(found)}
    return not (found.problems or any(sweep.problems for sweep in sweeps))


def _model(options: argparse.Namespace) -> tuple[Held, ShardSpec]:
    """What nodes hold and what is in one worker: of the model that is given, else of the fake one."""
    if options.model is None:
        return FAKE, ShardSpec(FAKE.model, engine="fake")
    return demo(options.model), ShardSpec(str(options.model), recipe=DEMO_RECIPE)


def _show_sweep(sweep: Sweep) -> None:
    print(sweep_line(sweep), flush=True)


async def _run_equality(options: argparse.Namespace, evidence: dict[str, object]) -> bool:
    results = await equality(options.model)
    for result in results:
        print(equality_line(result), flush=True)
    evidence["equality"] = [asdict(result) for result in results]
    return not any(result.different for result in results)


async def _clock() -> dict[str, object]:
    started = time.perf_counter()
    problems, known = await stepped_clock(N_TOKENS)
    name, promise = "an hour's step of the wall clock, ahead and back", "no lease ends, the same text"
    took_s = time.perf_counter() - started
    print(_line(name, f"the same text, {known} nodes registered", took_s, problems), flush=True)
    return {"name": name, "promise": promise, "took_s": round(took_s, 2), "problems": problems}


async def _audit(here: Site) -> Audit:
    """Of what the nodes wrote down, when they have ended."""
    ledgers = {name: node.spec.ledger for name, node in here.nodes.items()}
    await here.stop_all()
    return await audit(ledgers, here.witness.works, here.nats)


# ---- what is shown ------------------------------------------------------------------------------


def case_line(result: CaseResult) -> str:
    """One line of the table, as it comes."""
    return _line(result.case.name, result.found, result.took_s, result.problems)


def _line(name: str, found: str, took_s: float, problems: Sequence[str]) -> str:
    mark = "FAIL" if problems else "ok  "
    head = f"{mark} {name:52} {took_s:6.1f} s  {found}"
    return head + "".join(f"\n     {problem}" for problem in problems)


def audit_line(found: Audit, what: str) -> str:
    """What the receipts say."""
    mark = "FAIL" if found.problems else "ok  "
    text = (
        f"{mark} receipts of {what}: {found.works} works have {found.receipts} receipts of nodes, "
        f"one each, {found.rows} rows, {found.interrupted} interrupted; ledgers and stream say the same"
    )
    return text + "".join(f"\n     {problem}" for problem in found.problems)


def storm_line(told: Storm, n_works: int, took_s: float) -> str:
    """What became of many works."""
    mark = "FAIL" if told.problems else "ok  "
    blows = ", ".join(f"{count} {what}s killed" for what, count in sorted(told.blows.items()))
    ended = ", ".join(f"{count} {reason}" for reason, count in told.ended.most_common())
    text = f"{mark} {n_works} works in {took_s:.0f} s: {blows}; {told.replays} stages brought back; {ended}"
    said = [*told.problems, *sorted(set(told.errors))[:8]]
    return text + "".join(f"\n     {line}" for line in said)


def sweep_line(sweep: Sweep) -> str:
    """What became of a text with a kill after every token."""
    found = (
        f"{sweep.tokens} tokens, {sweep.kills} kills, {sweep.stages_brought_back} stages brought back; "
        f"{sweep.pause_ms_p50:.0f} ms between tokens (p50), {sweep.pause_ms_max:.0f} ms at most"
    )
    return _line(sweep.name, found, sweep.took_s, sweep.problems)


def equality_line(result: Equality) -> str:
    """What was compared with the local chain."""
    mark = "FAIL" if result.different else "ok  "
    return (
        f"{mark} {result.name}: {result.compared:,} logits compared with a local chain, {result.different} "
        f"different; {result.tokens} tokens, the same"
    )


def _case_json(result: CaseResult) -> dict[str, object]:
    return {
        "name": result.case.name,
        "promise": result.case.promise,
        "found": result.found,
        "took_s": round(result.took_s, 2),
        "problems": list(result.problems),
    }


def _command(options: argparse.Namespace) -> str:
    """The command, without a place on this machine."""
    model = " --model MODEL" if options.model is not None else ""
    return f"python -m gguf_worker.testing.mesh --works {options.works} --seed {options.seed}{model}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gguf_worker.testing.mesh", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parts = ("cases", "storm", "every-token", "streams", "equality")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="what to run; all by default")
    parser.add_argument("--case", default="", help="only cases with this in their name")
    parser.add_argument("--works", type=int, default=10_000, help="of the storm")
    parser.add_argument("--seed", type=int, default=1, help="of the storm's chance")
    parser.add_argument("--model", type=Path, help="a GGUF file, for its logits and texts")
    parser.add_argument("--evidence", type=Path, help="a folder that faults-mesh.json is written to")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
