"""What a sweep shows on stderr while it runs: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cluster.plan import Level, remaining_s


class Progress:
    """Where the sweep stands. Levels that ended stay on the screen, one line each."""

    def __init__(self, levels: Sequence[Level], console: Console | None = None) -> None:
        self._levels = levels
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._latest: dict[str, Any] = {}

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def note(self, text: str) -> None:
        """Something worth a line of its own."""
        self._console.print(text, markup=False)

    def stage(self, text: str) -> None:
        """What is being waited for."""
        if self._console.is_terminal:
            self._live.update(Text(text))
        else:
            self.note(text)

    def update(self, event: dict[str, Any]) -> None:
        """A ``progress`` event of the Locust master."""
        self._latest = event
        if self._console.is_terminal:
            self._live.update(Text(self._line(event)))

    def level_ended(self, event: dict[str, Any], note: str | None) -> None:
        level = self._levels[event["level"]]
        failures = event["rows"] - event["outcomes"].get("ok", 0)
        parts = [
            f"level {level.level + 1}/{len(self._levels)}",
            f"{level.users} users",
            f"{event['rows']} requests",
            f"{failures} failed",
            *_rates(self._latest),
            *([note] if note else []),
        ]
        self._latest = {}
        self.note("  ".join(parts))

    def _line(self, event: dict[str, Any]) -> str:
        level = self._levels[event["level"]]
        left_s = remaining_s(self._levels, event["level"], event["elapsed_s"])
        parts = [
            f"level {level.level + 1}/{len(self._levels)}",
            f"{level.users} users",
            f"{event['in_flight']} in flight",
            *_rates(event),
            f"{left_s:.0f} s left",
        ]
        return "  ".join(parts)


def _rates(event: dict[str, Any]) -> list[str]:
    parts = [f"{event['tokens_per_s']:.0f} tokens/s"] if "tokens_per_s" in event else []
    if event.get("ttft_p50_ms") is not None:
        parts.append(f"TTFT {event['ttft_p50_ms']:.0f} ms")
    return parts
