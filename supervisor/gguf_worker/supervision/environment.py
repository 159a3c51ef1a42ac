"""What a worker gets of the environment, unless its host's environment or the settings say otherwise."""

from __future__ import annotations

HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""llama.cpp clears its KV cells when it makes them, and the kernel gives them page by page: in pages of 4 KiB
that was a third of a small model's start. So glibc asks for transparent huge pages, which a kernel gives to
those who ask."""

GIVES_WAY = {"GOMP_SPINCOUNT": "5000"}
"""Between two steps the threads of OpenMP (GNU) spin, for milliseconds by default, on processors that the
next stage needs now. This many turns (about 0.1 ms) cover most waits in a step and end soon after it;
docs/architecture.md has the figures."""


def default_environment(*, gives_way: bool) -> dict[str, str]:
    """Of a worker that gives way to the other stages of its route, or is alone."""
    return HUGE_PAGES | GIVES_WAY if gives_way else HUGE_PAGES
