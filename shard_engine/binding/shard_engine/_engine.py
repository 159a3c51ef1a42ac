"""An open engine: one shard, its sessions and its steps."""

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from ._convert import members
from ._errors import ShardEngineError, Status, check, error_from, new_error
from ._native import ffi, find_api
from ._params import OpenOptions, Params
from ._sampling import SamplingBridge
from ._types import (
    Candidate,
    Description,
    Entry,
    Forked,
    Memory,
    Output,
    Recipe,
    Result,
    Rows,
    Sampling,
    TokenInfo,
    Vocabulary,
)


def estimate(
    model: str | os.PathLike[str], *, engine: str = "llama", **options: Unpack[OpenOptions]
) -> Memory:
    """Bytes that `Engine` with the same arguments would take, known before any is taken.

    Raises ShardEngineError as `Engine`, and what `on_progress` raises.
    """
    api = find_api(engine)
    params, memory, error = Params(api, model, options), ffi.new("shard_memory *"), new_error()
    status = api.estimate(params.pointer, memory, error)
    params.progress.reraise()
    check(status, error)
    return members(Memory, memory)


def _text(raw: Any) -> bytes:
    """What a token adds to a text: the bytes of an entry or a candidate."""
    return b"" if raw.text == ffi.NULL else bytes(ffi.buffer(raw.text, raw.n_text_bytes))


