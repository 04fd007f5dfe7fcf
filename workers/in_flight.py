"""How many requests of this process are on their way. Gevent-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class InFlight:
    count: int = 0
