"""Text comes out whole, whatever way the tokens come in."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from engine.demo_model import ensure_demo_model
from engine.detokenizer import Detokenizer, token_bytes

TEXT = "Hello, 世界 🙂 안녕하세요 naïve\n\ttab — 👨‍👩‍👧 end"


@cache
def byte_level() -> tuple[Any, list[bytes]]:
    tokenizer = AutoTokenizer.from_pretrained(ensure_demo_model())
    return tokenizer, token_bytes(tokenizer)


@cache
def sentencepiece() -> tuple[Any, list[bytes]]:
    """A tokenizer of Llama 2's kind: pieces with a low line for a space, and a token for every byte."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁He", "llo", "世", "界", "a"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    return fast, token_bytes(fast)


def pieces_of(vocabulary: list[bytes], ids: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    detokenizer = Detokenizer(vocabulary, stop)
    pieces = []
    for number, token in enumerate(ids):
        pieces.append(detokenizer.push([token], final=number == len(ids) - 1))
        if detokenizer.is_stopped:
            break
    return pieces, detokenizer.is_stopped


def test_text_survives_token_by_token() -> None:
    tokenizer, vocabulary = byte_level()
    pieces, _ = pieces_of(vocabulary, tokenizer.encode(TEXT))
    assert "".join(pieces) == TEXT
    assert "�" not in "".join(pieces)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([byte_level, sentencepiece]), st.lists(st.integers(0, 8191), max_size=40))
def test_any_tokens_give_the_tokenizer_s_own_text(make: Any, ids: list[int]) -> None:
    tokenizer, vocabulary = make()
    ids = [token % len(tokenizer) for token in ids]
    raw = b"".join(vocabulary[token] for token in ids)
    assert "".join(pieces_of(vocabulary, ids)[0]) == raw.decode("utf-8", "replace")
    if make is byte_level:
        assert raw.decode("utf-8", "replace") == tokenizer.decode(ids, skip_special_tokens=True)


def test_sentencepiece_pieces_and_bytes() -> None:
    tokenizer, vocabulary = sentencepiece()
    ids = tokenizer.convert_tokens_to_ids(["<s>", "▁He", "llo", "▁", "世", "<0xE7>", "<0x95>", "<0x8C>", "a", "</s>"])
    assert "".join(pieces_of(vocabulary, ids)[0]) == " Hello 世界a"


def test_special_tokens_have_no_text() -> None:
    tokenizer, vocabulary = byte_level()
    ids = [*tokenizer.encode("a"), tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(["<|im_end|>"])]
    assert "".join(pieces_of(vocabulary, ids)[0]) == "a"


def test_a_character_cut_off_at_the_end_is_not_lost_in_silence() -> None:
    tokenizer, vocabulary = byte_level()
    first_byte = next(i for i, data in enumerate(vocabulary) if data == "🙂".encode()[:1])
    assert "".join(pieces_of(vocabulary, [*tokenizer.encode("a"), first_byte])[0]) == "a�"


@pytest.mark.parametrize(
    ("stop", "before"),
    [(("world",), "Hello, "), (("lo, w",), "Hel"), (("zzz", "界"), "Hello, world 世"), (("H",), "")],
)
def test_stop_strings_off_token_boundaries(stop: tuple[str, ...], before: str) -> None:
    _, vocabulary = byte_level()
    characters = [i for text in "Hello, world 世界!".encode() for i in [vocabulary.index(bytes([text]))]]
    pieces, is_stopped = pieces_of(vocabulary, characters, stop)
    assert ("".join(pieces), is_stopped) == (before, True)


def test_only_what_begins_a_stop_string_is_held_back() -> None:
    _, vocabulary = byte_level()
    ids = [vocabulary.index(bytes([byte])) for byte in b"ab<x<end"]
    pieces, is_stopped = pieces_of(vocabulary, ids, ("<end>",))
    assert pieces == ["a", "b", "", "<x", "", "", "", "<end"]
    assert not is_stopped
