"""The machine that something was measured on."""

from __future__ import annotations

import os
import platform


def describe_machine() -> dict[str, object]:
    """System, release, architecture and processors; nothing that names a place on the machine."""
    return {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "processors": os.cpu_count() or 1,
    }
