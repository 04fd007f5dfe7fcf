"""Texts of about so many tokens, where a service tells no more than the usage of its answers. Gevent-free."""

from __future__ import annotations

import random
from dataclasses import dataclass

from workers.prompt_text import LANGUAGES, SALT
from workers.token_scale import CountTokens, salted

_SAMPLE_LENGTHS = (50, 1600)  # characters of the texts that a ratio is measured with
_NUM_SHORT_SAMPLES = 4  # short texts differ much in tokens a character


@dataclass(frozen=True, slots=True)
class TokenRatio:
    """Tokens of a text of n characters as ``overhead + per_character * n``."""

    language: str
    overhead: float
    per_character: float

    @property
    def least_tokens(self) -> int:
        return 1

    def compose(self, tokens: int, rng: random.Random, salt: int) -> str:
        return _text(self.language, max(1, round((tokens - self.overhead) / self.per_character)), rng, salt)


#: Used where nobody counts: typical of tokenizers with a vocabulary of 100,000 or more.
TYPICAL_RATIOS = {"en": TokenRatio("en", 8, 0.23), "zh": TokenRatio("zh", 8, 0.65)}


def measure_ratio(language: str, count: CountTokens, seed: int) -> TokenRatio:
    """From the tokens of a few short texts and a long one."""
    short_length, long_length = _SAMPLE_LENGTHS
    rng = random.Random(f"{seed}/ratio/{language}")
    samples = [_text(language, short_length, rng, salt) for salt in range(_NUM_SHORT_SAMPLES)]
    short = sum(map(count, samples)) / _NUM_SHORT_SAMPLES
    per_character = (count(_text(language, long_length, rng, _NUM_SHORT_SAMPLES)) - short) / (
        long_length - short_length
    )
    if per_character <= 0:
        return TYPICAL_RATIOS[language]
    return TokenRatio(language, short - per_character * short_length, per_character)


def _text(language: str, length: int, rng: random.Random, salt: int) -> str:
    material = LANGUAGES[language]
    parts = [material.opener, *salted(SALT, salt)]
    size = sum(map(len, parts))
    while size < length:
        parts.append(rng.choice(material.sentences))
        size += len(parts[-1])
    return "".join(parts)[:length].rstrip() or material.opener[:1]
