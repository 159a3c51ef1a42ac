"""A shard in this very process, through the cffi binding."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import shard_engine
from conformance.shard import Answer, Description, Options, Rows, Shard, ShardError, Subject
from shard_engine import (
    ArtifactInfo,
    Engine,
    Entry,
    Forked,
    Memory,
    OpenOptions,
    Output,
    Result,
    Sampling,
    ShardEngineError,
    Vocabulary,
)


@contextmanager
def _shard_errors() -> Iterator[None]:
    try:
        yield
    except ShardEngineError as error:
        raise ShardError(error.code, error.message, error.fields) from error


def _entry(rows: Rows) -> Entry:
    return Entry(
        session=rows.session,
        position=rows.position,
        tokens=rows.tokens,
        hidden=rows.hidden,
        output=Output[rows.output.upper()],
    )


def _answer(result: Result) -> Answer | ShardError:
    if result.error is not None:
        return ShardError(result.error.code, result.error.message, result.error.fields)
    rows = result.rows
    return Answer(
        values=b"" if rows is None else rows.data,
        n_rows=0 if rows is None else rows.n_rows,
        n_columns=0 if rows is None else rows.n_columns,
        dtype="f32" if rows is None else rows.dtype,
        token=result.token,
        logprob=result.logprob,
        top=result.top,
        end_of_generation=result.end_of_generation,
        text=result.text,
        length=result.length,
        kv_cells=result.kv_cells_taken,
    )


def _open_options(options: Options) -> OpenOptions:
    return OpenOptions(
        layers=options.layers,
        recipe=options.recipe,
        artifact=options.artifact,
        max_sessions=options.max_sessions,
        memory_available=options.memory_available,
        cache_dir=options.cache_dir,
        fault_plan=options.fault_plan,
        on_progress=options.on_progress,
    )


class InProcessShard(Shard):
    """The engine itself."""

    def __init__(self, engine: str, options: Options) -> None:
        with _shard_errors():
            self.engine = Engine(options.model, engine=engine, **_open_options(options))

    @property
    def description(self) -> Description:
        loaded = self.engine.describe()
        return Description(
            artifact=loaded.artifact_sha256,
            shard=loaded.shard_sha256,
            layers=(loaded.layer_start, loaded.layer_end),
            recipe=loaded.recipe,
            n_layer=loaded.n_layer,
            n_embd=loaded.n_embd,
            n_vocab=loaded.n_vocab,
            n_embd_out=loaded.n_embd_out,
            pooling=loaded.pooling,
            owned_layers=loaded.owned_layers,
            owned_tensors=loaded.owned_tensors,
            owned_bytes=loaded.owned_bytes,
            token_embedding=loaded.has_token_embedding,
            output_head=loaded.has_output_head,
            vocabulary=loaded.has_vocabulary,
            memory=loaded.memory,
            max_sessions=loaded.max_sessions,
            kv_cells=loaded.kv_cells,
            session_cells=loaded.session_cells,
            max_batch=loaded.max_batch,
            can_trim=loaded.can_trim,
        )

    @property
    def specials(self) -> Vocabulary | None:
        if not self.engine.describe().has_vocabulary:
            return None
        return self.engine.vocabulary()

    def open_session(self, sampling: Sampling | None = None) -> int:
        with _shard_errors():
            return self.engine.session_open(sampling)

    def fork(self, source: int, position: int, sampling: Sampling | None = None) -> Forked:
        with _shard_errors():
            return self.engine.session_fork(source, position, sampling)

    def close_session(self, session: int) -> int:
        with _shard_errors():
            return self.engine.session_close(session)

    def trim(self, session: int, position: int) -> int:
        with _shard_errors():
            return self.engine.session_trim(session, position)

    def forward_many(self, rows: Sequence[Rows]) -> list[Answer | ShardError]:
        with _shard_errors():
            return [_answer(result) for result in self.engine.step([_entry(one) for one in rows])]

    def forward_cancelled(self, rows: Rows) -> Answer:
        # The cancel may come before the step begins, which must stop it too, so neither order is a race.
        started = threading.Event()

        def run() -> Answer:
            started.set()
            return self.forward(
                rows.session, rows.position, tokens=rows.tokens, hidden=rows.hidden, output=rows.output
            )

        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(run)
            started.wait(10)
            self.engine.cancel()
            return future.result(60)

    def kv_cells_used(self) -> int:
        return self.engine.kv_cells_used()

    def progress(self) -> int:
        return self.engine.progress()

    def tokenize(self, text: bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        with _shard_errors():
            return self.engine.tokenize(text, add_special=add_special, parse_special=parse_special)

    def detokenize(
        self, tokens: Sequence[int], *, remove_special: bool = False, unparse_special: bool = False
    ) -> bytes:
        with _shard_errors():
            return self.engine.detokenize(
                tokens, remove_special=remove_special, unparse_special=unparse_special
            )

    def token_info(self, token: int) -> shard_engine.TokenInfo:
        with _shard_errors():
            return self.engine.token_info(token)

    def chat_template(self, name: str | None = None) -> str:
        with _shard_errors():
            return self.engine.chat_template(name).decode()

    def close(self) -> None:
        self.engine.close()


class InProcess(Subject):
    """An engine in this process."""

    def open(self, options: Options) -> Shard:
        return InProcessShard(self.engine, options)

    def estimate(self, options: Options) -> Memory:
        with _shard_errors():
            return shard_engine.estimate(options.model, engine=self.engine, **_open_options(options))

    def inspect(self, model: str) -> ArtifactInfo:
        with _shard_errors():
            return shard_engine.inspect(model, engine=self.engine, cache_dir=self.cache_dir)

    def slice(self, model: str, layers: tuple[int, int], output: Path, *, overwrite: bool = False) -> int:
        with _shard_errors():
            return shard_engine.slice_artifact(
                model, layers, output, engine=self.engine, overwrite=overwrite, cache_dir=self.cache_dir
            )
