"""What is asked of a service while its page is looked at."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

from served import Served


def complete(served: Served, n_tokens: int, *, prompt: str = "Once upon") -> Any:
    """One generation."""
    host, port = served.address
    body = json.dumps({"prompt": prompt, "max_tokens": n_tokens}).encode()
    asked = urllib.request.Request(
        f"http://{host}:{port}/v1/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=300) as answer:
        return json.load(answer)
