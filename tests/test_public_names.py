"""The package's public names, which are imported where they are first used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gguf_worker


def _checked_names() -> set[str]:
    """What a type checker sees: the imports that only it makes."""
    tree = ast.parse(Path(str(gguf_worker.__file__)).read_text())
    (block,) = (
        node
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    )
    imported = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    declared = {
        node.target.id
        for node in block.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return imported | declared


def test_public_names_are_those_that_a_type_checker_sees() -> None:
    """Each name is there, and what it is called comes from where the checker looks for it."""
    assert set(gguf_worker.__all__) == _checked_names()
    assert set(gguf_worker.__all__) <= set(dir(gguf_worker))
    for name in gguf_worker.__all__:
        assert getattr(gguf_worker, name) is not None
    assert gguf_worker.Recipe.__module__ == "gguf_worker.identity.recipe"


def test_name_that_is_not_there_is_an_attribute_error() -> None:
    """As of any other module."""
    with pytest.raises(AttributeError, match="no_such_name"):
        gguf_worker.no_such_name  # type: ignore[attr-defined] # noqa: B018


def _imported_by(statement: str) -> set[str]:
    """The modules that a fresh interpreter imports with a statement."""
    program = f"import sys\nbefore = set(sys.modules)\n{statement}\nprint(*(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_entry_of_the_command_line_imports_nothing_else() -> None:
    """Before `main` there is nobody to take a Ctrl-C, so next to nothing is done there."""
    imported = _imported_by("from gguf_worker.cli import main")
    # The finder of an editable install is no part of the package; it takes what it needs from the library.
    ours = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    assert ours <= {"gguf_worker", "gguf_worker.cli"}
    assert not imported & {"asyncio", "dataclasses", "typing"}


def test_help_does_not_wait_for_what_it_does_not_need() -> None:
    """The commands and their options are there without event loop, protocol and supervision."""
    imported = _imported_by("import gguf_worker.cli.app")
    assert not imported & {"anyio", "asyncio", "msgpack", "psutil", "gguf_worker.supervision"}
