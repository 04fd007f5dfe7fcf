"""The Retry-After header: seconds, or a date. Gevent-free.

Source: RFC 9110, section 10.2.3.
"""

from __future__ import annotations

from email.utils import parsedate_to_datetime

_MAX_S = 86_400.0


def retry_after_ns(value: str | None, now_unix_s: float) -> int | None:
    """How long to wait, at most a day; None where nothing is asked for, or nothing that can be read."""
    if not value:
        return None
    try:
        seconds = float(value)  # OpenAI's gateways also send fractions
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - now_unix_s
        except ValueError:
            return None
    if seconds != seconds:
        return None
    return round(min(max(seconds, 0.0), _MAX_S) * 1e9)
