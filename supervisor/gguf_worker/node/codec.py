"""Messages of `gguf_worker.v1` from and to what the rest of the package speaks. No I/O."""

from __future__ import annotations

from typing import Final

from gguf_worker._schema import Buffer, SchemaError
from gguf_worker.errors import GgufWorkerError, RemoteProtocolError, RequestError
from gguf_worker.protocol.limits import MAX_LOGIT_BIAS
from gguf_worker.protocol.messages import (
    Build,
    Candidate,
    Capacity,
    Memory,
    Model,
    Output,
    Ownership,
    Result,
    Sampling,
    Vocabulary,
)
from gguf_worker_v1 import common_pb2, stage_pb2

_OUTPUT_TO_PB: Final[dict[Output, stage_pb2.Output]] = {
    output: getattr(stage_pb2, f"OUTPUT_{name}") for name, output in Output.__members__.items()
}
_OUTPUT_FROM_PB: Final[dict[int, Output]] = {number: output for output, number in _OUTPUT_TO_PB.items()}

_ROWS_OF: Final = {
    Output.HIDDEN: "hidden",
    Output.LOGITS: "logits",
    Output.LOGITS_ALL: "logits",
    Output.EMBEDDING: "embedding",
}
"""The field of a result that holds an output's rows."""


# ---- requests -----------------------------------------------------------------------------------


def output_to_pb(output: Output) -> stage_pb2.Output:
    return _OUTPUT_TO_PB[output]


def output_from_pb(number: int) -> Output:
    """Raises RequestError (code `argument`) for one that is not known here."""
    try:
        return _OUTPUT_FROM_PB[number]
    except KeyError:
        known = ", ".join(_OUTPUT_TO_PB)
        raise RequestError(f"output {number} is none of {known}", code="argument") from None


def sampling_to_pb(sampling: Sampling) -> stage_pb2.Sampling:
    """Every field, also those that have their default."""
    try:
        return stage_pb2.Sampling(
            temperature=sampling.temperature,
            seed=sampling.seed,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            typical_p=sampling.typical_p,
            repeat_penalty=sampling.repeat_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repeat_last_n=sampling.repeat_last_n,
            logit_bias=[stage_pb2.LogitBias(token=token, bias=bias) for token, bias in sampling.logit_bias],
            grammar=sampling.grammar,
            grammar_start=sampling.grammar_start,
            top_logprobs=sampling.top_logprobs,
        )
    except UnicodeEncodeError:
        raise RequestError("the grammar is no UTF-8 text", code="argument") from None


def sampling_from_pb(sampling: stage_pb2.Sampling) -> Sampling:
    """Raises RequestError (code `argument`) where a value is out of its range."""
    if (pairs := len(sampling.logit_bias)) > MAX_LOGIT_BIAS:  # before they are read one by one
        raise RequestError(f"sampling: {pairs} logit biases are more than {MAX_LOGIT_BIAS}", code="argument")
    given = {name: getattr(sampling, name) for name in _WITH_DEFAULTS if sampling.HasField(name)}
    try:
        return Sampling(
            temperature=sampling.temperature,
            seed=sampling.seed,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            logit_bias=tuple((pair.token, pair.bias) for pair in sampling.logit_bias),
            grammar=sampling.grammar,
            top_logprobs=sampling.top_logprobs,
            **given,
        )
    except SchemaError as error:
        raise RequestError(f"sampling: {error}", code="argument") from error


_WITH_DEFAULTS: Final = ("top_p", "typical_p", "repeat_penalty", "repeat_last_n", "grammar_start")
"""Fields whose default is not zero."""


# ---- results ------------------------------------------------------------------------------------


def result_to_pb(result: Result) -> tuple[stage_pb2.Result, str, Buffer | None]:
    """The message without its rows, the field that these belong to, and the rows."""
    message = stage_pb2.Result(
        length=result.length,
        kv_cells=result.kv_cells,
        output=output_to_pb(result.output),
        queue_us=result.queue_us,
        compute_us=result.compute_us,
        batch_rows=result.batch_rows,
        rows=result.rows,
        columns=result.columns,
        dtype=result.dtype,
        token=result.token,
        logprob=result.logprob,
        end_of_generation=result.end_of_generation,
        text=result.text,
        top=[stage_pb2.Candidate(token=one.token, logprob=one.logprob, text=one.text) for one in result.top],
    )
    return message, _ROWS_OF.get(result.output, ""), result.values


