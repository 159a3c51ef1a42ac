"""How this process's memory allocator treats large blocks."""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Of glibc's malloc.h."""

LARGE_BYTES: Final = 32 * 1024 * 1024
"""glibc takes no more for the second one."""
KEPT_BYTES: Final = 256 * 1024 * 1024


def keep_large_blocks() -> bool:
    """Makes the allocator keep up to 256 MiB that were freed, and with them blocks of up to 32 MiB; whether
    it can. By default each frame with a prefill's rows is mapped anew and faulted in page by page, several
    times on its way, which costs more than its copies. For programs to call at their start, never for a
    library."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # not glibc
    return all(
        mallopt(option, value) == 1
        for option, value in ((_M_MMAP_THRESHOLD, LARGE_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES))
    )
