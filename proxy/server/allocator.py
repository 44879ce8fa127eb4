"""The C allocator's three settings.

Belongs here: how freed memory is kept, and why. Never: a limit on memory. glibc gives every block above a threshold a
mapping of its own and hands it back when freed, so that each megabyte body costs hundreds of page faults, every time.
Kept in the heap, the same pages serve the next body: 3-4 times less CPU on megabyte bodies (research/performance.md 3).
"""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_MIB = 1024 * 1024


def keep_freed_memory() -> bool:
    """Apply the settings to this process; True if the allocator took them. Other libcs have no `mallopt`: ignored.

    glibc before 2.35 refuses a mapping threshold over 32 MiB; that one is taken there.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt.restype = ctypes.c_int
    mapped = mallopt(_M_MMAP_THRESHOLD, 1024 * _MIB) or mallopt(_M_MMAP_THRESHOLD, 32 * _MIB)
    trimmed = mallopt(_M_TRIM_THRESHOLD, 1024 * _MIB)
    padded = mallopt(_M_TOP_PAD, 32 * _MIB)
    return bool(mapped and trimmed and padded)
