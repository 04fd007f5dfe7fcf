"""Runs a command that the kernel kills when the process that started it dies: ``die_with_parent.py COMMAND …``.

A file of its own, run before the command and replaced by it, because code between fork and exec is not safe in a
process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was told
        sys.exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
