"""Prompts are reproducible, share no beginning, and have exactly the asked length; bad settings are named."""

from __future__ import annotations

import random
import re

import pytest

from workers.composers import check_lengths
from workers.errors import SettingsError
from workers.lengths import Lengths, parse_lengths
from workers.prompt_classes import class_of, parse_classes, parse_mix
from workers.prompts import PromptSource
from workers.token_ratio import TokenRatio, measure_ratio
from workers.token_scale import CorrectedScale, weigh

MIX = {"short": 0.6, "medium": 0.3, "long": 0.1}
TEMPLATE_TOKENS = 11


def count(text: str) -> int:
    """Stands in for a tokenizer that cuts at spaces and punctuation: a word costs a token for each four letters, a
    character of Chinese one."""
    pieces = re.findall(r" ?[a-zA-Z]+| ?[0-9]| ?[^\sa-zA-Z0-9]|\s", text)
    return TEMPLATE_TOKENS + sum(1 + (len(piece) - 1) // 4 for piece in pieces)


def merging_count(text: str) -> int:
    """As ``count``, but two of the same sentence in a row cost one token less: pieces that do not add up."""
    return count(text) - len(re.findall(r"(。)(?=港口)", text)) - text.count(". A ")


COMPOSERS = {language: weigh(language, count, seed=0) for language in ("en", "zh")}


def source(seed: int = 1, **classes: str) -> PromptSource:
    return PromptSource(parse_classes(classes.get("prompt", ""), classes.get("output", "")), MIX, COMPOSERS, seed)


def test_same_seed_same_prompt_to_the_byte() -> None:
    assert [source().make(0, n) for n in range(50)] == [source().make(0, n) for n in range(50)]
    assert source(1).make(0, 3) != source(2).make(0, 3)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_length_is_exact(language: str) -> None:
    scale = COMPOSERS[language]
    assert scale.is_exact
    assert scale.overhead == TEMPLATE_TOKENS
    for tokens in [*range(TEMPLATE_TOKENS + 1, 200), 512, 1000, 2000]:
        assert count(scale.compose(tokens, random.Random(tokens), tokens)) == tokens


@pytest.mark.parametrize("language", ["en", "zh"])
def test_pieces_that_do_not_add_up_are_noticed_and_mended(language: str) -> None:
    scale = weigh(language, merging_count, seed=0)
    assert not scale.is_exact
    mended = CorrectedScale(scale, merging_count)
    for tokens in range(TEMPLATE_TOKENS + 20, 400, 7):
        assert merging_count(mended.compose(tokens, random.Random(tokens), tokens)) == tokens


def test_a_length_that_the_template_takes_alone() -> None:
    with pytest.raises(SettingsError, match=f"at least {TEMPLATE_TOKENS + 1}"):
        COMPOSERS["en"].compose(TEMPLATE_TOKENS, random.Random(0), 0)


def test_no_two_prompts_share_a_beginning() -> None:
    prompts = [source().make(level, n) for level in (0, 1) for n in range(3000)]
    assert len({prompt.text for prompt in prompts}) == 6000
    assert len({prompt.text[:20] for prompt in prompts}) == 6000
    other = {source(seed=2).make(0, n).text[:20] for n in range(3000)}
    assert not other & {prompt.text[:20] for prompt in prompts}


def test_the_mix_and_the_languages() -> None:
    prompts = [source().make(0, n) for n in range(3000)]
    shares = {name: sum(p.prompt_class == name for p in prompts) / 3000 for name in MIX}
    assert shares == pytest.approx(MIX, abs=0.03)
    chinese = sum(any("一" <= char <= "鿿" for char in prompt.text) for prompt in prompts)
    assert 1350 < chinese < 1650
    assert {p.asked_tokens for p in prompts if p.prompt_class == "medium"} == {128}


def test_lengths_are_drawn_from_their_distribution() -> None:
    made = [source(prompt="uniform:20:60", output="lognormal:50:0.5").make(0, n) for n in range(2000)]
    assert (min(p.asked_tokens for p in made), max(p.asked_tokens for p in made)) == (20, 60)
    outputs = sorted(p.max_tokens for p in made)
    assert outputs[1000] == pytest.approx(50, rel=0.1)
    assert outputs[1682] / outputs[1000] == pytest.approx(1.65, rel=0.1), "one sigma above the median: e^0.5"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0", "from 1 up"),
        ("1.5", "no length"),
        ("uniform:5", "no length"),
        ("uniform:9:5", "below the least"),
        ("uniform:a:5", "'a'"),
        ("normal:100:-1", "spread"),
        ("normal:nan:1", "'nan'"),
        ("zipf:1:2", "no length"),
        ("trace:/nowhere.csv", "/nowhere"),
    ],
)
def test_bad_lengths(text: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        parse_lengths("prompt-tokens", text, "prompt_tokens")


def test_lengths_beyond_the_context_or_below_the_template() -> None:
    with pytest.raises(SettingsError, match=r"class long: 1000 prompt tokens .* 1064; .* holds 1024"):
        check_lengths(parse_classes("long=1000", ""), COMPOSERS, 1024)
    with pytest.raises(SettingsError, match="class short: 11 prompt tokens are too few"):
        check_lengths(parse_classes("short=11", ""), COMPOSERS, None)
    check_lengths(parse_classes("", ""), COMPOSERS, 1024)


def test_a_ratio_is_recovered_from_counts() -> None:
    ratio = measure_ratio("en", lambda text: round(9 + 0.4 * len(text)), seed=0)
    assert ratio.per_character == pytest.approx(0.4, rel=0.01)
    assert ratio.overhead == pytest.approx(9, abs=1)
    text = TokenRatio("en", 9, 0.4).compose(209, random.Random(0), 5)
    assert len(text) == pytest.approx(500, abs=1)


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
    classes = parse_classes("short=8,long=uniform:900:950", "5")
    assert [c.prompt_tokens for c in classes.values()] == [
        Lengths("fixed", 8), Lengths("fixed", 128), Lengths("uniform", 900, 950),
    ]  # fmt: skip
    assert {c.max_tokens for c in classes.values()} == {Lengths("fixed", 5)}
    assert [class_of(tokens, parse_classes("", "")) for tokens in (1, 32, 70, 128, 300, 5000)] == [
        "short", "short", "medium", "medium", "long", "long",
    ]  # fmt: skip


@pytest.mark.parametrize("lengths", ["0", "short=0", "short=1.5", "tiny=3", "short=3,,"])
def test_bad_classes(lengths: str) -> None:
    with pytest.raises(SettingsError):
        parse_classes(lengths, "")
