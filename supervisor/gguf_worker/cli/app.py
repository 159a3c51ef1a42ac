"""The commands and their options. Each command makes one frozen config and calls one function.

A command imports what it needs when it is called, so that help and wrong usage are answered at once.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

import gguf_worker
from gguf_worker.cli.errors import CommandError, guarded
from gguf_worker.cli.gateway_options import API_PANEL, ApiOptions
from gguf_worker.cli.layers import parse_cuts, parse_layers
from gguf_worker.cli.node_options import NodeOptions, PeerOptions, parse_address
from gguf_worker.cli.options import (
    CacheDir,
    Engine,
    HostOptions,
    Json,
    Model,
    RecipeOptions,
    SamplingOptions,
    TrackerOptions,
    seconds,
    with_options,
)
from gguf_worker.cli.streams import prepare_streams

SERVICE_PANEL = "Service: restarts, status, stop and log"

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Runs a GGUF model as supervised shards: each range of layers in one worker process on stock "
        "llama.cpp, together bit for bit the unsplit model.\n\n"
        "[bold]Start here[/bold]\n\n"
        "gguf-worker doctor\n\n"
        "gguf-worker inspect model.gguf\n\n"
        "gguf-worker run model.gguf --prompt 'Once upon a time' --shards 3"
    ),
)
cache_app = typer.Typer(
    no_args_is_help=True, help="Shows or prunes the shard files that were written for workers."
)
app.add_typer(cache_app, name="cache")


def run_command_line() -> int:
    """Runs the command line of this process and returns its exit status."""
    prepare_streams()
    return guarded(lambda: app(prog_name="gguf-worker", standalone_mode=False))


@app.command("run")
@with_options
def run_command(
    model: Model,
    prompt: Annotated[str, typer.Option("--prompt", "-p", metavar="TEXT", help="The text to go on from.")],
    recipe: RecipeOptions,
    sampling: SamplingOptions,
    host: HostOptions,
    max_tokens: Annotated[
        int,
        typer.Option(
            *("--max-tokens", "--predict", "-n"), min=1, metavar="N", help="Most tokens to generate."
        ),
    ] = 128,
    shards: Annotated[
        int | None,
        typer.Option(
            "--shards",
            min=1,
            metavar="N",
            help="Divide the layers among N workers, so that the largest is as small as can be. "
            "[dim]Default: 1.[/dim]",
        ),
    ] = None,
    cuts: Annotated[
        str | None,
        typer.Option(
            "--cuts", metavar="A,B,…", help="Or cut before these layers: 10,20 makes three workers."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Generates text through one or more supervised workers.

    The text streams to stdout; progress and the table of workers go to stderr.

    [bold]Examples[/bold]

    gguf-worker run model.gguf -p "The capital of France is" -n 16

    gguf-worker run model.gguf -p "Once upon a time" --shards 3 --temp 0.8 --top-p 0.95 --seed 7

    gguf-worker run model.gguf -p "Once upon a time" --cuts 10,20 --logprobs 3 --json
    """
    from gguf_worker.cli import interrupt, run

    if cuts is not None and shards is not None:
        raise CommandError("--shards and --cuts were both given", remedy="give one of them")
    sampling.check_shown(json=json)
    config = run.RunConfig(
        model=model,
        prompt=prompt,
        max_tokens=max_tokens,
        n_shards=shards or 1,
        cuts=None if cuts is None else parse_cuts(cuts),
        recipe=recipe.recipe(),
        sampling=sampling.sampling(),
        host=host,
        json=json,
    )
    interrupt.run_interruptibly(run.run, config)


