"""Options that several commands share, each declared once, under llama.cpp's names where it has one.

A group is a frozen dataclass whose fields are options. A command takes a group as one parameter:

    @app.command("run")
    @with_options
    def run_command(model: Model, recipe: RecipeOptions, host: HostOptions, json: Json = False) -> None: ...
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from gguf_worker._schema import SchemaError
from gguf_worker.cli.errors import CommandError
from gguf_worker.identity import Recipe

if TYPE_CHECKING:
    from gguf_worker.node.nats import NatsOptions
    from gguf_worker.protocol.messages import Sampling
    from gguf_worker.supervision.spec import ShardSpec

INT32_MAX = (1 << 31) - 1
UINT32_MAX = (1 << 32) - 1
MOST_CONTEXT = (1 << 31) - 256
CELLS = 256
"""A context is a multiple of so many KV cells."""
USUAL_SESSIONS = 4

RECIPE_PANEL = "Recipe: what a result depends on; the stages of a route must agree"
SAMPLING_PANEL = "Sampling: how a token is drawn"
HOST_PANEL = "This machine: nothing here changes a result"
TRACKER_PANEL = "Tracker: where nodes find each other"

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
        rich_help_panel=HOST_PANEL,
        help="Where shard files and digests are kept. [dim]Default: $GGUF_WORKER_CACHE, else "
        "$XDG_CACHE_HOME/gguf-worker, else ~/.cache/gguf-worker.[/dim]",
    ),
]
Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME",
        rich_help_panel=HOST_PANEL,
        help="llama, or fake: exact arithmetic, for trying things out.",
    ),
]


def whole(low: int, high: int = INT32_MAX) -> Callable[[str], int]:
    """Reads a whole number from `low` to `high`; help does not show these as typer's own ranges would be."""

    def number(text: str) -> int:
        if not (re.fullmatch(r"-?[0-9]{1,12}", str(text)) and low <= int(text) <= high):
            raise typer.BadParameter(f"{text} is not a whole number from {low} to {high}")
        return int(text)

    return number