def result_from_pb(result: stage_pb2.Result, rows: Buffer | None) -> Result:
    """The message with its rows. Raises RemoteProtocolError where it is not what it says."""
    output = _OUTPUT_FROM_PB.get(result.output)
    if output is None:
        raise RemoteProtocolError(f"a result of unknown output {result.output}")
    field = _ROWS_OF.get(output)
    try:
        return Result(
            session=1,
            length=result.length,
            kv_cells=result.kv_cells,
            output=output,
            queue_us=result.queue_us,
            compute_us=result.compute_us,
            batch_rows=result.batch_rows,
            rows=result.rows,
            columns=result.columns,
            dtype=result.dtype,
            hidden=rows if field == "hidden" else None,
            logits=rows if field == "logits" else None,
            embedding=rows if field == "embedding" else None,
            token=result.token,
            logprob=result.logprob,
            end_of_generation=result.end_of_generation,
            text=result.text,
            top=tuple(Candidate(token=one.token, logprob=one.logprob, text=one.text) for one in result.top),
        )
    except SchemaError as error:
        raise RemoteProtocolError(f"a result with {error}") from error


# ---- what a stage is ----------------------------------------------------------------------------


def build_to_pb(build: Build, build_class: str) -> common_pb2.Build:
    return common_pb2.Build(
        engine=text(build.engine),
        engine_version=text(build.engine_version),
        library_commit=text(build.library_commit),
        library_version=text(build.library_version),
        features=text(build.features),
        devices=[
            common_pb2.Device(
                name=text(device.name),
                description=text(device.description),
                kind=text(device.kind),
                memory_total_bytes=device.memory_total,
                memory_free_bytes=device.memory_free,
            )
            for device in build.devices
        ],
        build_class=build_class,
    )


def model_to_pb(model: Model) -> common_pb2.Model:
    return common_pb2.Model(
        architecture=text(model.architecture),
        name=text(model.name),
        n_layer=model.n_layer,
        n_embd=model.n_embd,
        n_vocab=model.n_vocab,
        n_ctx_train=model.n_ctx_train,
        n_embd_out=model.n_embd_out,
        pooling=text(model.pooling),
    )


def model_from_pb(model: common_pb2.Model) -> Model:
    return Model(
        architecture=model.architecture,
        name=model.name,
        n_layer=model.n_layer,
        n_embd=model.n_embd,
        n_vocab=model.n_vocab,
        n_ctx_train=model.n_ctx_train,
        n_embd_out=model.n_embd_out,
        pooling=model.pooling or "none",
    )


def ownership_to_pb(ownership: Ownership) -> common_pb2.Ownership:
    start, end = ownership.layers
    return common_pb2.Ownership(
        start=start,
        end=end,
        owned_layers=ownership.owned_layers,
        tensors=ownership.tensors,
        bytes=ownership.bytes,
        token_embedding=ownership.token_embedding,
        output_head=ownership.output_head,
        vocabulary=ownership.vocabulary,
    )


def memory_to_pb(memory: Memory) -> common_pb2.Memory:
    return common_pb2.Memory(
        weights_bytes=memory.weights_bytes,
        kv_bytes=memory.kv_bytes,
        compute_bytes=memory.compute_bytes,
    )


def capacity_to_pb(
    capacity: Capacity, *, n_ctx: int, prefill_chunk: int, row_bytes: int
) -> common_pb2.Capacity:
    """With what the recipe adds to it."""
    return common_pb2.Capacity(
        max_sessions=capacity.max_sessions,
        kv_cells=capacity.kv_cells,
        session_cells=capacity.session_cells,
        max_batch=capacity.max_batch,
        can_trim=capacity.can_trim,
        n_ctx=n_ctx,
        prefill_chunk=prefill_chunk,
        row_bytes=row_bytes,
    )


def capacity_from_pb(capacity: common_pb2.Capacity) -> Capacity:
    """The part of it that a worker has too."""
    return Capacity(
        max_sessions=capacity.max_sessions,
        kv_cells=capacity.kv_cells,
        max_batch=capacity.max_batch,
        session_cells=capacity.session_cells,
        can_trim=capacity.can_trim,
    )


def vocabulary_to_pb(vocabulary: Vocabulary) -> common_pb2.Vocabulary:
    return common_pb2.Vocabulary(
        n_tokens=vocabulary.n_tokens,
        bos=vocabulary.bos,
        eos=vocabulary.eos,
        eot=vocabulary.eot,
        newline=vocabulary.newline,
        padding=vocabulary.padding,
        add_bos=vocabulary.add_bos,
        add_eos=vocabulary.add_eos,
    )


def vocabulary_from_pb(vocabulary: common_pb2.Vocabulary) -> Vocabulary:
    return Vocabulary(
        n_tokens=vocabulary.n_tokens,
        bos=vocabulary.bos,
        eos=vocabulary.eos,
        eot=vocabulary.eot,
        newline=vocabulary.newline,
        padding=vocabulary.padding,
        add_bos=vocabulary.add_bos,
        add_eos=vocabulary.add_eos,
    )


# ---- errors -------------------------------------------------------------------------------------


def error_to_pb(error: GgufWorkerError) -> common_pb2.Error:
    return common_pb2.Error(
        code=error.code,
        message=text(error.message),
        retryable=error.retryable,
        fields={text(name): text(value) for name, value in error.fields.items()},
    )


def text(value: str) -> str:
    """As protobuf takes it: bytes of a file that are no UTF-8 are replaced."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
