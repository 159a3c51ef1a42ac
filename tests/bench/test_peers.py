"""How the peers are started and what is read from them; none is started here."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from kit import build, rpc, served, server, speeds, threads
from kit.ours import Decoded
from kit.streaming import Event, take_events


@pytest.fixture
def peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where they are built, as far as anybody can see."""
    monkeypatch.setattr(build, "PEERS", tmp_path)
    monkeypatch.setattr(build, "BUILT", tmp_path / "built.json")
    (tmp_path / "built.json").write_text(json.dumps({**build.wanted(), "compiler": "some compiler 1.2"}))
    return tmp_path


def option(command: list[str], name: str) -> str:
    """The word behind it."""
    return command[command.index(name) + 1]


# ---- what is built ------------------------------------------------------------------------------


def test_what_is_built_is_described(peers: Path) -> None:
    assert build.llama_server() == peers / "bin" / "llama-server"
    assert build.library_folder() == peers / "bin"
    found = build.describe()
    assert found["compiler"] == "some compiler 1.2"
    assert found["package"].startswith("llama-cpp-python ")
    assert "GGML_RPC=ON" in found["flags"]
    assert len(found["commit"]) >= 7, "the installed package names its commit"


@pytest.mark.parametrize("other", [{}, {"flags": []}, {"commit": "another"}])
def test_what_was_built_otherwise_is_not_used(peers: Path, other: dict[str, object]) -> None:
    (peers / "built.json").write_text(
        json.dumps({**build.wanted(), "compiler": "", **other} if other else {})
    )
    with pytest.raises(LookupError, match="make bench-peers"):
        build.llama_server()


def test_an_unfinished_build_is_not_used(peers: Path) -> None:
    (peers / "built.json").unlink()
    with pytest.raises(LookupError, match="make bench-peers"):
        build.rpc_server()


# ---- how they are started -----------------------------------------------------------------------


def test_the_server_has_the_recipe_of_our_side(peers: Path) -> None:
    command = server.command(Path("some.gguf"), threads=2, slots=8, n_ctx=1024, n_batch=512, n_ubatch=128)
    assert command[0] == str(peers / "bin" / "llama-server")
    words = {
        name: option(command, name) for name in ("-m", "-c", "-b", "-ub", "-t", "-tb", "-np", "-fa", "-ngl")
    }
    assert words == {
        "-m": "some.gguf",
        "-c": "1024",
        "-b": "512",
        "-ub": "128",
        "-t": "2",
        "-tb": "2",
        "-np": "8",
        "-fa": "on",
        "-ngl": "0",
    }
    assert option(command, "--host") == "127.0.0.1"


@pytest.mark.usefixtures("peers")
def test_rpc_servers_share_all_layers_equally() -> None:
    command = server.command(
        Path("some.gguf"), threads=1, slots=1, n_ctx=256, n_batch=64, n_ubatch=64, rpc=["a:1", "b:2"]
    )
    assert option(command, "--rpc") == "a:1,b:2"
    assert option(command, "--tensor-split") == "1,1"
    assert option(command, "-ngl") == "all"
    assert option(rpc.command(4711, 2), "-t") == "2"


def test_the_server_says_where_it_listens() -> None:
    assert server.port_in("srv  llama_server: listening on http://127.0.0.1:40123") == 40123


# ---- what is read from them ---------------------------------------------------------------------


def test_events_are_taken_as_they_become_whole() -> None:
    unread = bytearray(b': still there\n\ndata: {"a": 1}\n\ndata: {"a"')
    assert list(take_events(unread)) == [{"a": 1}]
    unread += b": 2}\n\ndata: [DONE]\n\n"
    assert list(take_events(unread)) == [{"a": 2}]
    assert unread == b""


def test_decode_is_timed_from_the_first_token_to_the_last() -> None:
    events = [
        Event(at=10.0, content={"content": "", "tokens": [], "stop": False}),
        Event(at=11.0, content={"content": "a", "tokens": [7], "stop": False}),
        Event(at=13.0, content={"content": "b", "tokens": [8], "stop": False}),
        Event(at=13.5, content={"content": "", "tokens": [], "stop": True, "tokens_predicted": 2}),
    ]
    found = server.decoded(events, began=10.5, n_tokens=2)
    assert found == Decoded(tokens=(7, 8), first_s=0.5, rest_s=2.0)
    with pytest.raises(RuntimeError, match="told of 2 tokens of 3"):
        server.decoded(events, began=10.5, n_tokens=3)


def test_our_own_stream_is_read_the_same_way() -> None:
    events = [
        Event(at=1.0, content={"choices": [{"text": "ab", "index": 0}]}),
        Event(at=2.0, content={"choices": [{"text": "c", "index": 0}]}),
        Event(at=2.1, content={"choices": [{"text": "", "index": 0, "finish_reason": "length"}]}),
        Event(at=2.2, content={"choices": [], "usage": {"completion_tokens": 3}}),
    ]
    found = served.streamed(events, began=0.5)
    assert (found.text, found.n_tokens) == ("abc", 3)
    assert (found.first_s, found.rest_s) == (0.5, 1.0)
    assert found.tokens_per_s == 2.0


# ---- what is made of it -------------------------------------------------------------------------


def test_it_is_said_where_two_texts_part() -> None:
    assert speeds.parting((1, 2, 3), (1, 5, 3)) == "token 1 of 3 is 5, not 2"
    assert speeds.parting((1, 2, 3), (1, 2)) == "2 tokens, not 3"


@pytest.mark.anyio
async def test_sides_that_drew_others_are_named() -> None:
    def side(*tokens: int) -> speeds.Decode:
        async def decode(prompt: object, n_tokens: int) -> Decoded:  # noqa: ARG001
            return Decoded(tokens=tokens, first_s=0.001, rest_s=0.5)

        return decode

    found = speeds.Speeds([1, 2], 2)
    sides = await found.measure({"one": side(4, 5, 6), "two": side(4, 5, 7)}, rounds=2)
    assert sides["one"].values == (4.0, 4.0)
    assert found.differences("one") == {"two": "token 2 of 3 is 7, not 6"}
    assert found.first_token_ms() == {"one": 1.0, "two": 1.0}


def test_numbers_of_threads() -> None:
    assert threads.usual()[0] == 1
    assert threads.usual()[-1] == threads.all_cores()
    parser = argparse.ArgumentParser()
    threads.add_threads(parser)
    assert parser.parse_args(["--threads", "1,3"]).threads == (1, 3)
    with pytest.raises(ValueError, match="at least 1"):
        threads.parse("0")
