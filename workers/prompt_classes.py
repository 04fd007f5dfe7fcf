"""The graded classes of prompts and their mix, as options say them. Pure, gevent-free."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from workers.errors import SettingsError
from workers.lengths import Lengths, parse_lengths
from workers.records import PROMPT_CLASSES


@dataclass(frozen=True, slots=True)
class PromptClass:
    """A grade of prompt: tokens in, chat template included, and at most so many out."""

    name: str
    prompt_tokens: Lengths
    max_tokens: Lengths


_DEFAULTS = {"short": (32, 32), "medium": (128, 48), "long": (512, 64)}


def parse_mix(text: str) -> dict[str, float]:
    """``short=0.6,medium=0.3,long=0.1`` as weights by class.

    Raises:
        SettingsError: an unknown class, a weight that is none, or a sum other than 1.
    """
    mix = {name: _weight(text, name, value) for name, value in _pairs("mix", text)}
    if abs(sum(mix.values()) - 1) > 1e-6:
        raise SettingsError(f"mix {text!r} adds up to {sum(mix.values()):g}; the weights must add up to 1")
    return {name: weight for name, weight in mix.items() if weight > 0}


def parse_classes(prompt_tokens: str, max_tokens: str) -> dict[str, PromptClass]:
    """The three classes with lengths changed as asked: ``short=32,long=uniform:256:1024``, or one length for all.

    Raises:
        SettingsError: an unknown class, or a length that is none.
    """
    prompts = _lengths("prompt-tokens", prompt_tokens, "prompt_tokens")
    outputs = _lengths("max-tokens", max_tokens, "output_tokens")
    return {
        name: PromptClass(
            name, prompts.get(name, Lengths("fixed", default)), outputs.get(name, Lengths("fixed", default_output))
        )
        for name, (default, default_output) in _DEFAULTS.items()
    }


def pick_class(mix: Mapping[str, float], rng: random.Random) -> str:
    return rng.choices(tuple(mix), tuple(mix.values()))[0]


def class_of(prompt_tokens: int, classes: Mapping[str, PromptClass]) -> str:
    """The class whose typical length is nearest, as a ratio."""

    def distance(name: str) -> float:
        typical = classes[name].prompt_tokens.typical
        return max(prompt_tokens / typical, typical / max(prompt_tokens, 1))

    return min(classes, key=distance)


def _lengths(option: str, text: str, column: str) -> dict[str, Lengths]:
    if not text:
        return {}
    pairs = [(name, text) for name in PROMPT_CLASSES] if "=" not in text else _pairs(option, text)
    return {name: parse_lengths(option, value, column) for name, value in pairs}


def _pairs(option: str, text: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise SettingsError(f"{option} {text!r}: {part!r} is not CLASS=NUMBER, such as short=0.6")
        if name not in PROMPT_CLASSES:
            raise SettingsError(
                f"{option} {text!r}: class {name!r} is unknown; classes are {', '.join(PROMPT_CLASSES)}"
            )
        if name in dict(pairs):
            raise SettingsError(f"{option} {text!r}: class {name!r} stands twice")
        pairs.append((name, value))
    return pairs


def _weight(text: str, name: str, value: str) -> float:
    try:
        weight = float(value)
    except ValueError:
        weight = -1.0
    if not 0 <= weight <= 1:
        raise SettingsError(f"mix {text!r}: the weight of {name} is {value!r}; weights go from 0 to 1")
    return weight