@app.command("serve")
@with_options
def serve_command(
    model: Model,
    recipe: RecipeOptions,
    host: HostOptions,
    node: NodeOptions,
    tracker: TrackerOptions,
    api: ApiOptions,
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers",
            metavar="A:B",
            help="Serve layers A up to, not including, B. [dim]Default: all that MODEL holds.[/dim]",
        ),
    ] = None,
    shards: Annotated[
        int,
        typer.Option("--shards", min=1, metavar="N", help="Divide them among N workers, by bytes."),
    ] = 1,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            rich_help_panel=SERVICE_PANEL,
            help="Serve OpenAI's API there, where the workers hold a complete model, and show /healthz, "
            "/readyz, /metrics and /v1/status; port 0 is any that is free. Anything but loopback lets other "
            "machines read these, and needs a key for the API. [dim]Default: no HTTP.[/dim]",
        ),
    ] = None,
    alias: Annotated[
        str | None,
        typer.Option(
            *("--alias", "-a"),
            metavar="NAME",
            rich_help_panel=API_PANEL,
            help="What the API calls the model. [dim]Default: as its file, without .gguf.[/dim]",
        ),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(
            "--restarts",
            min=0,
            metavar="N",
            rich_help_panel=SERVICE_PANEL,
            help="Give up a worker that needs more restarts than this within --restart-window, or in a row "
            "without having been ready for a minute.",
        ),
    ] = 5,
    restart_window: Annotated[
        float,
        typer.Option(
            "--restart-window",
            parser=seconds,
            metavar="SECONDS",
            rich_help_panel=SERVICE_PANEL,
            help="The sliding window in which restarts are counted.",
        ),
    ] = 600.0,
    restart_backoff: Annotated[
        float,
        typer.Option(
            "--restart-backoff",
            parser=seconds,
            metavar="SECONDS",
            rich_help_panel=SERVICE_PANEL,
            help="The wait before the first restart; each further one waits twice as long, up to 30 seconds.",
        ),
    ] = 0.5,
    compute_nice: Annotated[
        int,
        typer.Option(
            "--compute-nice",
            min=0,
            max=19,
            metavar="0-19",
            rich_help_panel=SERVICE_PANEL,
            help="How far the threads that compute give way to others on this machine, as nice(1) has it. "
            "This process answers in time where they do.",
        ),
    ] = 10,
    drain_timeout: Annotated[
        float,
        typer.Option(
            "--drain-timeout",
            parser=seconds,
            metavar="SECONDS",
            rich_help_panel=SERVICE_PANEL,
            help="How long running requests may take to finish after SIGTERM or Ctrl-C.",
        ),
    ] = 30.0,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option("--log-level", rich_help_panel=SERVICE_PANEL, help="The least that is logged."),
    ] = "info",
    json: Annotated[
        bool | None,
        typer.Option(
            "--json/--text",
            rich_help_panel=SERVICE_PANEL,
            show_default=False,
            help="Log lines as JSON, or as text for people. [dim]Default: text on a terminal, where a live "
            "view of the workers is shown as well; else JSON.[/dim]",
        ),
    ] = None,
) -> None:
    """Runs supervised workers in the foreground until SIGTERM or Ctrl-C; as a node of a mesh, where asked.

    A worker that dies is started again with the same identity. The log goes to stderr. SIGTERM or Ctrl-C lets
    running requests finish; a second one kills the workers at once. systemd is told when all workers are
    ready, what they do, and that the service lives (Type=notify, WatchdogSec).

    With --listen or --relay the workers are stages of a mesh: registered with the tracker, and served to
    whoever forms a route over them. Every work has a receipt.

    [bold]Exit status[/bold]: 0 stopped as it was asked; 1 could not start or go on (a refused load, a taken
    port); 2 wrong usage; 69 a worker was given up after too many restarts; 130 or 143 killed by a second
    Ctrl-C or SIGTERM.

    [bold]Examples[/bold]

    gguf-worker serve model.gguf --http 127.0.0.1:8080

    gguf-worker serve model.gguf --layers 0:16 --shards 2 --parallel 8 --drain-timeout 60

    gguf-worker serve model.gguf --layers 0:16 --listen 127.0.0.1:0 --tracker nats://127.0.0.1:4222
    """
    from gguf_worker.cli import serve
    from gguf_worker.supervision.policy import RestartPolicy

    served_api = None
    if http is not None:
        served_api = serve.served_api(
            api,
            alias or model,
            certificates=node.certificate or (),
            drain_timeout_s=drain_timeout,
        )
    config = serve.ServeConfig(
        model=model,
        layers=None if layers is None else parse_layers(layers),
        n_shards=shards,
        recipe=recipe.recipe(),
        host=host,
        http=None if http is None else parse_address("--http", http),
        api=served_api,
        restart=RestartPolicy(
            max_restarts=restarts, window_s=restart_window, backoff_initial_s=restart_backoff
        ),
        compute_nice=compute_nice,
        drain_timeout_s=drain_timeout,
        node=serve.served_node(node, tracker, has_http=http is not None, drain_timeout_s=drain_timeout),
        as_json=not sys.stderr.isatty() if json is None else json,
        log_level=logging.getLevelNamesMapping()[log_level.upper()],
    )
    raise typer.Exit(serve.serve(config))


