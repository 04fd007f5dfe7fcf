"""Graded prompts: real sentences of about the asked number of tokens, each with a beginning of its own. Gevent-free.

Pure: the same seed, worker and number give the same prompt to the byte. The salt stands first, so that no two prompts
share a prefix and a server's prefix cache has nothing to reuse.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from workers.errors import SettingsError
from workers.records import PROMPT_CLASSES

LANGUAGES = ("en", "zh", "both")

_ENGLISH = (
    "A harbour town keeps two clocks, one for the tide and one for the trains. ",
    "The committee asked for figures that could be checked by somebody who disliked the result. ",
    "Rain fell on the vineyard for nine days, and on the tenth the road to the mill was gone. ",
    "Explain to a new colleague why the oldest server in the room is still the busiest one. ",
    "Her notebook lists the price of bread in every city she crossed between March and August. ",
    "When the bridge was measured again, the northern pillar had settled by eleven millimetres. ",
    "Compare the two proposals with respect to cost, risk and the people who must live with them. ",
    "An orchestra tunes to the oboe because its pitch is the hardest to change in a hurry. ",
    "The letter was written in haste, folded twice, and delivered to the wrong house. ",
    "Summarise what the witness saw, what she inferred, and what she could not have known. ",
    "Every winter the ferry stops for a week, and the island learns again how much it needs salt. ",
    "Describe the steps by which a seed becomes a tree, leaving out nothing that takes a year. ",
)
_CHINESE = (
    "港口的钟楼每天报两次时，一次给渔船，一次给火车。",
    "请用三句话说明这份合同里哪些条款对乙方不利。",
    "连续下了九天的雨，第十天早上，通往磨坊的路不见了。",
    "向新来的同事解释，为什么机房里最旧的那台服务器反而最忙。",
    "她的笔记本里记着从三月到八月经过的每座城市的面包价格。",
    "重新测量大桥时，北侧的桥墩已经下沉了十一毫米。",
    "比较这两个方案的成本、风险，以及要长期使用它们的人的感受。",
    "乐队以双簧管定音，因为它的音高最不容易临时改变。",
    "那封信写得匆忙，折了两次，最后送到了邻居家里。",
    "概括证人看到了什么，推测了什么，又有什么是她不可能知道的。",
    "每年冬天渡轮停航一周，岛上的人才想起盐有多么重要。",
    "说明一粒种子怎样长成一棵树，凡是需要一年以上的步骤都不要省略。",
)
_SENTENCES = {"en": _ENGLISH, "zh": _CHINESE}
_SAMPLE_LENGTHS = (50, 1600)  # characters of the texts that a ratio is measured with
_NUM_SHORT_SAMPLES = 4  # short texts differ much in tokens a character


@dataclass(frozen=True, slots=True)
class PromptClass:
    """A grade of prompt: tokens in, chat template included, and at most ``max_tokens`` out."""

    name: str
    prompt_tokens: int
    max_tokens: int


DEFAULT_CLASSES = {
    "short": PromptClass("short", 32, 32),
    "medium": PromptClass("medium", 128, 48),
    "long": PromptClass("long", 512, 64),
}


@dataclass(frozen=True, slots=True)
class TokenRatio:
    """Tokens of a text of n characters as ``overhead + per_character * n``."""

    overhead: float
    per_character: float

    def characters(self, tokens: int) -> int:
        return max(1, round((tokens - self.overhead) / self.per_character))


#: Used until a server has been asked: typical of tokenizers with a vocabulary of 100,000 or more.
TYPICAL_RATIOS = {"en": TokenRatio(8, 0.23), "zh": TokenRatio(8, 0.65)}


@dataclass(frozen=True, slots=True)
class Prompt:
    prompt_id: str
    prompt_class: PromptClass
    text: str


class PromptSource:
    """The prompts of one worker, by number."""

    def __init__(
        self,
        classes: Mapping[str, PromptClass],
        language: str,
        seed: int,
        worker: str,
        ratios: Mapping[str, TokenRatio],
    ) -> None:
        self._classes = classes
        self._languages = ("en", "zh") if language == "both" else (language,)
        self._seed = seed
        self._worker = worker
        self._ratios = ratios

    def make(self, class_name: str, number: int) -> Prompt:
        """Prompt ``number`` of this worker, in the given class."""
        rng = random.Random(f"{self._seed}/{self._worker}/{number}")
        language = rng.choice(self._languages)
        prompt_class = self._classes[class_name]
        length = self._ratios[language].characters(prompt_class.prompt_tokens)
        salt = _salt(self._seed, self._worker, number)
        return Prompt(f"{self._worker}-{number}", prompt_class, _text(salt, language, length, rng))


def measure_ratios(count_tokens: Callable[[str], int], seed: int, worker: str) -> dict[str, TokenRatio]:
    """The ratio of each language, from the tokens of short texts and a long one as ``count_tokens`` tells them."""
    short_length, long_length = _SAMPLE_LENGTHS
    ratios = {}
    for language in _SENTENCES:
        name = f"{worker}/ratio/{language}"
        rng = random.Random(f"{seed}/{name}")
        samples = [_text(_salt(seed, name, n), language, short_length, rng) for n in range(_NUM_SHORT_SAMPLES)]
        short = sum(map(count_tokens, samples)) / _NUM_SHORT_SAMPLES
        long = count_tokens(_text(_salt(seed, name, _NUM_SHORT_SAMPLES), language, long_length, rng))
        per_character = (long - short) / (long_length - short_length)
        if per_character <= 0:
            return dict(TYPICAL_RATIOS)
        ratios[language] = TokenRatio(short - per_character * short_length, per_character)
    return ratios


def _salt(seed: int, worker: str, number: int) -> str:
    return hashlib.blake2b(f"{seed}/{worker}/{number}".encode(), digest_size=5).hexdigest()


def _text(salt: str, language: str, length: int, rng: random.Random) -> str:
    sentences = _SENTENCES[language]
    parts = [salt, " "]
    size = len(salt) + 1
    while size < length:
        parts.append(rng.choice(sentences))
        size += len(parts[-1])
    return "".join(parts)[: max(length, len(salt))]


def parse_mix(text: str) -> dict[str, float]:
    """``short=0.6,medium=0.3,long=0.1`` as weights by class.

    Raises:
        SettingsError: an unknown class, a weight that is none, or a sum other than 1.
    """
    mix = {name: _number(text, name, value) for name, value in _pairs("mix", text)}
    if abs(sum(mix.values()) - 1) > 1e-6:
        raise SettingsError(f"mix {text!r} adds up to {sum(mix.values()):g}; the weights must add up to 1")
    return {name: weight for name, weight in mix.items() if weight > 0}


def parse_classes(prompt_tokens: str, max_tokens: str) -> dict[str, PromptClass]:
    """The three classes with lengths changed as asked: ``short=32,long=512``, or one number for all.

    Raises:
        SettingsError: an unknown class, or a length that is no whole number from 1 up.
    """
    prompts = _lengths("prompt-tokens", prompt_tokens)
    outputs = _lengths("max-tokens", max_tokens)
    return {
        name: PromptClass(name, prompts.get(name, default.prompt_tokens), outputs.get(name, default.max_tokens))
        for name, default in DEFAULT_CLASSES.items()
    }


def _lengths(option: str, text: str) -> dict[str, int]:
    if not text:
        return {}
    pairs = [(name, text) for name in PROMPT_CLASSES] if "=" not in text else _pairs(option, text)
    lengths = {}
    for name, value in pairs:
        if not value.strip().isdigit() or int(value) < 1:
            raise SettingsError(f"{option} {text!r}: {value!r} is no whole number from 1 up")
        lengths[name] = int(value)
    return lengths


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


def _number(text: str, name: str, value: str) -> float:
    try:
        weight = float(value)
    except ValueError:
        weight = -1.0
    if not 0 <= weight <= 1:
        raise SettingsError(f"mix {text!r}: the weight of {name} is {value!r}; weights go from 0 to 1")
    return weight
