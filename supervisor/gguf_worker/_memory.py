"""What our programs ask of their memory management; not for a library to call."""

from __future__ import annotations

import ctypes
import gc
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Of glibc's malloc.h."""

LARGE_BYTES: Final = 32 * 1024 * 1024
"""glibc takes no more for the second one."""
KEPT_BYTES: Final = 256 * 1024 * 1024

_COLLECTIONS: Final = (700, 10, 100)
"""As of `gc.set_threshold`; Python's own are 700, 10 and 10."""


def keep_large_blocks() -> bool:
    """Makes the allocator keep up to 256 MiB that were freed, and with them blocks of up to 32 MiB; whether
    it can. By default each frame with a prefill's rows is mapped anew and faulted in page by page, several
    times on its way, which costs more than its copies. To be called at the start."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # not glibc
    return all(
        mallopt(option, value) == 1
        for option, value in ((_M_MMAP_THRESHOLD, LARGE_BYTES), (_M_TRIM_THRESHOLD, KEPT_BYTES))
    )


def keep_what_is_loaded() -> None:
    """Lets the garbage collector leave out, from now on, what there is already: modules, classes and whatever
    lives as long as the process. Each look through all of it stopped the event loop for 0.1 to 0.2 s, some
    times a minute under load, and found nothing. Looks at what came since and is not young any more are made
    a tenth as often as by default. To be called once everything is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)