@app.command("generate")
@with_options
def generate_command(
    prompt: Annotated[str, typer.Option("--prompt", "-p", metavar="TEXT", help="The text to go on from.")],
    tracker: TrackerOptions,
    sampling: SamplingOptions,
    peers: PeerOptions,
    model: Annotated[
        str | None,
        typer.Option(
            *("--model", "-m"),
            metavar="NAME",
            help="The model's name, or its artifact's digest or the begin of that. [dim]Default: any that "
            "there is a route for.[/dim]",
        ),
    ] = None,
    max_tokens: Annotated[
        int,
        typer.Option(
            *("--max-tokens", "--predict", "-n"), min=1, metavar="N", help="Most tokens to generate."
        ),
    ] = 128,
    deadline: Annotated[
        float | None,
        typer.Option(
            "--deadline",
            parser=seconds,
            metavar="SECONDS",
            help="Give up after so long, at every stage. [dim]Default: never.[/dim]",
        ),
    ] = None,
    account: Annotated[
        str, typer.Option("--account", metavar="NAME", help="Who pays, where nodes ask for no token.")
    ] = "",
    timings: Annotated[
        bool, typer.Option("--timings", help="Show what each stage did and how long it took.")
    ] = False,
    json: Json = False,
) -> None:
    """Generates text over the nodes of a mesh.

    A route is formed of the nodes that the tracker knows: complete, of one artifact, recipe and build, with a
    certificate. The text streams to stdout, the route and what became of it go to stderr. A node that is lost
    is replaced, or waited for, and the text goes on. Ctrl-C cancels the work at every stage.

    [bold]Examples[/bold]

    gguf-worker generate --tracker nats://127.0.0.1:4222 -p "Once upon a time"

    gguf-worker generate --tracker nats://127.0.0.1:4222 -m SmolLM2 -p "Once" --relay-only --timings
    """
    from gguf_worker.cli import generate, interrupt

    sampling.check_shown(json=json)
    config = generate.GenerateConfig(
        nats=tracker.nats_options("gguf-worker generate"),
        peers=peers,
        model=model,
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=sampling.sampling(),
        deadline_s=deadline,
        account=account,
        timings=timings,
        json=json,
    )
    interrupt.run_interruptibly(generate.generate, config)


