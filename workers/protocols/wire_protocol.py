"""The seam between the client and what it speaks: a path, headers, a body, and a reader of events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workers.protocols.token_stream import TokenStream


@dataclass(frozen=True, slots=True)
class WireProtocol:
    """One way to ask an LLM service for a streamed answer."""

    name: str
    #: Below the target's prefix, such as ``/v1``.
    path: str
    #: Header lines, each with its line end, for a key or for none.
    headers: Callable[[str | None], str]
    #: The JSON of a request: model, text of the prompt, most tokens of the answer, further members.
    body: Callable[[str, str, int, dict[str, Any]], bytes]
    stream: type[TokenStream]


def bearer(key: str | None) -> str:
    return f"Authorization: Bearer {key}\r\n" if key else ""
