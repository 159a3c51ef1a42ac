"""Builds the programs that we are compared with: llama.cpp's server, and its library with RPC servers.

They come from the source package of the very llama-cpp-python that is installed, with the flags that its own
build has, so that both sides compute by the same code. An interrupted build goes on where it was.

    make bench-peers
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

PACKAGE = "llama-cpp-python"
FOLDER = Path(__file__).parents[2] / "build" / "bench"
SOURCE = FOLDER / "source"
PEERS = FOLDER / "peers"
BUILT = PEERS / "built.json"
"""Written last: what was built, as `wanted` says it."""
TARGETS = ("llama-server", "ggml-rpc-server")
FLAGS = (
    # What the package's own build sets, or has by default (GGML_NATIVE, GGML_OPENMP, GGML_LLAMAFILE,
    # repacking).
    "CMAKE_BUILD_TYPE=Release",
    "BUILD_SHARED_LIBS=ON",
    "LLAMA_BUILD_COMMON=ON",
    # What it leaves out.
    "GGML_RPC=ON",
    "LLAMA_BUILD_TOOLS=ON",
    "LLAMA_BUILD_SERVER=ON",
    # What nobody needs here; the assets of the page would come from the network.
    "LLAMA_BUILD_TESTS=OFF",
    "LLAMA_BUILD_EXAMPLES=OFF",
    "LLAMA_BUILD_APP=OFF",
    "LLAMA_BUILD_UI=OFF",
    "LLAMA_USE_PREBUILT_UI=OFF",
    "LLAMA_OPENSSL=OFF",
)
_COMMIT = re.compile(r"set\(LLAMA_BUILD_COMMIT\s+(\w+)\)")
_COMPILER = re.compile(r"^CMAKE_CXX_COMPILER:\w+=(.+)$", re.MULTILINE)


# ---- where they are -----------------------------------------------------------------------------


def llama_server() -> Path:
    """The executable. Raises LookupError, with the command that builds it, when it is not there."""
    return _built("llama-server")


def rpc_server() -> Path:
    """The executable of one RPC server. Raises as `llama_server` does."""
    return _built("ggml-rpc-server")


def library_folder() -> Path:
    """Of the shared libraries, for `LLAMA_CPP_LIB_PATH`. Raises as `llama_server` does."""
    return _built("libllama.so").parent


def describe() -> dict[str, Any]:
    """What was built: `package`, `commit`, `flags`, `compiler`. Raises as `llama_server` does."""
    _check_built()
    found: dict[str, Any] = json.loads(BUILT.read_text())
    return found


def wanted() -> dict[str, Any]:
    """What `describe` must say, but for the compiler."""
    package = distribution(PACKAGE)
    return {"package": f"{PACKAGE} {package.version}", "commit": commit(), "flags": list(FLAGS)}


def commit() -> str:
    """Of the llama.cpp that the installed package was built from."""
    files = [file for file in distribution(PACKAGE).files or () if file.name == "llama-config.cmake"]
    found = _COMMIT.search(files[0].read_text()) if files else None
    return found[1] if found else "unknown"


def _built(name: str) -> Path:
    _check_built()
    return PEERS / "bin" / name


def _check_built() -> None:
    if not is_built():
        raise LookupError("llama.cpp's server and RPC server are not built; run: make bench-peers")


def is_built() -> bool:
    """Whether what is there is what is wanted."""
    try:
        found = json.loads(BUILT.read_text())
    except (OSError, ValueError):
        return False
    return bool({**found, "compiler": None} == {**wanted(), "compiler": None})


# ---- building -----------------------------------------------------------------------------------


def build() -> None:
    """Does what is left to do. Raises CalledProcessError when a step fails, after it said why."""
    if is_built():
        return
    BUILT.unlink(missing_ok=True)
    if _source_version() != distribution(PACKAGE).version:
        _fetch_source()
    configure = ["cmake", "-G", "Ninja", "-S", str(SOURCE / "vendor" / "llama.cpp"), "-B", str(PEERS)]
    # The build would else name the commit of whatever repository it lies in.
    flags = [*FLAGS, f"LLAMA_BUILD_COMMIT={commit()}", "LLAMA_BUILD_NUMBER=1"]
    _run([*configure, *(f"-D{flag}" for flag in flags)])
    _run(["cmake", "--build", str(PEERS), "--target", *TARGETS])
    BUILT.write_text(json.dumps({**wanted(), "compiler": _compiler()}, indent=2) + "\n")


def _source_version() -> str | None:
    try:
        return (SOURCE / "version").read_text().strip()
    except OSError:
        return None


def _fetch_source() -> None:
    """Into place as a whole or not at all. An older one goes, and what was built of it."""
    version = distribution(PACKAGE).version
    for old in (SOURCE, PEERS):
        shutil.rmtree(old, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
        # Without isolation: pip wants the package's metadata, and what makes them is installed already.
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps"]
        pip += ["--no-build-isolation", "--no-binary", PACKAGE, "-d", scratch, f"{PACKAGE}=={version}"]
        print(f"fetching the source of {PACKAGE} {version}", flush=True)
        _run(pip)
        (archive,) = Path(scratch).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
        (unpacked,) = (path for path in Path(scratch).iterdir() if path.is_dir())
        (unpacked / "version").write_text(version + "\n")
        unpacked.rename(SOURCE)


def _compiler() -> str:
    """Its own first line, without the place that it lies in."""
    found = _COMPILER.search((PEERS / "CMakeCache.txt").read_text())
    assert found is not None
    said = subprocess.run([found[1], "--version"], capture_output=True, text=True, check=True)
    return said.stdout.splitlines()[0]


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


def main() -> None:
    """Says nothing where nothing is to do."""
    if is_built():
        return
    try:
        build()
    except subprocess.CalledProcessError as error:
        sys.exit(f"error: {error.cmd[0]} failed with status {error.returncode}")
    print(f"built {' and '.join(TARGETS)}, llama.cpp {commit()}, of {PACKAGE}'s source")


if __name__ == "__main__":
    main()
