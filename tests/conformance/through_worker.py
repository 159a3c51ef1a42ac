"""A shard behind the worker executable: a small synchronous client over the sans-io protocol.

Nothing of the supervisor is used but its protocol package, so that a fault here is the worker's own.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import shard_engine
from conformance.shard import Answer, Description, Options, Progress, Rows, Shard, ShardError, Subject
from gguf_worker.errors import RequestError
from gguf_worker.identity.recipe import Recipe
from gguf_worker.process.executable import find_executable
from gguf_worker.protocol import messages
from gguf_worker.protocol.connection import (
    HelloReceived,
    HostConnection,
    ProgressReceived,
    Refused,
    Resolved,
)
from shard_engine import ArtifactInfo, Candidate, Forked, Memory, Sampling, Vocabulary

T = TypeVar("T", bound=messages.Answer)

DEADLINE_S = 60
"""Longest wait for one answer."""


class WorkerClient:
    """One worker process and its pipe."""

    def __init__(
        self, engine: str, *, fault_plan: str | None = None, on_progress: Progress | None = None
    ) -> None:
        plan = [] if fault_plan is None else ["--fault-plan", fault_plan]
        self._process = subprocess.Popen(
            [find_executable(), "--engine", engine, "--parent-pid", str(os.getpid()), *plan],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._connection = HostConnection()
        self._resolved: dict[int, messages.Answer | RequestError] = {}
        self._on_progress = on_progress
        self._greeted = False
        try:
            self._pump(lambda: self._greeted)
        except BaseException:
            self.kill()
            raise

    def send(self, request: messages.Request) -> int:
        """Writes a request and returns its id."""
        assert self._process.stdin is not None
        outgoing = self._connection.send(request)
        for buffer in outgoing.buffers:
            view = memoryview(buffer)
            while view:
                view = view[self._process.stdin.write(view) :]
        return outgoing.id

    def wait(self, request_id: int, answer: type[T]) -> T:
        """The answer to a request; raises ShardError for an `error`."""
        self._pump(lambda: self.is_resolved(request_id))
        outcome = self._resolved.pop(request_id)
        if isinstance(outcome, RequestError):
            raise ShardError(outcome.code, outcome.message, outcome.fields)
        assert isinstance(outcome, answer)
        return outcome

    def is_resolved(self, request_id: int) -> bool:
        """Whether the outcome of a request has come, and waits to be taken."""
        return request_id in self._resolved

    def request(self, request: messages.Request, answer: type[T]) -> T:
        return self.wait(self.send(request), answer)

    def stop(self) -> int:
        """Asks the worker to leave and returns its exit status."""
        try:
            self.request(messages.Shutdown(), messages.Bye)
            return self._process.wait(DEADLINE_S)
        finally:
            self.kill()

    def kill(self) -> None:
        """Ends the process if it is still there, and closes the pipe."""
        self._process.kill()
        self._process.wait(DEADLINE_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _pump(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            event = self._connection.next_event()
            if event is None:
                self._read(deadline)
            elif isinstance(event, HelloReceived):
                self._greeted = True
            elif isinstance(event, Resolved):
                self._resolved[event.id] = event.outcome
            elif isinstance(event, ProgressReceived):
                self._report(event)
            elif isinstance(event, Refused):
                raise event.error

    def _read(self, deadline: float) -> None:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"no answer from the worker within {DEADLINE_S} s")
        count = os.readv(descriptor, [self._connection.decoder.writable()])
        if count == 0:
            raise EOFError(f"the worker left with status {self._process.wait(DEADLINE_S)}")
        self._connection.decoder.received(count)

    def _report(self, event: ProgressReceived) -> None:
        step = event.progress
        if self._on_progress is not None and self._on_progress(step.phase, step.done, step.total) is False:
            self.send(messages.Cancel(request=event.id))


def _forward(rows: Rows) -> messages.Forward:
    return messages.Forward(
        session=rows.session,
        position=rows.position,
        output=messages.Output(rows.output),
        tokens=None if rows.tokens is None else tuple(rows.tokens),
        hidden=rows.hidden,
    )


def _answer(result: messages.Result) -> Answer:
    values = result.values
    return Answer(
        values=b"" if values is None else bytes(values),
        n_rows=result.rows,
        n_columns=result.columns,
        dtype=result.dtype,
        token=None if result.token < 0 else result.token,
        logprob=result.logprob,
        top=tuple(Candidate(**asdict(candidate)) for candidate in result.top),
        end_of_generation=result.end_of_generation,
        text=result.text,
        length=result.length,
        kv_cells=result.kv_cells,
    )


def _shard_keys(options: Options) -> dict[str, Any]:
    """The keys that a load and an estimate have in common."""
    return {
        "model": options.model,
        "layers": options.layers,
        "recipe": Recipe(**asdict(options.recipe)),
        "artifact": options.artifact,
        "max_sessions": options.max_sessions,
        "memory_available": options.memory_available,
        "cache_dir": None if options.cache_dir is None else str(options.cache_dir),
    }


def _sampling(sampling: Sampling | None) -> messages.Sampling:
    if sampling is None:
        return messages.Sampling()
    return messages.Sampling(**{**asdict(sampling), "logit_bias": tuple(sampling.logit_bias)})


class WorkerShard(Shard):
    """A worker that has loaded one shard."""

    def __init__(self, engine: str, options: Options) -> None:
        self.client = WorkerClient(engine, fault_plan=options.fault_plan, on_progress=options.on_progress)
        try:
            load = messages.Load(**_shard_keys(options))
            self.loaded = self.client.request(load, messages.Loaded)
        except BaseException:
            self.client.kill()
            raise

    @property
    def description(self) -> Description:
        loaded = self.loaded
        assert loaded.identity.shard is not None
        return Description(
            artifact=loaded.identity.artifact,
            shard=loaded.identity.shard,
            layers=loaded.ownership.layers,
            recipe=shard_engine.Recipe(**asdict(loaded.identity.recipe)),
            n_layer=loaded.model.n_layer,
            n_embd=loaded.model.n_embd,
            n_vocab=loaded.model.n_vocab,
            n_embd_out=loaded.model.n_embd_out,
            pooling=loaded.model.pooling,
            owned_layers=loaded.ownership.owned_layers,
            owned_tensors=loaded.ownership.tensors,
            owned_bytes=loaded.ownership.bytes,
            token_embedding=loaded.ownership.token_embedding,
            output_head=loaded.ownership.output_head,
            vocabulary=loaded.ownership.vocabulary,
            memory=Memory(**asdict(loaded.memory)),
            **asdict(loaded.capacity),
        )

    @property
    def specials(self) -> Vocabulary | None:
        return None if self.loaded.vocabulary is None else Vocabulary(**asdict(self.loaded.vocabulary))

    def open_session(self, sampling: Sampling | None = None) -> int:
        return self._open(sampling, None).session

    def fork(self, source: int, position: int, sampling: Sampling | None = None) -> Forked:
        opened = self._open(sampling, messages.Fork(session=source, position=position))
        assert opened.length == position
        return Forked(session=opened.session, kv_cells_taken=opened.kv_cells)

    def _open(self, sampling: Sampling | None, fork: messages.Fork | None) -> messages.Opened:
        identity = self.loaded.identity.asked()
        request = messages.Open(identity=identity, sampling=_sampling(sampling), fork=fork)
        return self.client.request(request, messages.Opened)

    def close_session(self, session: int) -> int:
        return self.client.request(messages.Close(session=session), messages.Closed).kv_cells_freed

    def trim(self, session: int, position: int) -> int:
        request = messages.Trim(session=session, position=position)
        return self.client.request(request, messages.Trimmed).kv_cells_freed

    def forward_many(self, rows: Sequence[Rows]) -> list[Answer | ShardError]:
        ids = [self.client.send(_forward(one)) for one in rows]
        return [self._outcome(request_id) for request_id in ids]

    def _outcome(self, request_id: int) -> Answer | ShardError:
        try:
            return _answer(self.client.wait(request_id, messages.Result))
        except ShardError as error:
            return error

    def forward_cancelled(self, rows: Rows) -> Answer:
        # A request that still waits is cancelled without a step, which is not what is asked here.
        request_id = self.client.send(_forward(rows))
        while self.health().state != "computing" and not self.client.is_resolved(request_id):
            pass  # Each round is an answer of the worker's control thread.
        cancel_id = self.client.send(messages.Cancel(request=request_id))
        try:
            return _answer(self.client.wait(request_id, messages.Result))
        finally:
            self.client.wait(cancel_id, messages.Cancelled)

    def health(self) -> messages.Health:
        return self.client.request(messages.GetHealth(), messages.Health)

    def kv_cells_used(self) -> int:
        return self.health().kv_cells_used

    def progress(self) -> int:
        return self.health().progress

    def tokenize(self, text: bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        request = messages.Tokenize(text=text, add_special=add_special, parse_special=parse_special)
        return list(self.client.request(request, messages.Tokenized).tokens)

    def detokenize(
        self, tokens: Sequence[int], *, remove_special: bool = False, unparse_special: bool = False
    ) -> bytes:
        request = messages.Detokenize(
            tokens=tuple(tokens), remove_special=remove_special, unparse_special=unparse_special
        )
        return self.client.request(request, messages.Detokenized).text

    def token_info(self, token: int) -> shard_engine.TokenInfo:
        (info,) = self.client.request(messages.GetTokenInfo(tokens=(token,)), messages.TokenInfos).tokens
        return shard_engine.TokenInfo(
            attributes=info.attributes, is_control=info.control, end_of_generation=info.end_of_generation
        )

    def chat_template(self, name: str | None = None) -> str:
        return self.client.request(messages.GetChatTemplate(name=name), messages.ChatTemplate).template

    def close(self) -> None:
        assert self.client.stop() == 0


class ThroughWorker(Subject):
    """An engine behind the worker executable."""

    def open(self, options: Options) -> Shard:
        return WorkerShard(self.engine, options)

    def estimate(self, options: Options) -> Memory:
        estimated = self._once(messages.Estimate(**_shard_keys(options)), messages.Estimated)
        return Memory(**asdict(estimated.memory))

    def inspect(self, model: str) -> ArtifactInfo:
        request = messages.Inspect(model=model, cache_dir=str(self.cache_dir))
        found = self._once(request, messages.Inspection)
        start, end = found.slice or (0, 0)
        return ArtifactInfo(
            artifact_sha256=found.artifact,
            architecture=found.architecture,
            model_name=found.model_name,
            quantization=found.quantization,
            n_layer=found.n_layer,
            n_embd=found.n_embd,
            n_vocab=found.n_vocab,
            n_ctx_train=found.n_ctx_train,
            n_expert=found.n_expert,
            n_tensors=found.n_tensors,
            tensor_bytes=found.tensor_bytes,
            embedding_bytes=found.embedding_bytes,
            head_bytes=found.head_bytes,
            tied_head=found.tied_head,
            is_slice=found.slice is not None,
            slice_start=start,
            slice_end=end,
            supported=found.supported,
            cut_period=found.cut_period,
            reason=found.reason,
            files=tuple(shard_engine.ArtifactFile(**asdict(file)) for file in found.files),
            layer_bytes=found.layer_bytes,
        )

    def slice(self, model: str, layers: tuple[int, int], output: Path, *, overwrite: bool = False) -> int:
        request = messages.Slice(
            model=model,
            layers=layers,
            output=str(output),
            overwrite=overwrite,
            cache_dir=str(self.cache_dir),
        )
        return self._once(request, messages.SliceResult).bytes

    def _once(self, request: messages.Request, answer: type[T]) -> T:
        """One request to a worker of its own."""
        client = WorkerClient(self.engine)
        try:
            return client.request(request, answer)
        finally:
            client.stop()
