"""In-process binding of the engine seam: `shard_engine.h`, spoken through cffi.

For conformance tests and benches, which compare what an engine does in process with what it does behind
a worker. A service uses `gguf_worker` instead: native code that crashes here takes the interpreter with
it.

    with shard_engine.Engine("fake:vocab=256", engine="fake") as engine:
        session = engine.session_open()
        result = engine.forward(session, 0, tokens=engine.tokenize("hello"), output=Output.TOKEN)

The shared library and the header lie beside this file when the package is installed. The environment
variables GGUF_WORKER_SHARD_ENGINE_LIB and GGUF_WORKER_SHARD_ENGINE_HEADER name others, which is how
tests use a sanitized build.
"""

from ._artifact import inspect, slice_artifact
from ._build import build, engines
from ._engine import Engine, estimate
from ._errors import ShardEngineError, Status
from ._params import OpenOptions
from ._sampling import default_sampling
from ._types import (
    ArtifactFile,
    ArtifactInfo,
    Build,
    Candidate,
    Description,
    Device,
    Entry,
    Forked,
    Memory,
    Output,
    ProgressCallback,
    Recipe,
    Result,
    Rows,
    Sampling,
    TokenInfo,
    Vocabulary,
)

__all__ = [
    "ArtifactFile",
    "ArtifactInfo",
    "Build",
    "Candidate",
    "Description",
    "Device",
    "Engine",
    "Entry",
    "Forked",
    "Memory",
    "OpenOptions",
    "Output",
    "ProgressCallback",
    "Recipe",
    "Result",
    "Rows",
    "Sampling",
    "ShardEngineError",
    "Status",
    "TokenInfo",
    "Vocabulary",
    "build",
    "default_sampling",
    "engines",
    "estimate",
    "inspect",
    "slice_artifact",
]
