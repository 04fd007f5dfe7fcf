"""Token ids to text, as they come: never half a character, never a lost tail, never the head of a stop string.

Text is decoded as bytes, so a character split over tokens waits for its rest and an invalid byte becomes one U+FFFD at
once, instead of holding everything behind it back.
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(tokenizer: Any) -> list[bytes]:
    """What each token id stands for; special tokens stand for nothing.

    Knows the two families in use: byte-level BPE (Llama 3, Qwen), and SentencePiece with byte fallback (Llama 2).
    """
    backend = tokenizer.backend_tokenizer
    is_byte_level = "ByteLevel" in json.dumps(json.loads(backend.to_str()).get("decoder"))
    special = set(tokenizer.all_special_ids) | {
        index for index, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    vocabulary = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    to_bytes = _byte_level_bytes if is_byte_level else _sentencepiece_bytes
    return [b"" if index in special else to_bytes(token or "") for index, token in enumerate(vocabulary)]


def _byte_level_bytes(token: str) -> bytes:
    return b"".join(bytes([_BYTE_OF[char]]) if char in _BYTE_OF else char.encode() for char in token)


def _sentencepiece_bytes(token: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(match[1], 16)]) if match else token.replace("\u2581", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte.

    Source: the table of GPT-2's tokenizer; bytes without a printable Latin-1 character take U+0100 onward in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(rest)}


_BYTE_OF = _byte_alphabet()


class Detokenizer:
    """The text of one request. ``is_stopped`` turns true when a stop string completes; its text is not given out."""

    def __init__(self, vocabulary: list[bytes], stop: tuple[str, ...] = ()) -> None:
        self.is_stopped = False
        self._vocabulary = vocabulary
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def push(self, token_ids: list[int], final: bool = False) -> str:
        """The text that these tokens complete; with ``final`` also whatever was held back."""
        known = len(self._vocabulary)
        data = b"".join(self._vocabulary[token] for token in token_ids if token < known)
        text = self._held + self._decoder.decode(data, final)
        if not self._stop:
            return text
        ends = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if ends:
            self.is_stopped, self._held = True, ""
            return text[: min(ends)]
        keep = 0 if final else _open_suffix(text, self._stop)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _open_suffix(text: str, stops: tuple[str, ...]) -> int:
    """Length of the longest end of ``text`` that begins a stop string."""
    longest = min(len(text), max(map(len, stops)) - 1)
    return next((n for n in range(longest, 0, -1) if any(stop.startswith(text[-n:]) for stop in stops)), 0)
