"""Input rows for shards that do not begin at layer 0."""

from __future__ import annotations

from collections.abc import Callable

from conformance.shard import OpenShard, Subject


def input_rows(
    subject: Subject, open_shard: OpenShard, layers: tuple[int, int], **changes: object
) -> Callable[[int, int], dict[str, object]]:
    """A function that gives input rows `[start, end)` of the first prompt for a shard of these layers;
    `changes` are fields of Options for the layers before it."""
    prompt = subject.model.prompts[0]
    if layers[0] == 0:
        return lambda start, end: {"tokens": prompt[start:end]}
    before = open_shard(subject, layers=(0, layers[0]), **changes)
    hidden = before.forward(before.open_session(), 0, tokens=prompt, output="hidden")
    width = len(hidden.values) // len(prompt)
    return lambda start, end: {"hidden": hidden.values[start * width : end * width]}
