"""Which commands are run for evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from evidences import folder_in, setting_content
from kit.evidence.folder import SETTING
from kit.evidence.parts import PARTS, ROOT, Command, chosen, commands, line_of

MODEL = Path("/srv/models/some.gguf")


@pytest.fixture
def all_commands(tmp_path: Path) -> list[Command]:
    return commands(MODEL, folder_in(tmp_path))


def test_every_question_is_asked(all_commands: list[Command]) -> None:
    asked = {command.name for command in all_commands if command.part == "bench"}
    assert asked == {f"bench-{path.stem}" for path in (ROOT / "bench").glob("*.py")}


def test_parts_come_in_order(all_commands: list[Command]) -> None:
    assert tuple(dict.fromkeys(command.part for command in all_commands)) == PARTS


def test_places_are_in_the_command_and_not_in_what_is_shown(
    all_commands: list[Command], tmp_path: Path
) -> None:
    for command in all_commands:
        assert str(MODEL) in line_of(command)
        assert str(tmp_path / "2026-03-01") in " ".join(line_of(command))
        assert str(MODEL) not in command.shown
        assert str(tmp_path) not in command.shown
    assert "gguf-worker certify MODEL" in all_commands[-1].shown
    assert all_commands[-1].arguments[-1] == str(tmp_path / "2026-03-01/certificate-smollm2-135m-q4_1.json")


def test_certificate_is_of_the_divisions_that_are_measured(tmp_path: Path) -> None:
    """Those of the setting, which was written before; of the usual ones where there is none."""
    folder = folder_in(tmp_path)
    assert "--cuts" not in commands(MODEL, folder)[-1].arguments
    folder.write(SETTING, setting_content())
    arguments = commands(MODEL, folder)[-1].arguments
    assert arguments[arguments.index("--cuts") + 1] == "2"


def test_tiny_commands_are_shown_as_such(tmp_path: Path) -> None:
    tiny = commands(MODEL, folder_in(tmp_path), is_tiny=True)
    assert all("--tiny" in command.arguments for command in tiny if command.part == "bench")


def test_what_is_done_is_not_done_again_unless_it_is_named(all_commands: list[Command]) -> None:
    """By its part or by itself."""
    done = {command.name for command in all_commands} - {"faults", "certificate-smollm2-135m-q4_1"}
    assert _names(chosen(all_commands, [], done)) == ["faults", "certificate-smollm2-135m-q4_1"]
    assert _names(chosen(all_commands, ["bench-scaling", "faults"], done)) == ["bench-scaling", "faults"]
    benches = [command.name for command in all_commands if command.part == "bench"]
    assert _names(chosen(all_commands, ["bench"], done)) == benches
    with pytest.raises(ValueError, match="no part or command is called certificates, tea; there are"):
        chosen(all_commands, ["tea", "certificates"], done)


def _names(found: list[Command]) -> list[str]:
    return [command.name for command in found]
