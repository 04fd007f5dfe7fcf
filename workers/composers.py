"""Who composes prompts for a service: as exact as it lets itself be counted. Gevent-free."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from workers.errors import SettingsError
from workers.prompt_classes import PromptClass
from workers.prompts import Composer
from workers.service import Service
from workers.token_ratio import TYPICAL_RATIOS, measure_ratio
from workers.token_scale import CorrectedScale, CountTokens, weigh
from workers.tokenizer import TokenCounter

logger = logging.getLogger(__name__)
_SAMPLE = "Note: a few words to count"


def make_composers(
    service: Service, model: str, languages: tuple[str, ...], seed: int, counter: TokenCounter | None
) -> dict[str, Composer]:
    """A composer for each language.

    Counted by the service itself where it counts for nothing; else by a tokenizer of one's own, with the template's
    tokens from the usage of one short answer; else estimated from the usage of a few.
    """
    try:
        return _exact(languages, lambda text: service.tokenize(model, text), seed)
    except SettingsError as error:
        if counter is None:
            logger.info("%s; lengths are estimated from usage", error)
            return _estimated(service, model, languages, seed)
    try:
        template = service.usage(model, _SAMPLE) - counter.count(_SAMPLE)
    except SettingsError as error:
        logger.warning("%s; the tokens of its chat template are not known and count as none", error)
        template = 0
    return _exact(languages, lambda text: counter.count(text) + template, seed)


def check_lengths(classes: Mapping[str, PromptClass], composers: Mapping[str, Composer], most: int | None) -> None:
    """
    Raises:
        SettingsError: a class asks for less than the template takes, or for more than the model's context holds.
    """
    least = max(composer.least_tokens for composer in composers.values())
    for prompt_class in classes.values():
        lengths, tokens = prompt_class.prompt_tokens, prompt_class.prompt_tokens.typical
        if lengths.kind == "fixed" and tokens < least:
            raise SettingsError(
                f"class {prompt_class.name}: {tokens} prompt tokens are too few; the service's template leaves no text "
                f"below {least}"
            )
        total = lengths.most + prompt_class.max_tokens.most
        if most is not None and total > most:
            raise SettingsError(
                f"class {prompt_class.name}: {lengths.most} prompt tokens and {prompt_class.max_tokens.most} of answer "
                f"are {total}; the model's context holds {most}"
            )


def _exact(languages: tuple[str, ...], count: CountTokens, seed: int) -> dict[str, Composer]:
    composers: dict[str, Composer] = {}
    for language in languages:
        scale = weigh(language, count, seed)
        composers[language] = scale if scale.is_exact else CorrectedScale(scale, count)
    return composers


def _estimated(service: Service, model: str, languages: tuple[str, ...], seed: int) -> dict[str, Composer]:
    def count(text: str) -> int:
        return service.usage(model, text)

    try:
        return {language: measure_ratio(language, count, seed) for language in languages}
    except SettingsError as error:
        logger.warning("%s; prompt lengths are guesses", error)
        return {language: TYPICAL_RATIOS[language] for language in languages}
