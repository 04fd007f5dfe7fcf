"""Graded prompts by number: the same seed and number give the same prompt to the byte, whoever asks. Gevent-free.

Numbers are shared out among the workers, so no two send the same prompt. Unless a shared prefix is asked for, every
prompt begins with words of its own, so that a server's prefix cache has nothing to reuse.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from workers.prompt_classes import PromptClass, class_of, pick_class

LANGUAGES = ("en", "zh", "both")
#: Of one level; beyond that, levels could share beginnings.
_MOST_PROMPTS = 1_000_003


class Composer(Protocol):
    """Makes texts of a length in tokens, the service's template included."""

    @property
    def least_tokens(self) -> int: ...

    def compose(self, tokens: int, rng: random.Random, salt: int) -> str: ...


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is asked: ``asked_tokens`` as the service should count them, and ``max_tokens`` at most in the answer."""

    prompt_id: str
    prompt_class: str
    text: str
    asked_tokens: int
    max_tokens: int


class PromptSource:
    """All prompts of a run."""

    def __init__(
        self,
        classes: Mapping[str, PromptClass],
        mix: Mapping[str, float],
        composers: Mapping[str, Composer],
        seed: int,
    ) -> None:
        """``composers`` by language; a prompt is in one of these languages."""
        self._classes = classes
        self._mix = mix
        self._composers = composers
        self._languages = tuple(composers)
        self._seed = seed
        self._salt = random.Random(f"{seed}/salt").getrandbits(40)  # so that runs do not begin alike either

    def make(self, level: int, number: int) -> Prompt:
        """Prompt ``number`` of a level, its class drawn from the mix and its lengths from the class."""
        rng = random.Random(f"{self._seed}/{level}/{number}")
        prompt_class = self._classes[pick_class(self._mix, rng)]
        tokens, max_tokens = prompt_class.prompt_tokens.sample(rng), prompt_class.max_tokens.sample(rng)
        return self._make(level, number, prompt_class.name, tokens, max_tokens, rng)

    def make_like(self, level: int, number: int, prompt_tokens: int, max_tokens: int) -> Prompt:
        """Prompt ``number`` with lengths given, in the class that is nearest."""
        rng = random.Random(f"{self._seed}/{level}/{number}")
        return self._make(level, number, class_of(prompt_tokens, self._classes), prompt_tokens, max_tokens, rng)

    def _make(self, level: int, number: int, name: str, tokens: int, max_tokens: int, rng: random.Random) -> Prompt:
        composer = self._composers[rng.choice(self._languages)]
        tokens = max(tokens, composer.least_tokens)  # drawn from a distribution; fixed lengths were checked before
        text = composer.compose(tokens, rng, self._salt + level * _MOST_PROMPTS + number)
        return Prompt(f"{level}-{number}", name, text, tokens, max(1, max_tokens))
