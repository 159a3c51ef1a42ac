"""The commands and their options. Each command makes one frozen config and calls one function."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gguf_worker.cli import cache, doctor, inspect, run, slicing, version
from gguf_worker.cli.errors import CommandError, guarded
from gguf_worker.cli.interrupt import run_interruptibly
from gguf_worker.cli.layers import parse_cuts, parse_layers
from gguf_worker.cli.streams import prepare_streams
from gguf_worker.supervision.settings import default_cache_dir

MOST_THREADS = (1 << 31) - 1
MOST_CONTEXT = (1 << 31) - 256

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

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A GGUF file, the first file of a split set, or an exported slice."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]
CacheDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        metavar="FOLDER",
        help="Where shard files and digests are kept. [dim]Default: $GGUF_WORKER_CACHE, else "
        "$XDG_CACHE_HOME/gguf-worker, else ~/.cache/gguf-worker.[/dim]",
    ),
]
Engine = Annotated[
    str,
    typer.Option("--engine", metavar="NAME", help="llama, or fake: exact arithmetic, for trying things out."),
]


def run_command_line() -> int:
    """Runs the command line of this process and returns its exit status."""
    prepare_streams()
    return guarded(lambda: app(prog_name="gguf-worker", standalone_mode=False))


@app.command("run")
def run_command(
    model: Model,
    prompt: Annotated[str, typer.Option("--prompt", "-p", metavar="TEXT", help="The text to go on from.")],
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=1, metavar="N", help="Most tokens to generate.")
    ] = 128,
    shards: Annotated[
        int | None,
        typer.Option(
            "--shards",
            min=1,
            metavar="N",
            help="Divide the layers evenly among N workers. [dim]Default: 1.[/dim]",
        ),
    ] = None,
    cuts: Annotated[
        str | None,
        typer.Option(
            "--cuts", metavar="A,B,…", help="Or cut before these layers: 10,20 makes three workers."
        ),
    ] = None,
    temperature: Annotated[
        float,
        typer.Option("--temperature", metavar="T", help="0 takes the most likely token; nothing else yet."),
    ] = 0.0,
    threads: Annotated[
        int,
        typer.Option(
            "--threads",
            min=0,
            max=MOST_THREADS,
            metavar="N",
            help="Threads of each worker; 0 lets the engine choose.",
        ),
    ] = 0,
    context: Annotated[
        int,
        typer.Option(
            "--ctx",
            min=256,
            max=MOST_CONTEXT,
            metavar="N",
            help="KV cells, a multiple of 256: prompt and text fit in.",
        ),
    ] = 4096,
    engine: Engine = "llama",
    cache_dir: CacheDir = None,
    json: Json = False,
) -> None:
    """Generates text through one or more supervised workers.

    The text streams to stdout; progress and the table of workers go to stderr.

    [bold]Examples[/bold]

    gguf-worker run model.gguf -p "The capital of France is" -n 16

    gguf-worker run model.gguf -p "Once upon a time" --shards 3

    gguf-worker run model.gguf -p "Once upon a time" --cuts 10,20 --json
    """
    if cuts is not None and shards is not None:
        raise CommandError("--shards and --cuts were both given", remedy="give one of them")
    if temperature != 0.0:
        raise CommandError(
            f"--temperature {temperature:g} cannot be had", remedy="0, greedy, is the only one yet"
        )
    if context % 256:
        raise CommandError(
            f"--ctx {context} is not a multiple of 256", remedy=f"try --ctx {-(-context // 256) * 256}"
        )
    config = run.RunConfig(
        model=model,
        prompt=prompt,
        max_tokens=max_tokens,
        n_shards=shards or 1,
        cuts=None if cuts is None else parse_cuts(cuts),
        threads=threads,
        n_ctx=context,
        engine=engine,
        cache_dir=_text(cache_dir),
        json=json,
    )
    run_interruptibly(run.run, config)


@app.command("inspect")
def inspect_command(
    model: Model, engine: Engine = "llama", cache_dir: CacheDir = None, json: Json = False
) -> None:
    """Says what a model file holds, whether it is supported, and where it may be cut.

    The file is parsed in a worker process, so a malformed one can harm nothing else.

    [bold]Example[/bold]

    gguf-worker inspect model-00001-of-00003.gguf --json
    """
    run_interruptibly(
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
    config = slicing.SliceConfig(
        model=model,
        layers=parse_layers(layers),
        output=output,
        force=force,
        engine=engine,
        cache_dir=_text(cache_dir),
        json=json,
    )
    run_interruptibly(slicing.slice_model, config)


@app.command("version")
def version_command(engine: Engine = "llama", json: Json = False) -> None:
    """Shows the versions, and the llama.cpp commit that is pinned and the one that is loaded."""
    run_interruptibly(version.show_version, version.VersionConfig(engine=engine, json=json))


@app.command("doctor")
def doctor_command(cache_dir: CacheDir = None, json: Json = False) -> None:
    """Looks for what is missing on this machine and names the command that mends it.

    The exit status is 1 when something is missing.
    """
    config = doctor.DoctorConfig(cache_dir=cache_dir, json=json)
    raise typer.Exit(run_interruptibly(doctor.examine, config))


@cache_app.command("ls")
def cache_ls_command(cache_dir: CacheDir = None, json: Json = False) -> None:
    """Lists the shard files in the cache, the longest unused first."""
    cache.list_cache(cache_dir or default_cache_dir(), as_json=json)


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
    cache.prune_cache(
        cache.PruneConfig(
            folder=cache_dir or default_cache_dir(),
            unused_days=unused,
            max_bytes=None if max_size is None else cache.parse_size(max_size),
            everything=everything,
            dry_run=dry_run,
            json=json,
        )
    )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
