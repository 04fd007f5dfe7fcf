"""Texts of exactly so many tokens, without counting each: pieces whose tokens add up. Gevent-free.

Tokenizers in use cut a text at spaces and punctuation before they merge anything, so what a piece costs does not depend
on the pieces around it. Each piece is weighed once, by whoever counts for the service; then whole texts are, as a test.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from workers.errors import SettingsError
from workers.prompt_text import LANGUAGES, Language

#: Tokens of a prompt as the service counts them, the chat template's included.
CountTokens = Callable[[str], int]

_NUM_SALT_WORDS = 7  # of some 60 and more: two prompts begin alike once in 10^12 times
_NUM_TESTS = 16
_MOST_CORRECTIONS = 12


@dataclass(frozen=True, slots=True)
class Piece:
    text: str
    tokens: int


@dataclass(frozen=True, slots=True)
class TokenScale:
    """The weights of one language's pieces with one tokenizer and template."""

    #: Tokens of a prompt beside its text.
    overhead: int
    opener: Piece
    sentences: tuple[Piece, ...]
    words: tuple[Piece, ...]
    filler: Piece
    #: One-token texts that may stand first, for prompts too short for an opener.
    starters: tuple[str, ...]
    #: Whether test texts came out as they should.
    is_exact: bool = True

    @property
    def least_tokens(self) -> int:
        return self.overhead + 1

    def compose(self, tokens: int, rng: random.Random) -> str:
        """A text for a prompt of so many tokens, the template's included.

        Raises:
            SettingsError: the template alone is as long.
        """
        left = tokens - self.overhead
        if left < 1:
            raise SettingsError(
                f"a prompt of {tokens} tokens is too short: the service's template takes {self.overhead} and leaves no "
                f"text; ask for at least {self.least_tokens}"
            )
        parts: list[str] = []
        if left < self.opener.tokens + max(word.tokens for word in self.words):
            parts.append(rng.choice(self.starters))
            left -= 1
        else:
            parts.append(self.opener.text)
            left -= self.opener.tokens
        for _ in range(_NUM_SALT_WORDS):
            left -= self._add(parts, self.words, left, rng)
        while cost := self._add(parts, self.sentences, left, rng):
            left -= cost
        while cost := self._add(parts, self.words, left, rng):
            left -= cost
        return "".join(parts) + self.filler.text * left

    def _add(self, parts: list[str], pieces: tuple[Piece, ...], left: int, rng: random.Random) -> int:
        """Append one of these pieces if it fits; its tokens, 0 if it does not."""
        piece = rng.choice(pieces)
        if piece.tokens > left:
            fitting = [piece for piece in pieces if piece.tokens <= left]
            if not fitting:
                return 0
            piece = rng.choice(fitting)
        parts.append(piece.text)
        return piece.tokens


def weigh(language: str, count: CountTokens, seed: int) -> TokenScale:
    """The scale of a language with a service's way of counting: some 100 counts.

    Raises:
        SettingsError: no piece of one token was found, so no text can be made exact.
    """
    material = LANGUAGES[language]
    starters = _starters(material, count)
    overhead = count(starters[0]) - 1
    base = count(material.opener)

    def piece(text: str) -> Piece:
        return Piece(text, count(material.opener + text) - base)

    scale = TokenScale(
        overhead=overhead,
        opener=Piece(material.opener, base - overhead),
        sentences=tuple(map(piece, material.sentences)),
        words=tuple(map(piece, material.words)),
        filler=_filler(material, count),
        starters=starters,
    )
    return scale if _comes_out(scale, count, seed) else _inexact(scale)


def corrected(scale: TokenScale, text: str, tokens: int, count: CountTokens) -> str:
    """The text made exact by counting and mending its end; unchanged if that does not come to an end."""
    mended = text
    for _ in range(_MOST_CORRECTIONS):
        missing = tokens - count(mended)
        if missing == 0:
            return mended
        mended = mended + scale.filler.text * missing if missing > 0 else mended[: max(1, len(mended) + missing)]
    return text


def _starters(material: Language, count: CountTokens) -> tuple[str, ...]:
    """Texts that cost least when they stand alone; with one token each, what is left is the template."""
    candidates = [piece.strip().rstrip("、") for piece in (*material.fillers, *material.words)]
    candidates = [text for text in dict.fromkeys([*candidates, "a", "I", "的", "1"]) if text]
    costs = {text: count(text) for text in candidates}
    least = min(costs.values())
    return tuple(text for text, cost in costs.items() if cost == least)


def _filler(material: Language, count: CountTokens) -> Piece:
    base = count(material.opener)
    for text in material.fillers:
        if all(count(material.opener + text * times) - base == times for times in (1, 2, 3, 5, 8)):
            return Piece(text, 1)
    raise SettingsError(
        f"no text of one token was found in {material.fillers}: prompts of exact length cannot be made with this "
        "tokenizer"
    )


def _comes_out(scale: TokenScale, count: CountTokens, seed: int) -> bool:
    rng = random.Random(f"{seed}/scale")
    lengths = [scale.overhead + round(2 ** rng.uniform(0, 11)) for _ in range(_NUM_TESTS)]
    lengths += [scale.overhead + length for length in range(1, 6)]
    return all(count(scale.compose(length, rng)) == length for length in lengths)


def _inexact(scale: TokenScale) -> TokenScale:
    return TokenScale(
        scale.overhead, scale.opener, scale.sentences, scale.words, scale.filler, scale.starters, is_exact=False
    )
