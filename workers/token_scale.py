"""Texts of exactly so many tokens, without counting each: pieces whose tokens add up. Gevent-free.

Tokenizers in use cut a text at spaces and punctuation before they merge anything, so what a piece costs does not depend
on the pieces around it. Each piece is weighed once, by whoever counts for the service; then whole texts are, as a test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from workers.errors import SettingsError
from workers.prompt_text import LANGUAGES, SALT, Language

#: Tokens of a prompt as the service counts them, the chat template's included.
CountTokens = Callable[[str], int]

_NUM_SALT_DIGITS = 6  # of 36: a beginning of its own for two billion prompts
_Digit = TypeVar("_Digit")
_NUM_TESTS = 32
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
    salt: tuple[Piece, ...]
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

    def compose(self, tokens: int, rng: random.Random, salt: int) -> str:
        """A text for a prompt of so many tokens, the template's included; it begins like none of another ``salt``.

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
        if left < self.opener.tokens + self.salt[0].tokens:
            parts.append(rng.choice(self.starters))
            left -= 1
        else:
            parts.append(self.opener.text)
            left -= self.opener.tokens
        for digit in salted(self.salt, salt):
            if digit.tokens <= left:
                parts.append(digit.text)
                left -= digit.tokens
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


def salted(digits: Sequence[_Digit], salt: int) -> list[_Digit]:
    """A number in these digits, the last one first: near numbers begin differently."""
    chosen = []
    for _ in range(_NUM_SALT_DIGITS):
        salt, digit = divmod(salt, len(digits))
        chosen.append(digits[digit])
    return chosen


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
        salt=tuple(map(piece, SALT)),
        sentences=tuple(map(piece, material.sentences)),
        words=tuple(map(piece, material.words)),
        filler=_filler(material, count),
        starters=starters,
    )
    return replace(scale, is_exact=_comes_out(scale, count, seed))


@dataclass(frozen=True, slots=True)
class CorrectedScale:
    """A scale whose pieces do not quite add up: each text is counted, and its end mended until it is exact."""

    scale: TokenScale
    count: CountTokens

    @property
    def least_tokens(self) -> int:
        return self.scale.least_tokens

    def compose(self, tokens: int, rng: random.Random, salt: int) -> str:
        """As exact as some corrections make it.

        Raises:
            SettingsError: the template alone is as long.
        """
        text = mended = self.scale.compose(tokens, rng, salt)
        for _ in range(_MOST_CORRECTIONS):
            missing = tokens - self.count(mended)
            if missing == 0:
                return mended
            longer = mended + self.scale.filler.text * missing
            mended = longer if missing > 0 else mended[: max(1, len(mended) + missing)]
        return text


def _starters(material: Language, count: CountTokens) -> tuple[str, ...]:
    """Texts that cost least when they stand alone; with one token each, what is left is the template."""
    candidates = [text for text in dict.fromkeys(piece.strip() for piece in (*material.fillers, " I", " 7")) if text]
    costs = {text: count(text) for text in candidates}
    least = min(costs.values())
    return tuple(text for text, cost in costs.items() if cost == least)


def _filler(material: Language, count: CountTokens) -> Piece:
    contexts = [material.opener + piece for piece in (SALT[0], material.words[0], material.sentences[0])]
    bases = [count(context) for context in contexts]
    for text in material.fillers:
        if all(
            count(context + text * times) - base == times
            for context, base in zip(contexts, bases, strict=True)
            for times in (1, 2, 3, 7)
        ):
            return Piece(text, 1)
    raise SettingsError(
        f"no text of one token was found in {material.fillers}: prompts of exact length cannot be made with this "
        "tokenizer"
    )


def _comes_out(scale: TokenScale, count: CountTokens, seed: int) -> bool:
    rng = random.Random(f"{seed}/scale")
    lengths = [scale.overhead + round(2 ** rng.uniform(0, 11)) for _ in range(_NUM_TESTS)]
    lengths += [scale.overhead + length for length in range(1, 6)]
    return all(count(scale.compose(length, rng, rng.getrandbits(30))) == length for length in lengths)
