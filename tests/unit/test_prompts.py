"""Prompts are reproducible, share no beginning, and have about the asked length; bad settings are named."""

from __future__ import annotations

import pytest

from workers.errors import SettingsError
from workers.prompts import DEFAULT_CLASSES, PromptSource, TokenRatio, measure_ratios, parse_classes, parse_mix

RATIOS = {"en": TokenRatio(5, 0.25), "zh": TokenRatio(5, 0.7)}


def source(seed: int = 1, worker: str = "w0", language: str = "both") -> PromptSource:
    return PromptSource(DEFAULT_CLASSES, language, seed, worker, RATIOS)


def test_same_seed_same_prompt_to_the_byte() -> None:
    assert [source().make("long", n) for n in range(20)] == [source().make("long", n) for n in range(20)]


def test_no_two_prompts_share_a_beginning() -> None:
    texts = [source(worker=w).make(c, n).text for w in ("w0", "w1") for n in range(200) for c in DEFAULT_CLASSES]
    texts = [*{text[:10] for text in texts}]
    assert len(texts) == 2 * 200  # one salt a worker and number


def test_length_follows_the_ratio() -> None:
    for language, ratio in RATIOS.items():
        for name, prompt_class in DEFAULT_CLASSES.items():
            text = source(language=language).make(name, 0).text
            assert ratio.overhead + ratio.per_character * len(text) == pytest.approx(prompt_class.prompt_tokens, abs=1)


def test_both_languages_occur() -> None:
    texts = [source().make("medium", n).text for n in range(50)]
    chinese = [text for text in texts if any("一" <= char <= "鿿" for char in text)]
    assert 10 < len(chinese) < 40


def test_ratio_is_recovered_from_counts() -> None:
    ratios = measure_ratios(lambda text: round(9 + 0.4 * len(text)), seed=0, worker="w0")
    for ratio in ratios.values():
        assert ratio.per_character == pytest.approx(0.4, rel=0.01)
        assert ratio.overhead == pytest.approx(9, abs=0.5)


def test_mix() -> None:
    assert parse_mix("short=0.6, medium=0.3,long=0.1") == {"short": 0.6, "medium": 0.3, "long": 0.1}
    assert parse_mix("long=1,short=0") == {"long": 1}


@pytest.mark.parametrize(
    ("mix", "names"),
    [
        ("short=0.5", "adds up to 0.5"),
        ("short=0.5,tiny=0.5", "tiny"),
        ("short", "CLASS=NUMBER"),
        ("", "CLASS=NUMBER"),
        ("short=a,long=1", "'a'"),
        ("short=-1,long=2", "'-1'"),
        ("short=nan,long=1", "'nan'"),
        ("short=0.5,short=0.5", "twice"),
    ],
)
def test_bad_mix(mix: str, names: str) -> None:
    with pytest.raises(SettingsError, match=names):
        parse_mix(mix)


def test_classes() -> None:
    classes = parse_classes("short=8,long=900", "5")
    assert [(c.prompt_tokens, c.max_tokens) for c in classes.values()] == [(8, 5), (128, 5), (900, 5)]
    assert parse_classes("", "") == DEFAULT_CLASSES


@pytest.mark.parametrize("lengths", ["0", "short=0", "short=1.5", "tiny=3", "short=3,,"])
def test_bad_lengths(lengths: str) -> None:
    with pytest.raises(SettingsError):
        parse_classes(lengths, "")