@app.command("gateway")
@with_options
def gateway_command(
    http: Annotated[
        str,
        typer.Option(
            "--http",
            metavar="HOST:PORT",
            help="Where the API is served; port 0 is any that is free. Anything but loopback needs a key.",
        ),
    ],
    tracker: TrackerOptions,
    api: ApiOptions,
    peers: PeerOptions,
    drain_timeout: Annotated[
        float,
        typer.Option(
            "--drain-timeout",
            parser=seconds,
            metavar="SECONDS",
            help="How long running requests may take to finish after SIGTERM or Ctrl-C.",
        ),
    ] = 30.0,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        typer.Option("--log-level", help="The least that is logged."),
    ] = "info",
    json: Annotated[
        bool | None,
        typer.Option(
            "--json/--text",
            show_default=False,
            help="Log lines as JSON, or as text for people. [dim]Default: text on a terminal, else "
            "JSON.[/dim]",
        ),
    ] = None,
) -> None:
    """Serves OpenAI's API over the nodes of a mesh until SIGTERM or Ctrl-C.

    Every model that the nodes which the tracker knows form a route of can be asked for by its name. A node
    that is lost is replaced, or waited for, and the text goes on. A client that leaves has its work cancelled
    at every node.

    [bold]Examples[/bold]

    gguf-worker gateway --tracker nats://127.0.0.1:4222 --http 127.0.0.1:8000

    gguf-worker gateway --tracker tls://nats.example:4222 --http 0.0.0.0:8000 --api-key-file keys
    """
    from gguf_worker.cli import gateway

    config = gateway.GatewayConfig(
        nats=tracker.nats_options("gguf-worker gateway"),
        peers=peers,
        http=parse_address("--http", http),
        keys=api.keys(),
        is_insecure=api.http_insecure,
        model=api.model_settings(),
        gateway=api.gateway_settings(),
        drain_timeout_s=drain_timeout,
        as_json=not sys.stderr.isatty() if json is None else json,
        log_level=logging.getLevelNamesMapping()[log_level.upper()],
    )
    raise typer.Exit(gateway.gateway(config))


@app.command("nodes")
@with_options
def nodes_command(
    tracker: TrackerOptions,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on, and show every change until Ctrl-C.")
    ] = False,
    json: Json = False,
) -> None:
    """Shows the nodes of a mesh: what they serve, how full they are, and when they were last heard of.

    What is shown was attested by the engines that serve it. With --watch and --json there is one JSON object
    on each line.

    [bold]Example[/bold]

    gguf-worker nodes --tracker nats://127.0.0.1:4222 --watch
    """
    from gguf_worker.cli import interrupt, nodes

    config = nodes.NodesConfig(nats=tracker.nats_options("gguf-worker nodes"), watch=watch, json=json)
    interrupt.run_interruptibly(nodes.show_nodes, config)


