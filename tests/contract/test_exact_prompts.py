"""Prompts have exactly the asked number of tokens as a real server counts them in its usage."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_server import engine_server
from tiny_model import make_tiny_served_model
from transformers import AutoTokenizer

from workers.composers import make_composers
from workers.errors import SettingsError
from workers.protocols import PROTOCOLS
from workers.route import find_route
from workers.service import Service
from workers.targets import resolve_target
from workers.tokenizer import TokenCounter

#: Trims the message, puts words before and behind it, and ends without the generation prompt of others.
ODD_TEMPLATE = (
    "{{ bos_token }}[SYSTEM] Answer in one line.\n{% for message in messages %}"
    "<{{ message['role'] | upper }}>{{ message['content'] | trim }}</{{ message['role'] | upper }}>\n\n{% endfor %}"
    "{% if add_generation_prompt %}[ASSISTANT]: {% endif %}"
)
NUM_PROMPTS = 300


@pytest.fixture(scope="module", params=["own template", "odd template"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    folder = make_tiny_served_model(tmp_path_factory.mktemp("model"))
    if request.param == "odd template":
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = ODD_TEMPLATE
        tokenizer.save_pretrained(folder)
    with engine_server("--model", str(folder), "--max-num-batched-tokens", "2048") as server:
        yield server.url, folder


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["openai-chat", "openai-completions"])
def test_usage_is_what_was_asked(served: tuple[str, Path], protocol: str) -> None:
    """300 prompts of up to 2,000 tokens in both languages, from the shortest that the template leaves room for."""
    url, _ = served
    target = resolve_target(url, {})
    service = Service(target, find_route(target, trust_env=False), PROTOCOLS[protocol])
    model = service.first_model()
    composers = make_composers(service, model, ("en", "zh"), seed=3, counter=None)
    rng = random.Random(1)
    for number in range(NUM_PROMPTS):
        composer = composers[("en", "zh")[number % 2]]
        least = composer.least_tokens
        tokens = least + number // 2 if number < 40 else round(least * (2000 / least) ** rng.random())
        assert service.usage(model, composer.compose(tokens, rng, number)) == tokens
    service.close()
    if protocol == "openai-completions":
        assert {composer.least_tokens for composer in composers.values()} == {1}


@pytest.mark.slow
def test_a_tokenizer_of_ones_own_in_place_of_the_service_s(
    served: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that does not count: the template's tokens come from one usage, the rest from the tokenizer."""
    url, folder = served
    target = resolve_target(url, {})
    service = Service(target, find_route(target, trust_env=False), PROTOCOLS["openai-chat"])
    model = service.first_model()
    counted = make_composers(service, model, ("en", "zh"), seed=3, counter=None)

    def does_not_count(*_: object) -> int:
        raise SettingsError("404")

    monkeypatch.setattr(service, "tokenize", does_not_count)
    composers = make_composers(service, model, ("en", "zh"), seed=3, counter=TokenCounter(str(folder)))
    for language, composer in composers.items():
        assert composer.least_tokens == counted[language].least_tokens
        for tokens in (composer.least_tokens, 53, 120, 700):
            assert service.usage(model, composer.compose(tokens, random.Random(tokens), tokens)) == tokens
    service.close()
