"""`gguf-worker receipts` as a person and a program see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commandline import CommandLine
from gguf_worker.cli.errors import CommandError
from gguf_worker.cli.receipts import COLUMNS, parse_moment
from gguf_worker.node.nats import NatsOptions, connect_nats
from gguf_worker.node.receipts.store import Store
from gguf_worker.node.receipts.stream import make_stream, publish
from gguf_worker.testing.nats import NatsServer
from ledgers import receipt

RECEIPTS = [
    receipt("one", account="alice", rows=5, tokens_sampled=2, compute_us=1500, settled_at_ms=1_000),
    receipt("two", account="\x1b[31mbob", rows=7, finish_reason="cancelled", settled_at_ms=90_000_000),
]


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "receipts.sqlite"
    with Store(path) as store:
        store.insert(RECEIPTS)
    return path


def test_table_ends_with_totals(gguf_worker: CommandLine, ledger: Path) -> None:
    shown = gguf_worker("receipts", "--ledger", ledger, "--limit", "1")
    assert (shown.returncode, shown.stderr) == (0, "")
    head, row, total = shown.stdout.splitlines()
    assert head.split() == list(COLUMNS)
    assert row.split()[:3] == ["1970-01-02T01:00:00.000Z", "two", "node-a"]
    assert "\x1b" not in row
    assert total == "2 receipts: 12 rows, 2 tokens, 0.002 s computed; the newest 1 are shown"


def test_programs_get_every_field(gguf_worker: CommandLine, ledger: Path) -> None:
    shown = gguf_worker("receipts", "--ledger", ledger, "--until", "1970-01-02T00:00Z", "--json")
    (found,) = json.loads(shown.stdout)["receipts"]
    assert (found["work_id"], found["rows"], found["layers"]) == ("one", 5, ["0:8"])
    assert set(found) == {field.name for field in RECEIPTS[0].DESCRIPTOR.fields}


def test_sums(gguf_worker: CommandLine, ledger: Path) -> None:
    shown = gguf_worker("receipts", "--ledger", ledger, "--sum", "finish_reason", "--json")
    sums = {each["value"]: each["rows"] for each in json.loads(shown.stdout)["sums"]}
    assert sums == {"stop": 5, "cancelled": 7}
    assert "alice" in gguf_worker("receipts", "--ledger", ledger, "--sum", "account").stdout


def test_missing_ledger_is_one_line(gguf_worker: CommandLine, tmp_path: Path) -> None:
    shown = gguf_worker("receipts", "--ledger", tmp_path / "none")
    assert shown.returncode == 1
    assert shown.stderr.startswith("error: there is no ledger")
    assert shown.stderr.count("\n") == 1


@pytest.mark.anyio
async def test_receipts_of_a_mesh(gguf_worker: CommandLine) -> None:
    async with NatsServer(jetstream=True) as server:
        async with connect_nats(NatsOptions(servers=(server.url,))) as nats:
            await make_stream(nats)
            for each in RECEIPTS:
                await publish(nats, each)
        shown = gguf_worker("receipts", "--tracker", server.url, "--json", "--account", "alice")
        assert [each["work_id"] for each in json.loads(shown.stdout)["receipts"]] == ["one"]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:01Z", 60_000),
        ("1970-01-02T01:00:00.5+01:00", 86_400_500),
        ("90s", 999_910_000),
        ("2h", 992_800_000),
        ("9w", 0),
    ],
)
def test_moments(text: str, ms: int) -> None:
    assert parse_moment(text, now=1_000_000) == ms


@pytest.mark.parametrize("text", ["", "yesterday", "5y", "-3h", "2026-13-01"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(CommandError, match="is no time"):
        parse_moment(text)