@app.command("routes")
@with_options
def routes_command(
    tracker: TrackerOptions,
    model: Annotated[
        str | None,
        typer.Option(
            *("--model", "-m"),
            metavar="NAME",
            help="Only of this model: its name, its artifact's digest, or how one of them begins.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Shows the routes that the nodes of a mesh form, and why the rest is in none.

    A route is complete, of one artifact, one recipe and one class of builds, and there is a certificate for
    it. Of each recipe that route is shown that is the best by load and number of stages; whoever uses it
    measures how far the nodes are as well.

    The exit status is 0 where there is a route, and 1 where there is none.

    [bold]Example[/bold]

    gguf-worker routes --tracker nats://127.0.0.1:4222 --model SmolLM2
    """
    from gguf_worker.cli import interrupt, routes

    config = routes.RoutesConfig(nats=tracker.nats_options("gguf-worker routes"), model=model, json=json)
    raise typer.Exit(interrupt.run_interruptibly(routes.show_routes, config))


@app.command("plan")
@with_options
def plan_command(
    model: Model,
    recipe: RecipeOptions,
    host: HostOptions,
    shards: Annotated[
        int | None,
        typer.Option("--shards", min=1, metavar="N", help="Divide the layers among N workers, by bytes."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="SIZE,SIZE,…",
            help="Or fit them into machines of so much memory, in this order: 8GiB,16GiB.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Proposes where to cut a model, so that no worker or machine has more to hold than it must.

    Counted are tensors, KV cells of the whole context, and scratch buffers. No weights are loaded.
    The exit status is 1 when the model does not fit into the given memory.

    [bold]Examples[/bold]

    gguf-worker plan model.gguf --shards 3 --ctx-size 8192

    gguf-worker plan model.gguf --memory 8GiB,16GiB,8GiB --cache-type-k q8_0 --cache-type-v q8_0
    """
    from gguf_worker.cli import interrupt, plan

    if (shards is None) == (memory is None):
        raise CommandError("a plan needs --shards or --memory", remedy="give one of them")
    config = plan.PlanConfig(
        model=model,
        n_shards=shards,
        capacities=None if memory is None else plan.parse_capacities(memory),
        options=recipe,
        recipe=recipe.recipe(),
        host=host,
        json=json,
    )
    raise typer.Exit(interrupt.run_interruptibly(plan.propose, config))


@app.command("certify")
@with_options
def certify_command(
    model: Model,
    recipe: RecipeOptions,
    host: HostOptions,
    cuts: Annotated[
        list[str] | None,
        typer.Option(
            "--cuts",
            metavar="A,B,…",
            help="Cut before these layers; may be given again for another way to cut. "
            "[dim]Default: halves, and thirds.[/dim]",
        ),
    ] = None,
    prompts: Annotated[
        list[str] | None,
        typer.Option(
            "--prompt",
            "-p",
            metavar="TEXT",
            help="A text to compare on; may be given again. [dim]Default: four of different kinds.[/dim]",
        ),
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", min=1, metavar="N", help="Rows decoded after each text.")
    ] = 24,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where the certificate is written, as JSON."),
    ] = None,
    json: Json = False,
) -> None:
    """Measures whether a cut model computes what the unsplit one does, and writes a certificate.

    Texts and random tokens are computed in one chunk, row by row, and batched with other sessions, unsplit
    and with each cut; every logit is compared bit for bit. The certificate also says whether the recipe is
    batch-invariant (alone equals batched) and chunk-invariant (row by row equals one chunk).

    The exit status is 0 only where every cut equals the unsplit model, and 1 where one does not.

    [bold]Examples[/bold]

    gguf-worker certify model.gguf --output certificate.json

    gguf-worker certify model.gguf --cuts 10,20 --cuts 15 --threads 1 --no-kv-unified
    """
    from gguf_worker.cli import certify, interrupt

    config = certify.CertifyConfig(
        spec=host.spec(model, recipe.recipe()),
        cuts=tuple(parse_cuts(text) for text in cuts or ()),
        prompts=tuple(prompts or ()),
        n_steps=steps,
        output=output,
        command=certify.command_line(model, recipe, cuts or (), prompts or (), steps),
        json=json,
    )
    raise typer.Exit(interrupt.run_interruptibly(certify.certify_model, config))


@app.command("inspect")
def inspect_command(
    model: Model, engine: Engine = "llama", cache_dir: CacheDir = None, json: Json = False
) -> None:
    """Says what a model file holds, whether it is supported, and where it may be cut.

    The file is parsed in a worker process, so a malformed one can harm nothing else.

    [bold]Example[/bold]

    gguf-worker inspect model-00001-of-00003.gguf --json
    """
    from gguf_worker.cli import inspect, interrupt

    interrupt.run_interruptibly(
        inspect.inspect,
        inspect.InspectConfig(model=model, engine=engine, cache_dir=_text(cache_dir), json=json),
    )


@app.command("slice")
def slice_command(
    model: Model,
    layers: Annotated[
        str, typer.Option("--layers", metavar="A:B", help="Layers from A up to, not including, B.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")],
    force: Annotated[bool, typer.Option("--force", "-f", help="Replace FILE if it exists.")] = False,
    engine: Engine = "llama",
    cache_dir: CacheDir = None,
    json: Json = False,
) -> None:
    """Writes a range of layers as one self-contained GGUF, so that a node can hold only its slice.

    FILE appears whole or not at all.

    [bold]Example[/bold]

    gguf-worker slice model.gguf --layers 10:20 --output middle.gguf
    """
    from gguf_worker.cli import interrupt, slicing

    config = slicing.SliceConfig(
        model=model,
        layers=parse_layers(layers),
        output=output,
        force=force,
        engine=engine,
        cache_dir=_text(cache_dir),
        json=json,
    )
    interrupt.run_interruptibly(slicing.slice_model, config)


@app.command("version")
def version_command(engine: Engine = "llama", json: Json = False) -> None:
    """Shows the versions, and the llama.cpp commit that is pinned and the one that is loaded."""
    from gguf_worker.cli import interrupt, version

    interrupt.run_interruptibly(version.show_version, version.VersionConfig(engine=engine, json=json))


@app.command("doctor")
def doctor_command(cache_dir: CacheDir = None, json: Json = False) -> None:
    """Looks for what is missing on this machine and names the command that mends it.

    The exit status is 1 when something is missing.
    """
    from gguf_worker.cli import doctor, interrupt

    config = doctor.DoctorConfig(cache_dir=cache_dir, json=json)
    raise typer.Exit(interrupt.run_interruptibly(doctor.examine, config))


@app.command("receipts")
@with_options
def receipts_command(
    tracker: TrackerOptions,
    ledger: Annotated[
        Path | None,
        typer.Option(
            "--ledger",
            metavar="FILE",
            help="A node's ledger; a node may be writing it. [dim]Default: "
            "$XDG_STATE_HOME/gguf-worker/receipts.sqlite, else the same in ~/.local/state.[/dim]",
        ),
    ] = None,
    work: Annotated[str | None, typer.Option("--work", metavar="ID", help="Only of this work.")] = None,
    account: Annotated[
        str | None, typer.Option("--account", metavar="NAME", help="Only of this account.")
    ] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NAME", help="Only of this node.")] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Only settled at this time or later: 2026-03-01, 2026-03-01T12:00Z, or 24h for a day ago.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Only settled before this time.")
    ] = None,
    by: Annotated[
        Literal["account", "node", "artifact", "finish_reason"] | None,
        typer.Option("--sum", metavar="FIELD", help="Add up by account, node, artifact or finish_reason."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, metavar="N", help="Show the newest N receipts.")
    ] = 100,
    json: Json = False,
) -> None:
    """Lists or sums receipts: one for each work and node, of a node's ledger or with --tracker of a mesh.

    [bold]Examples[/bold]

    gguf-worker receipts --since 24h

    gguf-worker receipts --sum account --since 2026-03-01 --until 2026-04-01

    gguf-worker receipts --tracker nats://127.0.0.1:4222 --work 6f1c2a --json
    """
    from gguf_worker.cli import receipts
    from gguf_worker.node.receipts.ledger import default_ledger_path
    from gguf_worker.node.receipts.query import ReceiptQuery

    if ledger is not None and tracker.tracker is not None:
        raise CommandError("--ledger and --tracker were both given", remedy="give one of them")
    query = ReceiptQuery(
        work_id=work,
        account=account,
        node=node,
        since_ms=None if since is None else receipts.parse_moment(since),
        until_ms=None if until is None else receipts.parse_moment(until),
        limit=limit,
    )
    config = receipts.ReceiptsConfig(
        ledger=ledger or default_ledger_path(),
        nats=None if tracker.tracker is None else tracker.nats_options("gguf-worker receipts"),
        query=query,
        by=by,
        json=json,
    )
    receipts.receipts(config)


