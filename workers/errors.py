"""What the load side refuses to start with. Gevent-free."""

from __future__ import annotations


class SettingsError(ValueError):
    """A setting that cannot work: the value, what is allowed, what to do, in one line."""
