"""Options of the API that is served over HTTP."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gguf_worker.cli.options import seconds, whole

if TYPE_CHECKING:
    from gguf_worker.gateway.gateway import GatewaySettings, Keys
    from gguf_worker.gateway.model import ModelSettings

API_PANEL = "API: OpenAI's, over --http"
KEY_VARIABLE = "GGUF_WORKER_API_KEY"


def _api(*names: str, help: str, **settings: Any) -> Any:  # noqa: A002 - typer's own name
    return typer.Option(*names, help=help, rich_help_panel=API_PANEL, **settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiOptions:
    """Who may ask, and how much."""

    api_key_file: Annotated[
        Path | None,
        _api(
            "--api-key-file",
            metavar="FILE",
            help="Who may use the API: one key a line, with the account that pays after it. "
            f"[dim]Default: ${KEY_VARIABLE}, where it is set; else everybody on this machine.[/dim]",
        ),
    ] = None
    http_insecure: Annotated[
        bool, _api("--http-insecure", help="Serve the API without a key where other machines reach it.")
    ] = False
    concurrency: Annotated[
        int | None,
        _api(
            "--concurrency",
            parser=whole(1),
            metavar="N",
            help="Generations at the same time. [dim]Default: as many as there are sessions.[/dim]",
        ),
    ] = None
    queue: Annotated[
        int,
        _api(
            "--queue",
            parser=whole(0),
            metavar="N",
            help="Requests that wait beyond these; more are answered with 429.",
        ),
    ] = 64
    default_max_tokens: Annotated[
        int,
        _api(
            "--default-max-tokens",
            parser=whole(1),
            metavar="N",
            help="Most tokens of a chat's answer where the client does not say.",
        ),
    ] = 1024
    request_timeout: Annotated[
        float,
        _api(
            "--request-timeout",
            parser=seconds,
            metavar="SECONDS",
            help="A request that is not answered by then, waiting included, is given up.",
        ),
    ] = 3600.0

    def keys(self) -> Keys | None:
        """Who may ask; None is everybody. Raises GgufWorkerError."""
        if self.api_key_file is None and not os.environ.get(KEY_VARIABLE):
            return None
        from gguf_worker.node.grpc.tokens import Tokens

        if self.api_key_file is not None:
            return Tokens.from_file(self.api_key_file)
        return Tokens.from_environment(KEY_VARIABLE)

    def model_settings(self) -> ModelSettings:
        """What each model's owner decides."""
        from gguf_worker.gateway.model import ModelSettings

        return ModelSettings(
            concurrency=self.concurrency, queue=self.queue, default_max_tokens=self.default_max_tokens
        )

    def gateway_settings(self) -> GatewaySettings:
        """What a client may take."""
        from gguf_worker.gateway.gateway import GatewaySettings

        return GatewaySettings(request_timeout_s=self.request_timeout)
