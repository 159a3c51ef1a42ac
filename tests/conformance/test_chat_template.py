"""The artifact's own chat templates, as its file has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.in_process import InProcess
from conformance.shard import Model, OpenShard, ShardError, Subject
from conformance.through_worker import ThroughWorker
from toy.vocabulary import CHAT_TEMPLATES

FAKE = {
    "default": "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
}


@pytest.mark.parametrize("layers", [(0, 6), (0, 2), (4, 6)], ids=str)
def test_chat_template_is_the_files_at_both_ends(
    subject: Subject, open_shard: OpenShard, layers: tuple[int, int]
) -> None:
    """First and last stage give the same text; a name that the file lacks gives none."""
    shard = open_shard(subject, layers=layers)
    templates = FAKE if subject.engine == "fake" else CHAT_TEMPLATES
    assert shard.chat_template() == templates["default"]
    assert shard.chat_template("tool_use") == templates.get("tool_use", "")
    assert shard.chat_template("another") == shard.chat_template("") == ""


@pytest.mark.parametrize("transport", [InProcess, ThroughWorker])
def test_chat_template_of_a_model_without_one_is_empty(
    transport: type[Subject], build_toy: Callable[[str], Path], conformance_cache: Path, open_shard: OpenShard
) -> None:
    """Nothing is made up where the file says nothing."""
    model = Model(path=str(build_toy("llama-bpe")), n_layer=6)
    assert open_shard(transport("llama", model, conformance_cache)).chat_template() == ""


def test_chat_template_that_is_no_text_is_malformed(
    build_toy: Callable[[str], Path], conformance_cache: Path, open_shard: OpenShard, tmp_path: Path
) -> None:
    """Bytes that are not UTF-8 are refused, not mended: each host would write other prompts with them."""
    original = build_toy("llama-q8_0-tied").read_bytes()
    broken = original.replace("\N{SNOWMAN}".encode(), b"\xe2\x98\xff", 1)
    assert broken != original
    (tmp_path / "broken.gguf").write_bytes(broken)
    model = Model(path=str(tmp_path / "broken.gguf"), n_layer=6)
    shard = open_shard(ThroughWorker("llama", model, conformance_cache))
    with pytest.raises(ShardError) as caught:
        shard.chat_template()
    assert caught.value.code == "malformed"
    assert shard.chat_template("tool_use") == CHAT_TEMPLATES["tool_use"]
