"""Text to tokens and back, where a shard has a vocabulary."""

from __future__ import annotations

import pytest

from conformance.shard import OpenShard, ShardError, Subject

TEXTS = [b"hello, world", "the caf\u00e9 \u2603 in the rain".encode(), b"x", b""]


@pytest.mark.parametrize("layers", [(0, 6), (0, 2), (4, 6)], ids=str)
@pytest.mark.parametrize("text", TEXTS, ids=repr)
def test_tokenize_and_detokenize_round_trip(
    subject: Subject, open_shard: OpenShard, layers: tuple[int, int], text: bytes
) -> None:
    """Every end of a route tokenizes alike and gives the text back, special tokens removed."""
    shard = open_shard(subject, layers=layers)
    tokens = shard.tokenize(text)
    assert shard.detokenize(tokens, remove_special=True).lstrip(b" ") == text
    assert all(0 <= token < shard.description.n_vocab for token in tokens)


def test_tokenize_adds_special_tokens_on_request(subject: Subject, open_shard: OpenShard) -> None:
    """`add_special` puts the vocabulary's first token in front and changes nothing else."""
    shard = open_shard(subject)
    assert shard.specials is not None
    assert shard.specials.add_bos
    bare = shard.tokenize(b"hello", add_special=False)
    assert shard.tokenize(b"hello", add_special=True) == [shard.specials.bos, *bare]


def test_tokenize_parses_special_text_on_request(subject: Subject, open_shard: OpenShard) -> None:
    """The text of a control token is that token with `parse_special`, and plain text without."""
    shard = open_shard(subject)
    assert shard.specials is not None
    eos = shard.specials.eos
    text = shard.detokenize([eos], unparse_special=True)
    assert text
    assert shard.detokenize([eos]) == b""
    assert shard.tokenize(text, add_special=False, parse_special=True) == [eos]
    plain = shard.tokenize(text, add_special=False, parse_special=False)
    assert eos not in plain
    assert shard.detokenize(plain).strip() == text


def test_detokenize_may_end_inside_a_character(subject: Subject, open_shard: OpenShard) -> None:
    """Bytes of a character that is cut come back as they are."""
    shard = open_shard(subject)
    tokens = shard.tokenize("a\u2603".encode(), add_special=False)
    assert shard.detokenize(tokens[:-1]).lstrip(b" ") == "a\u2603".encode()[:-1]


def test_token_info_knows_the_end(subject: Subject, open_shard: OpenShard) -> None:
    """The end token is a control token that ends a generation; a letter is neither."""
    shard = open_shard(subject)
    assert shard.specials is not None
    end = shard.token_info(shard.specials.eos)
    assert (end.is_control, end.end_of_generation) == (True, True)
    letter = shard.token_info(shard.tokenize(b"q", add_special=False)[-1])
    assert (letter.is_control, letter.end_of_generation) == (False, False)
    assert letter.attributes not in (0, end.attributes)


def test_vocabulary_refuses_ids_outside_it(subject: Subject, open_shard: OpenShard) -> None:
    """An id that is no token is named."""
    shard = open_shard(subject)
    for bad in (-1, shard.description.n_vocab):
        for call in (lambda: shard.detokenize([5, bad]), lambda: shard.token_info(bad)):  # noqa: B023
            with pytest.raises(ShardError) as caught:
                call()
            assert caught.value.code == "argument"
            assert str(bad) in caught.value.message


def test_vocabulary_is_not_on_inner_stages(subject: Subject, open_shard: OpenShard) -> None:
    """A stage between the first and the last says that it has no vocabulary."""
    shard = open_shard(subject, layers=(2, 4))
    for call in (
        lambda: shard.tokenize(b"a"),
        lambda: shard.detokenize([5]),
        lambda: shard.token_info(5),
        lambda: shard.chat_template(),
    ):
        with pytest.raises(ShardError) as caught:
            call()
        assert caught.value.code == "not_owned"
