"""What is in use, as the pages of a program and the machine say it: everything has to be gone when nobody
asks for anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

OF_GATEWAY = {
    "gguf_worker_gateway_active": "generations",
    "gguf_worker_gateway_waiting": "waiting",
    "gguf_worker_gateway_kv_cells_promised": "kv_cells_promised",
}
"""Figures of /metrics."""


def in_use(status: Mapping[str, Any]) -> dict[str, int]:
    """Of /v1/status: what the workers hold, what the API promised, what clients of the node have open."""
    found: dict[str, int] = {}
    executions = [worker["execution"] or {} for worker in status.get("workers", ())]
    if executions:
        found["sessions"] = sum(one.get("sessions", 0) for one in executions)
        found["kv_cells"] = sum(one.get("kv_cells_used", 0) for one in executions)
    if (gateway := status.get("gateway")) is not None:
        found["requests"] = gateway["active"]
        found["generations"] = sum(model["active"] for model in gateway["models"])
        found["waiting"] = sum(model["waiting"] for model in gateway["models"])
        found["kv_cells_promised"] = sum(model["kv_cells_promised"] for model in gateway["models"])
    if (node := status.get("node")) is not None:
        found["sessions_of_clients"] = node["sessions"]
        found["open_works"] = node["works"]
    return found


def in_use_by_metrics(page: str) -> dict[str, int]:
    """Of the /metrics of a gateway, which has no status of workers."""
    found = dict.fromkeys(OF_GATEWAY.values(), 0)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name in OF_GATEWAY:
                found[OF_GATEWAY[sample.name]] += int(sample.value)
    return found


def restarts(status: Mapping[str, Any]) -> int:
    """Of /v1/status."""
    return sum(worker["restarts"] for worker in status.get("workers", ()))


def descriptors(pid: int) -> int:
    """Of a process and of those that it started."""
    return sum(process.num_fds() for process in _family(pid))


def processes(pid: int) -> int:
    """It and those that it started."""
    return len(_family(pid))


def cpu_s(pid: int) -> float:
    """Seconds of the process alone, since it began."""
    return float(sum(psutil.Process(pid).cpu_times()[:2]))


def resident_mib(pid: int) -> float:
    """Of the process alone."""
    return float(psutil.Process(pid).memory_info().rss / 2**20)


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]