@cache_app.command("ls")
def cache_ls_command(cache_dir: CacheDir = None, json: Json = False) -> None:
    """Lists the shard files in the cache, the longest unused first."""
    from gguf_worker.cli import cache

    cache.list_cache(cache_dir or gguf_worker.default_cache_dir(), as_json=json)


@cache_app.command("prune")
def cache_prune_command(
    unused: Annotated[
        float,
        typer.Option("--unused", min=0, metavar="DAYS", help="Remove what was not used for so many days."),
    ] = 30.0,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size",
            metavar="SIZE",
            help="Then remove the longest unused until SIZE (500M, 10G) is kept.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove everything.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    cache_dir: CacheDir = None,
    json: Json = False,
) -> None:
    """Removes what is not needed: all of it can be made again. Running workers are not disturbed.

    [bold]Examples[/bold]

    gguf-worker cache prune --unused 7

    gguf-worker cache prune --max-size 20G --dry-run
    """
    from gguf_worker.cli import cache

    cache.prune_cache(
        cache.PruneConfig(
            folder=cache_dir or gguf_worker.default_cache_dir(),
            unused_days=unused,
            max_bytes=None if max_size is None else cache.parse_size(max_size),
            everything=everything,
            dry_run=dry_run,
            json=json,
        )
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
