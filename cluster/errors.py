"""What stops a command: wrong input, before anything was started, or a run that failed."""

from __future__ import annotations


class ClusterError(Exception):
    """Base of what a command ends with; the message is one line, ``exit_code`` what the shell sees."""

    exit_code = 1


class UsageError(ClusterError):
    """Input that cannot work: the value, what is allowed, what to do."""

    exit_code = 2


class RunError(ClusterError):
    """The run started and could not go on; what was measured is kept."""
