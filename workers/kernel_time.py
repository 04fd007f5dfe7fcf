"""When the kernel received what a socket hands over. Gevent-free.

Linux stamps each segment when it arrives (``SO_TIMESTAMPNS``); a busy process that reads it late still learns when the
token came. Of what one read brings, the stamp is that of its newest segment.

Source: socket(7), ``SO_TIMESTAMPNS``: a ``timespec`` of the wall clock as a control message.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any

_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@qq")
#: Seconds and nanoseconds of a stamp's control message.
unpack_stamp = _TIMESPEC.unpack
#: Room that ``recvmsg`` needs for a stamp.
CONTROL_BYTES = socket.CMSG_SPACE(_TIMESPEC.size) if hasattr(socket, "CMSG_SPACE") else 0


def enable_stamps(connected: Any) -> bool:
    """Ask for stamps on a socket; False where there are none to be had."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        connected.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def stamp_of(ancillary: list[tuple[int, int, bytes]]) -> int:
    """The stamp (wall clock, ns) among the control messages of a read; no other kind is asked for."""
    seconds, nanoseconds = unpack_stamp(ancillary[0][2])
    return seconds * 1_000_000_000 + nanoseconds
