"""Two small vocabularies that stock llama.cpp tokenizes any text with, one of them with chat templates."""

from __future__ import annotations

from gguf import GGUFWriter, TokenType

CHAT_TEMPLATES = {
    "default": "{% for message in messages %}<{{ message.role }}> {{ message.content }} \u2603\n{% endfor %}",
    "tool_use": "{{ tools | tojson }}",
}
"""Of the SentencePiece vocabulary, by name; `default` is the one without a name."""

_PIECES = [
    "▁",
    "e",
    "t",
    "a",
    "o",
    "i",
    "n",
    "s",
    "r",
    "h",
    "l",
    "d",
    "u",
    "c",
    "m",
    "f",
    "p",
    "g",
    "w",
    "y",
    "b",
    "v",
    "k",
    "x",
    "j",
    "q",
    "z",
    ".",
    ",",
    "'",
    "-",
    "!",
    "?",
    "▁t",
    "▁a",
    "th",
    "in",
    "er",
    "he",
    "an",
    "re",
    "on",
    "at",
    "en",
    "is",
    "or",
    "ou",
    "▁th",
    "▁the",
    "ing",
    "▁in",
    "▁s",
    "▁w",
    "and",
    "▁of",
    "▁o",
]


def add_spm(writer: GGUFWriter, further: int = 0) -> int:
    """SentencePiece: three specials, 256 byte tokens, some pieces, and `further` ones that are in no text.
    Returns the number of tokens."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + list(_PIECES)
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL] + [TokenType.BYTE] * 256
    types += [TokenType.NORMAL] * len(_PIECES)
    tokens += [f"<{number}>" for number in range(further)]
    types += [TokenType.UNUSED] * further
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [float(-rank) for rank in range(len(tokens) - 259)])
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_chat_template([{"name": name, "template": text} for name, text in CHAT_TEMPLATES.items()])
    return len(tokens)


def _gpt2_alphabet() -> list[str]:
    """One printable character for each byte, in the way of GPT-2: unprintable bytes move up from U+0100."""
    kept = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    moved = iter(range(256, 512))
    return [chr(byte if byte in kept else next(moved)) for byte in range(256)]


def add_bpe(writer: GGUFWriter) -> int:
    """GPT-2: 256 byte tokens, some merges, one end-of-text token. Returns the number of tokens."""
    alphabet = _gpt2_alphabet()
    space = alphabet[ord(" ")]
    merges = ["t h", "th e", "i n", "in g", "e r", "a n", "an d", f"{space} t", f"{space}t he", f"{space} a"]
    tokens = alphabet + [merge.replace(" ", "") for merge in merges] + ["<|endoftext|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.NORMAL] * (len(tokens) - 1) + [TokenType.CONTROL])
    writer.add_token_merges(merges)
    writer.add_bos_token_id(len(tokens) - 1)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)
    return len(tokens)