class Engine:
    """One loaded shard, as a context manager.

    Every call but `cancel`, `progress` and `describe` belongs to one thread. Calls release the interpreter
    lock while they run.

    Raises ShardEngineError as `open` in `shard_engine.h` says, and what `on_progress` raises.
    """

    def __init__(
        self, model: str | os.PathLike[str], *, engine: str = "llama", **options: Unpack[OpenOptions]
    ) -> None:
        self._handle: Any = ffi.NULL
        self._api = find_api(engine)
        params, error = Params(self._api, model, options), new_error()
        out = ffi.new("shard_engine **")
        status = self._api.open(params.pointer, out, error)
        if status == Status.OK:
            self._handle = out[0]
        try:
            params.progress.reraise()
            check(status, error)
        except BaseException:
            self.close()
            raise
        self._description = self.describe()
        self._boundary_bytes = 4 if self._description.recipe.boundary == "f32" else 2

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._handle == ffi.NULL:
            return "<Engine closed>"
        what = self._description
        return f"<Engine {what.architecture} layers {what.layer_start}:{what.layer_end} of {what.n_layer}>"

    def close(self) -> None:
        """Releases everything. A second call does nothing."""
        handle, self._handle = self._handle, ffi.NULL
        if handle != ffi.NULL:
            self._api.close(handle)

    def _open_handle(self) -> Any:
        if self._handle == ffi.NULL:
            raise ValueError("the engine is closed; open another one")
        return self._handle

    def describe(self) -> Description:
        """Identity, ownership, memory and capacity, as loaded."""
        raw = ffi.new("shard_description *")
        self._api.describe(self._open_handle(), raw)
        recipe, memory = members(Recipe, raw.recipe), members(Memory, raw.memory)
        return members(Description, raw, recipe=recipe, memory=memory)

    # ---- sessions

    def kv_cells_used(self) -> int:
        """KV cells in use, over all sessions."""
        return int(self._api.kv_cells_used(self._open_handle()))

    def session_open(self, sampling: Sampling | None = None) -> int:
        """Opens a session and returns its id. Raises ShardEngineError: CAPACITY; ARGUMENT, MALFORMED and
        UNSUPPORTED where `sampling` cannot be honoured."""
        bridge, out, error = SamplingBridge(sampling), ffi.new("shard_session_id *"), new_error()
        check(self._api.session_open(self._open_handle(), bridge.pointer, out, error), error)
        return int(out[0])

    def session_fork(self, source: int, position: int, sampling: Sampling | None = None) -> Forked:
        """Opens a session whose first `position` rows are those of `source`. Raises ShardEngineError as
        `session_open`, and NO_SESSION, POSITION, UNSUPPORTED."""
        bridge, out, error = SamplingBridge(sampling), ffi.new("shard_session_id *"), new_error()
        taken = ffi.new("uint32_t *")
        status = self._api.session_fork(
            self._open_handle(), source, position, bridge.pointer, out, taken, error
        )
        check(status, error)
        return Forked(session=out[0], kv_cells_taken=taken[0])

    def session_length(self, session: int) -> int:
        """Rows in the session. Raises ShardEngineError: NO_SESSION."""
        out, error = ffi.new("uint32_t *"), new_error()
        check(self._api.session_length(self._open_handle(), session, out, error), error)
        return int(out[0])

    def session_trim(self, session: int, position: int) -> int:
        """Forgets every row from `position` on and returns the KV cells freed. Raises ShardEngineError:
        NO_SESSION, POSITION."""
        out, error = ffi.new("uint32_t *"), new_error()
        check(self._api.session_trim(self._open_handle(), session, position, out, error), error)
        return int(out[0])

    def session_close(self, session: int) -> int:
        """Closes a session and returns the KV cells freed. Raises ShardEngineError: NO_SESSION."""
        out, error = ffi.new("uint32_t *"), new_error()
        check(self._api.session_close(self._open_handle(), session, out, error), error)
        return int(out[0])

    # ---- steps

    def step(self, entries: Sequence[Entry]) -> list[Result]:
        """Computes one batch of rows of many sessions and returns a result per entry, in order.

        An entry that fails says so in its result. Raises ShardEngineError only when the step failed before
        any entry was done: CANCELLED, MEMORY, BACKEND; then every session is as it was before. Raises
        ValueError where `hidden` is not whole rows, or not as many as there are tokens beside it.
        """
        raw, error = ffi.new("shard_step_entry[]", len(entries)), new_error()
        alive = [self._fill_entry(raw[i], entry) for i, entry in enumerate(entries)]
        status = self._api.step(self._open_handle(), raw, len(entries), error)
        if not any(raw[i].status == Status.OK for i in range(len(entries))):
            check(status, error)
        results = [self._read_result(raw[i]) for i in range(len(entries))]
        del alive
        return results

    def forward(
        self,
        session: int,
        position: int,
        *,
        tokens: Sequence[int] | None = None,
        hidden: bytes | bytearray | memoryview | None = None,
        output: Output = Output.NONE,
    ) -> Result:
        """A step of one entry. Raises ShardEngineError where the step or its entry failed."""
        entry = Entry(session=session, position=position, tokens=tokens, hidden=hidden, output=output)
        (result,) = self.step([entry])
        if result.error is not None:
            raise result.error
        return result

    def _fill_entry(self, raw: Any, entry: Entry) -> list[Any]:
        """Fills one entry; the values returned must live as long as the step runs."""
        raw.session, raw.position, raw.output = entry.session, entry.position, int(entry.output)
        alive: list[Any] = []
        if entry.tokens is not None:
            raw.tokens = tokens = ffi.new("int32_t[]", list(entry.tokens))
            raw.n_rows = len(entry.tokens)
            alive.append(tokens)
        if entry.hidden is not None:
            raw.hidden = hidden = ffi.from_buffer("char[]", bytes(entry.hidden))
            raw.n_rows = self._rows_in(len(hidden), entry)
            alive.append(hidden)
        return alive

    def _rows_in(self, n_bytes: int, entry: Entry) -> int:
        row_bytes = self._description.n_embd * self._boundary_bytes
        n_rows, rest = divmod(n_bytes, row_bytes)
        if rest:
            raise ValueError(f"hidden has {n_bytes} bytes, which are not whole rows of {row_bytes}")
        if entry.tokens is not None and len(entry.tokens) != n_rows:
            raise ValueError(f"{len(entry.tokens)} tokens cannot stand for {n_rows} hidden rows")
        return n_rows

    def _read_rows(self, raw: Any) -> Rows | None:
        if raw.rows == ffi.NULL:
            return None
        data = bytes(ffi.buffer(raw.rows, raw.n_rows_out * raw.n_columns_out * raw.value_bytes))
        dtype = "f32" if raw.value_bytes == 4 else self._description.recipe.boundary
        return Rows(data=data, n_rows=raw.n_rows_out, n_columns=raw.n_columns_out, dtype=dtype)

    def _read_result(self, raw: Any) -> Result:
        status = Status(raw.status)
        error: ShardEngineError | None = None if status == Status.OK else error_from(raw.error)
        return Result(
            status=status,
            error=error,
            rows=self._read_rows(raw),
            token=None if raw.token < 0 else raw.token,
            logprob=raw.logprob,
            top=tuple(members(Candidate, raw.top[i], text=_text(raw.top[i])) for i in range(raw.n_top)),
            end_of_generation=raw.end_of_generation,
            text=_text(raw),
            length=raw.length,
            kv_cells_taken=raw.kv_cells_taken,
        )

    # ---- vocabulary

    def tokenize(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False
    ) -> list[int]:
        """Token ids of a text. Raises ShardEngineError: NOT_OWNED, ARGUMENT."""
        data = text.encode() if isinstance(text, str) else bytes(text)
        count, error = ffi.new("uint32_t *"), new_error()
        capacity = len(data) + 2
        while True:
            tokens = ffi.new("int32_t[]", capacity)
            status = self._api.tokenize(
                self._open_handle(),
                data,
                len(data),
                add_special,
                parse_special,
                tokens,
                capacity,
                count,
                error,
            )
            if status != Status.CAPACITY:
                check(status, error)
                return list(ffi.unpack(tokens, count[0]))
            capacity = count[0]

    def detokenize(
        self, tokens: Sequence[int], *, remove_special: bool = False, unparse_special: bool = False
    ) -> bytes:
        """Bytes of a text, which may end inside a UTF-8 sequence. Raises ShardEngineError: NOT_OWNED,
        ARGUMENT."""
        raw = ffi.new("int32_t[]", list(tokens))
        count, error = ffi.new("uint32_t *"), new_error()
        capacity = 8 * len(tokens) + 8
        while True:
            buffer = ffi.new("char[]", capacity)
            status = self._api.detokenize(
                self._open_handle(),
                raw,
                len(tokens),
                remove_special,
                unparse_special,
                buffer,
                capacity,
                count,
                error,
            )
            if status != Status.CAPACITY:
                check(status, error)
                return bytes(ffi.buffer(buffer, count[0]))
            capacity = count[0]

    def token_info(self, token: int) -> TokenInfo:
        """What one token is. Raises ShardEngineError: NOT_OWNED, ARGUMENT."""
        raw, error = ffi.new("shard_token_info *"), new_error()
        check(self._api.token_info(self._open_handle(), token, raw, error), error)
        return members(TokenInfo, raw)

    def vocabulary(self) -> Vocabulary:
        """The special tokens. Raises ShardEngineError: NOT_OWNED."""
        raw, error = ffi.new("shard_vocabulary *"), new_error()
        check(self._api.vocabulary(self._open_handle(), raw, error), error)
        return members(Vocabulary, raw)

    def chat_template(self, name: str | None = None) -> bytes:
        """The artifact's own chat template of that name, as the file has it; empty where there is none.
        Raises ShardEngineError: NOT_OWNED."""
        wanted = ffi.NULL if name is None else name.encode()
        count, error = ffi.new("uint32_t *"), new_error()
        capacity = 4096
        while True:
            buffer = ffi.new("char[]", capacity)
            status = self._api.chat_template(self._open_handle(), wanted, buffer, capacity, count, error)
            if status != Status.CAPACITY:
                check(status, error)
                return bytes(ffi.buffer(buffer, count[0]))
            capacity = count[0]

    # ---- any thread

    def cancel(self) -> None:
        """Asks the running step, or else the next one, to stop."""
        self._api.cancel(self._open_handle())

    def progress(self) -> int:
        """A counter that rises with every graph node computed; compare two readings."""
        return int(self._api.progress(self._open_handle()))