def seconds(text: str) -> float:
    """Reads a time: a finite number that is not negative."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise typer.BadParameter(f"{text} is not a number of seconds")
    return value


# ---- the groups ---------------------------------------------------------------------------------


def _recipe(*names: str, help: str, **settings: Any) -> Any:  # noqa: A002 - typer's own name
    return typer.Option(*names, help=help, rich_help_panel=RECIPE_PANEL, **settings)


def _sampling(*names: str, help: str, **settings: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel=SAMPLING_PANEL, **settings)


def _host(*names: str, help: str, **settings: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel=HOST_PANEL, **settings)


def _tracker(*names: str, help: str, **settings: Any) -> Any:  # noqa: A002
    return typer.Option(*names, help=help, rich_help_panel=TRACKER_PANEL, **settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeOptions:
    """Every setting that can change a result."""

    ctx_size: Annotated[
        int,
        _recipe(
            *("--ctx-size", "-c"),
            parser=whole(CELLS, MOST_CONTEXT),
            metavar="N",
            help="Rows that a session can reach, a multiple of 256: prompt and text fit in. Their KV cells "
            "take memory from the start.",
        ),
    ] = 4096
    threads: Annotated[
        int,
        _recipe(
            *("--threads", "-t"),
            parser=whole(0),
            metavar="N",
            help="Threads of each worker; 0 lets the engine choose. They decide in which order some sums are "
            "made.",
        ),
    ] = 0
    batch_size: Annotated[
        int | None,
        _recipe(
            *("--batch-size", "-b"),
            parser=whole(1),
            metavar="N",
            help="Most rows of all sessions in one step. [dim]Default: 512, or the context where that is "
            "smaller.[/dim]",
        ),
    ] = None
    ubatch_size: Annotated[
        int | None,
        _recipe(
            *("--ubatch-size", "-ub"),
            parser=whole(1),
            metavar="N",
            help="Most rows computed at once. Smaller takes less memory, and a cancel is heard sooner. "
            "[dim]Default: 128, or the batch where that is smaller.[/dim]",
        ),
    ] = None
    prefill_chunk: Annotated[
        int,
        _recipe(
            "--prefill-chunk",
            parser=whole(0),
            metavar="N",
            help="Most rows of one prompt in one step; 0 is the ubatch. Smaller lets others in sooner.",
        ),
    ] = 0
    flash_attn: Annotated[
        Literal["on", "off"],
        _recipe(
            *("--flash-attn", "-fa"),
            help="Flash attention. With it some quantisations give the same bits whatever shares a batch.",
        ),
    ] = "on"
    cache_type_k: Annotated[
        str,
        _recipe(
            *("--cache-type-k", "-ctk"),
            metavar="TYPE",
            help="Type of the K cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 or iq4_nl.",
        ),
    ] = "f16"
    cache_type_v: Annotated[
        str,
        _recipe(
            *("--cache-type-v", "-ctv"),
            metavar="TYPE",
            help="Type of the V cache; the quantised ones need flash attention.",
        ),
    ] = "f16"
    kv_unified: Annotated[
        bool,
        _recipe(
            "--kv-unified/--no-kv-unified",
            help="Whether all sessions share the context's KV cells. Otherwise each has that many of its "
            "own, and the others cannot change its results.",
        ),
    ] = True
    boundary: Annotated[
        Literal["f32", "f16", "bf16"],
        _recipe(
            "--boundary",
            help="What hidden rows are sent as between stages. f32 is exact; the others are half as large.",
        ),
    ] = "f32"
    repack: Annotated[
        bool,
        _recipe(
            "--repack/--no-repack", help="Repack weights into the backend's own layouts, which is faster."
        ),
    ] = True
    n_gpu_layers: Annotated[
        int,
        _recipe(
            *("--n-gpu-layers", "-ngl"),
            parser=whole(-INT32_MAX),
            metavar="N",
            help="Layers of each shard to offload; a negative number is all of them.",
        ),
    ] = 0
    main_gpu: Annotated[
        int,
        _recipe(
            *("--main-gpu", "-mg"),
            parser=whole(0),
            metavar="N",
            help="The device that holds a shard with --split-mode none.",
        ),
    ] = 0
    split_mode: Annotated[
        Literal["none", "layer", "row"],
        _recipe(*("--split-mode", "-sm"), help="How a shard is spread over several devices."),
    ] = "layer"
    rope_scaling: Annotated[
        Literal["model", "none", "linear", "yarn", "longrope"],
        _recipe("--rope-scaling", help="How RoPE is scaled; model is what the file says."),
    ] = "model"
    rope_freq_base: Annotated[
        float,
        _recipe("--rope-freq-base", min=0, metavar="X", help="Base frequency of RoPE; 0 is the model's."),
    ] = 0.0
    rope_freq_scale: Annotated[
        float,
        _recipe(
            "--rope-freq-scale",
            min=0,
            metavar="X",
            help="Frequency scale of RoPE; 0.5 doubles the context, 0 is the model's.",
        ),
    ] = 0.0
    yarn_orig_ctx: Annotated[
        int,
        _recipe(
            "--yarn-orig-ctx",
            parser=whole(0),
            metavar="N",
            help="YaRN: context that the model was trained with; 0 is the model's.",
        ),
    ] = 0
    yarn_ext_factor: Annotated[
        float,
        _recipe(
            "--yarn-ext-factor", metavar="X", help="YaRN: mix of extrapolation; negative is the model's."
        ),
    ] = -1.0
    yarn_attn_factor: Annotated[
        float,
        _recipe(
            "--yarn-attn-factor", metavar="X", help="YaRN: scale of the magnitude; negative is the model's."
        ),
    ] = -1.0
    yarn_beta_fast: Annotated[
        float,
        _recipe("--yarn-beta-fast", metavar="X", help="YaRN: low correction; negative is the model's."),
    ] = -1.0
    yarn_beta_slow: Annotated[
        float,
        _recipe("--yarn-beta-slow", metavar="X", help="YaRN: high correction; negative is the model's."),
    ] = -1.0

    def recipe(self) -> Recipe:
        """The recipe. Raises CommandError for a value that cannot be one."""
        if self.ctx_size % CELLS:
            raise CommandError(
                f"--ctx-size {self.ctx_size} is not a multiple of {CELLS}",
                remedy=f"try --ctx-size {round_up(self.ctx_size)}",
            )
        usual = Recipe()
        n_batch = self.batch_size or min(usual.n_batch, self.ctx_size)
        try:
            return Recipe(
                n_ctx=self.ctx_size,
                n_batch=n_batch,
                n_ubatch=self.ubatch_size or min(usual.n_ubatch, n_batch),
                prefill_chunk=self.prefill_chunk,
                n_threads=self.threads,
                flash_attn=self.flash_attn == "on",
                repack=self.repack,
                kv_unified=self.kv_unified,
                n_gpu_layers=self.n_gpu_layers,
                main_gpu=self.main_gpu,
                split_mode=self.split_mode,
                type_k=self.cache_type_k,
                type_v=self.cache_type_v,
                boundary=self.boundary,
                rope_scaling=self.rope_scaling,
                rope_freq_base=self.rope_freq_base,
                rope_freq_scale=self.rope_freq_scale,
                yarn_ext_factor=self.yarn_ext_factor,
                yarn_attn_factor=self.yarn_attn_factor,
                yarn_beta_fast=self.yarn_beta_fast,
                yarn_beta_slow=self.yarn_beta_slow,
                yarn_orig_ctx=self.yarn_orig_ctx,
            )
        except SchemaError as error:
            raise CommandError(f"that is no recipe: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How the last stage draws tokens. What is not asked for is off."""

    temp: Annotated[
        float,
        _sampling(
            *("--temp", "--temperature"),
            min=0,
            metavar="T",
            help="0 takes the most likely token; higher is more surprising.",
        ),
    ] = 0.0
    seed: Annotated[
        int,
        _sampling(
            *("--seed", "-s"),
            parser=whole(0, UINT32_MAX),
            metavar="N",
            help="The same seed draws the same text; another one draws another.",
        ),
    ] = 0
    top_k: Annotated[
        int,
        _sampling("--top-k", parser=whole(0), metavar="K", help="Keep the K most likely; 0 is off."),
    ] = 0
    top_p: Annotated[
        float,
        _sampling(
            "--top-p",
            min=0,
            max=1,
            metavar="P",
            help="Keep the fewest tokens that have probability P together; 1 is off.",
        ),
    ] = 1.0
    min_p: Annotated[
        float,
        _sampling(
            "--min-p",
            min=0,
            max=1,
            metavar="P",
            help="Drop what is less likely than P times the most likely; 0 is off.",
        ),
    ] = 0.0
    typical: Annotated[
        float,
        _sampling(
            *("--typical", "--typical-p"),
            min=0,
            max=1,
            metavar="P",
            help="Locally typical sampling; 1 is off.",
        ),
    ] = 1.0
    repeat_penalty: Annotated[
        float,
        _sampling(
            "--repeat-penalty", min=0, metavar="X", help="Makes tokens that were seen less likely; 1 is off."
        ),
    ] = 1.0
    repeat_last_n: Annotated[
        int,
        _sampling(
            "--repeat-last-n",
            parser=whole(-1),
            metavar="N",
            help="How far back the penalties look; 0 is nowhere, -1 everywhere.",
        ),
    ] = 64
    presence_penalty: Annotated[
        float,
        _sampling(
            "--presence-penalty", metavar="X", help="Subtracted once for a token that was seen; 0 is off."
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        _sampling(
            "--frequency-penalty", metavar="X", help="Subtracted each time that a token was seen; 0 is off."
        ),
    ] = 0.0
    logit_bias: Annotated[
        list[str] | None,
        _sampling(
            "--logit-bias",
            metavar="TOKEN(+/-)BIAS",
            help="Makes a token more or less likely: 15043+1, 15043-inf bans it. May be given again.",
        ),
    ] = None
    grammar: Annotated[
        str | None,
        _sampling("--grammar", metavar="GBNF", help='What the text must look like: root ::= "yes" | "no".'),
    ] = None
    grammar_file: Annotated[
        Path | None,
        _sampling("--grammar-file", metavar="FILE", help="The same, from a file."),
    ] = None
    logprobs: Annotated[
        int,
        _sampling(
            "--logprobs",
            min=0,
            max=64,
            metavar="N",
            help="With --json: the N most likely tokens at each step, and their log-probabilities.",
        ),
    ] = 0

    def check_shown(self, *, json: bool) -> None:
        """Raises CommandError where log-probabilities are asked for that nothing would show."""
        if self.logprobs and not json:
            raise CommandError(
                "--logprobs was given without --json", remedy="give both: they are shown there"
            )

    def sampling(self) -> Sampling:
        """The sampling. Raises CommandError for a value that cannot be one."""
        from gguf_worker.protocol.messages import Sampling

        try:
            return Sampling(
                temperature=self.temp,
                seed=self.seed,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                typical_p=self.typical,
                repeat_penalty=self.repeat_penalty,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                repeat_last_n=self.repeat_last_n,
                logit_bias=tuple(parse_logit_bias(text) for text in self.logit_bias or ()),
                grammar=self._grammar(),
                top_logprobs=self.logprobs,
            )
        except SchemaError as error:
            raise CommandError(f"tokens cannot be drawn like that: {error}") from error

    def _grammar(self) -> str:
        if self.grammar_file is None:
            return self.grammar or ""
        if self.grammar is not None:
            raise CommandError("--grammar and --grammar-file were both given", remedy="give one of them")
        try:
            return self.grammar_file.read_text()
        except OSError as error:
            raise CommandError(f"{self.grammar_file}: {error.strerror}", remedy="check the path") from error
        except UnicodeDecodeError as error:
            raise CommandError(f"{self.grammar_file} is not UTF-8 text: {error.reason}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """How workers are run here."""

    parallel: Annotated[
        int | None,
        _host(
            *("--parallel", "-np"),
            parser=whole(1),
            metavar="N",
            help="Sessions that each worker can have open at once. [dim]Default: 4; 1 where only one is "
            "used.[/dim]",
        ),
    ] = None
    mmap: Annotated[
        bool, _host("--mmap/--no-mmap", help="Map weights into memory, or read them there at the start.")
    ] = True
    mlock: Annotated[bool, _host("--mlock", help="Keep weights in memory, never in swap.")] = False
    numa: Annotated[
        Literal["distribute", "isolate", "numactl"] | None,
        _host("--numa", help="How threads are placed on a machine of several memory nodes."),
    ] = None
    memory_check: Annotated[
        bool,
        _host(
            "--memory-check/--no-memory-check",
            help="Refuse a shard that needs more memory than this machine, or its control group, has.",
        ),
    ] = True
    engine: Engine = "llama"
    cache_dir: CacheDir = None

    @property
    def cache_folder(self) -> str | None:
        """The cache folder as a specification names it; None is the default one."""
        return None if self.cache_dir is None else str(self.cache_dir)

    def spec(
        self,
        model: str,
        recipe: Recipe,
        *,
        layers: tuple[int, int] = (0, 0),
        artifact: str | None = None,
        sessions: int = USUAL_SESSIONS,
    ) -> ShardSpec:
        """A shard as these options run it, for `sessions` at once where they do not say how many."""
        from gguf_worker.supervision.spec import ShardSpec

        return ShardSpec(
            model,
            layers=layers,
            recipe=recipe,
            artifact=artifact,
            engine=self.engine,
            max_sessions=self.parallel or sessions,
            mmap=self.mmap,
            mlock=self.mlock,
            numa=self.numa,
            check_memory=self.memory_check,
            cache_dir=self.cache_folder,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerOptions:
    """Where the nodes of a mesh are registered, and how that place is reached."""

    tracker: Annotated[
        str | None,
        _tracker(
            "--tracker",
            metavar="URL",
            help="nats://HOST:PORT or tls://HOST:PORT of a NATS server with JetStream; several, separated by "
            "commas, are one cluster. memory is for one process only.",
        ),
    ] = None
    nats_creds: Annotated[
        Path | None, _tracker("--nats-creds", metavar="FILE", help="NATS credentials file of this user.")
    ] = None
    nats_token_env: Annotated[
        str | None,
        _tracker(
            "--nats-token-env",
            metavar="NAME",
            help="Environment variable that holds the NATS token, so that no command line shows it.",
        ),
    ] = None
    nats_ca: Annotated[
        Path | None,
        _tracker("--nats-ca", metavar="FILE", help="Certificates of the authority that vouches for NATS."),
    ] = None
    nats_cert: Annotated[
        Path | None, _tracker("--nats-cert", metavar="FILE", help="Certificate that this side shows to NATS.")
    ] = None
    nats_key: Annotated[
        Path | None, _tracker("--nats-key", metavar="FILE", help="Private key of --nats-cert.")
    ] = None

    def __post_init__(self) -> None:
        """Raises CommandError for what does not go together."""
        if self.tracker is not None and not self.in_memory:
            return
        if any(getattr(self, one.name) is not None for one in fields(self) if one.name != "tracker"):
            raise CommandError(
                "--nats-creds, --nats-token-env, --nats-ca, --nats-cert and --nats-key say how a NATS is "
                "reached, and none was given",
                remedy="give --tracker nats://HOST:PORT as well, or leave them out",
            )

    @property
    def in_memory(self) -> bool:
        """Whether the mesh is this one process."""
        return self.tracker == "memory"

    def nats_options(self, name: str) -> NatsOptions:
        """How `name`, as the server's own lists show it, connects. Raises CommandError."""
        from gguf_worker.node.nats import NatsOptions, safe_url

        if self.tracker is None:
            raise CommandError("no tracker was given", remedy="give --tracker nats://HOST:PORT")
        if self.in_memory:
            raise CommandError(
                "--tracker memory is known to its own process only, and this is another one",
                remedy="give --tracker nats://HOST:PORT to this command and to the nodes",
            )
        urls = tuple(self.tracker.split(","))
        if not all(re.fullmatch(r"(nats|tls|ws|wss)://[^\s,]+", url) for url in urls):
            named = safe_url(self.tracker)  # as a whole: a password may have commas
            raise CommandError(f"--tracker {named} is no tracker", remedy="write nats://HOST:PORT")
        if (self.nats_cert is None) != (self.nats_key is None):
            raise CommandError("--nats-cert and --nats-key belong together", remedy="give both")
        return NatsOptions(
            servers=urls,
            name=name,
            credentials=self.nats_creds,
            token=self._token(),
            tls_ca=self.nats_ca,
            tls_certificate=self.nats_cert,
            tls_key=self.nats_key,
        )

    def _token(self) -> str | None:
        if self.nats_token_env is None:
            return None
        if token := os.environ.get(self.nats_token_env):
            return token
        raise CommandError(
            f"--nats-token-env {self.nats_token_env}: there is no such variable, or it is empty",
            remedy=f"export {self.nats_token_env}=TOKEN",
        )


# ---- reading and writing them -------------------------------------------------------------------


def round_up(n_rows: int) -> int:
    """The smallest context that holds so many rows."""
    return -(-n_rows // CELLS) * CELLS


def parse_logit_bias(text: str) -> tuple[int, float]:
    """`"15043+1.5"` is token 15043 and 1.5. Raises CommandError."""
    match = re.fullmatch(r"([0-9]{1,10})([+-](?:[0-9]+\.?[0-9]*|\.[0-9]+)|-inf)", text)
    if match is None:
        raise CommandError(
            f"--logit-bias {text!r} is not a token and a bias",
            remedy="write it as 15043+1, 15043-0.5 or 15043-inf",
        )
    return int(match[1]), float(match[2])


def arguments_of(group: RecipeOptions | SamplingOptions | HostOptions) -> list[str]:
    """The words of a command line that give these options, those that are as usual left out."""
    words: list[str] = []
    hints = get_type_hints(type(group), include_extras=True)
    for field in fields(group):
        value = getattr(group, field.name)
        if value == field.default:
            continue
        name, off = _names_of(hints[field.name])
        if isinstance(value, bool):
            words.append(name if value else off)
        elif isinstance(value, list):
            words += [word for item in value for word in (name, item)]
        else:
            words += [name, str(value)]
    return words


def _names_of(hint: Any) -> tuple[str, str]:
    """The first name of an option, and that which turns it off. Inside Annotated typer keeps the first one as
    the default, which it takes from the parameter there."""
    (mark,) = hint.__metadata__
    on, _, off = mark.default.partition("/")
    return on, off


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of each parameter that is annotated with a group of them.

    typer reads a command's signature, so it is shown one in which the groups are spread out.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}

    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _parameters_of(groups[parameter.name])
        else:
            parameters.append(
                parameter.replace(annotation=hints[parameter.name], kind=inspect.Parameter.KEYWORD_ONLY)
            )
    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _parameters_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
