"""The page of a folder, made of what lies in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kit.evidence.folder import Folder, RunRecord
from kit.evidence.parts import Command
from kit.evidence.tables import (
    bench_tables,
    certificate_tables,
    fact,
    faults_tables,
    is_short,
    ratio_table,
    table,
)

Content = Mapping[str, Any]


def page(folder: Folder, all_commands: list[Command]) -> str:
    """All of it."""
    benches, faults = folder.files("bench-*.json"), folder.files("faults-*.json")
    certificates = folder.files("certificate-*.json")
    setting = folder.files("setting.json").get("setting", {})
    everything = {**benches, **faults, **certificates, **({"setting": setting} if setting else {})}
    parts = [
        [f"# Evidence of {folder.name}", "", "Made by `make evidence` from the files beside it."],
        ["## Commands", "", *_commands(folder.runs(), everything)],
        ["## Ratios", "", *ratio_table(benches)],
        *(_bench(name, content) for name, content in benches.items()),
        ["## Faults", "", *faults_tables(faults)],
        *(["## Certificate", "", *certificate_tables(content)] for content in certificates.values()),
        ["## Artifact and shards", "", *_artifact(setting, certificates)],
        ["## Builds and devices", "", *_builds(setting, everything)],
        ["## Machine and network", "", *_machine(setting, everything)],
        ["## What was not run, and why", "", *not_run(folder, all_commands, setting)],
        ["## Limits", "", *_limits(folder.runs(), setting)],
    ]
    return "\n\n".join("\n".join(lines).rstrip() for lines in parts) + "\n"


# ---- what was run -------------------------------------------------------------------------------


def _commands(runs: Mapping[str, RunRecord], files: Mapping[str, Content]) -> list[str]:
    """Each with its end; then what lies here of which no end was recorded."""
    rows: list[tuple[object, ...]] = [
        (
            f"`{run.command}`",
            run.status,
            f"{run.seconds:.0f} s",
            f"{run.load_before:.2f}",
            run.date,
            f"`{run.source}`" if run.source else "not known",
            _links(name, files),
        )
        for name, run in runs.items()
    ]
    of_runs = {file for name in runs for file in _files_of(name, files)}
    rows += [
        (f"`{content['command']}`", "not recorded", "", "", content["date"], "", _link(name))
        for name, content in files.items()
        if name not in of_runs
    ]
    head = ("command", "exit status", "took", "load before", "begun", "source", "files")
    return [
        "MODEL is the demo model and FOLDER this one. The load is the number of processes that computed or "
        "wanted to, over the minute before.",
        "",
        *table(head, rows, right=(1, 2, 3)),
    ]


def _links(name: str, files: Mapping[str, Content]) -> str:
    return ", ".join(map(_link, _files_of(name, files)))


def _files_of(name: str, files: Mapping[str, Content]) -> list[str]:
    """A program has the file of its name; the one of the faults writes two."""
    several = {"faults": ("faults-matrix", "faults-figures")}
    return [file for file in several.get(name, (name,)) if file in files]


def _link(name: str) -> str:
    return f"[{name}.json]({name}.json)"


def _bench(name: str, content: Content) -> list[str]:
    title = content.get("question") or name
    settings = [
        f"- {setting}: {fact(value)}"
        for setting, value in content.get("settings", {}).items()
        if is_short(value)
    ]
    head = [f"## {title}", "", f"{_link(name)}: `{content['command']}`", ""]
    return [*head, *settings, "", *bench_tables(content)]


# ---- with what ----------------------------------------------------------------------------------


def _artifact(setting: Content, certificates: Mapping[str, Content]) -> list[str]:
    """Of the demo model: as the workers attested them, or else as certificates have them."""
    if setting:
        first = setting["splits"][0]
        lines = [f"`{setting['artifact']['file']}`, {setting['artifact']['bytes']:,} bytes, sha256 of the"]
        lines = [f"{lines[0]} artifact `{first['artifact']}`. The file that each stage's library maps:", ""]
        splits = [
            (split["stages"], shard["layers"], f"`{shard['sha256']}`")
            for split in setting["splits"]
            for shard in split["shards"]
        ]
        return [*lines, *table(("stages", "layers", "sha256"), splits, right=(0,))]
    shards = [
        (len(cut["shards"]), index, f"`{shard}`")
        for content in certificates.values()
        for cut in content["cuts"]
        for index, shard in enumerate(cut["shards"])
    ]
    artifacts = [f"sha256 of the artifact: `{content['artifact']}`" for content in certificates.values()]
    return [*artifacts, "", *table(("stages", "stage", "sha256"), shards, right=(0, 1))]


def _builds(setting: Content, files: Mapping[str, Content]) -> list[str]:
    rows = [*_any(files, "versions").items()]
    library = setting.get("library", {})
    rows += [
        (f"library: {name.replace('_', ' ')}", value) for name, value in library.items() if name != "devices"
    ]
    rows += [
        ("backend and driver", f"{device['name']} ({device['kind']}): {device['description']}")
        for device in library.get("devices", ())
    ]
    rows += [(f"peers: {name}", _code(value)) for name, value in setting.get("peers", {}).items()]
    return table(("what", "which"), rows)


def _code(value: object) -> str:
    """A list of flags as flags."""
    return " ".join(f"`{one}`" for one in value) if isinstance(value, list) else fact(value)


def _machine(setting: Content, files: Mapping[str, Content]) -> list[str]:
    found = setting.get("hardware") or _any(files, "machine")
    rows = [
        (name.removesuffix("_bytes"), f"{value:,} bytes" if name.endswith("_bytes") else fact(value))
        for name, value in found.items()
    ]
    return table(("what", "which"), [*rows, ("network", setting.get("network", "loopback"))])


def _any(files: Mapping[str, Content], key: str) -> Content:
    """Of the newest file that says it."""
    saying = sorted((content["date"], name) for name, content in files.items() if key in content)
    return files[saying[-1][1]][key] if saying else {}


# ---- what there is not --------------------------------------------------------------------------


def not_run(folder: Folder, all_commands: list[Command], setting: Content) -> list[str]:
    """Commands without an end, or with a bad one; and what this machine cannot show."""
    runs = folder.runs()
    lines = [
        f"- `{command.name}`: left out; `{command.shown}` runs it"
        for command in all_commands
        if command.name not in runs and not _files_of(command.name, _names(folder))
    ]
    for name, run in runs.items():
        if run.status:
            lines += [f"- `{name}`: ended with exit status {run.status}. Its last lines:", "", "  ```"]
            lines += [*(f"  {line}" for line in run.last_lines), "  ```"]
    devices = setting.get("library", {}).get("devices", ())
    gpus = [device["name"] for device in devices if device["kind"] != "cpu"]
    if not gpus:
        lines.append("- a GPU: the library that is installed here has no device but the CPU (`docs/gpu.md`)")
    lines.append("- several machines: there was one; what a real network adds was not measured")
    system = str((setting.get("hardware") or {}).get("kernel", "Linux")).partition(" ")[0]
    lines += [f"- {other}: this is {system}" for other in ("macOS", "Linux") if other != _usual(system)]
    return lines


def _names(folder: Folder) -> Mapping[str, Content]:
    return folder.files("*-*.json")


def _usual(system: str) -> str:
    return "macOS" if system == "Darwin" else system


def _limits(runs: Mapping[str, RunRecord], setting: Content) -> list[str]:
    hardware = setting.get("hardware", {})
    lines = [
        "- Seconds and tokens per second are those of this machine. Ratios are taken within a round, so that "
        "what slows the machine slows both sides; how far they still spread stands beside each.",
        "- The 1B-class models have random weights: their size is what matters, their texts mean nothing.",
        "- Equality is that of one machine and one build; another processor may give both sides other bits.",
    ]
    if hardware.get("virtual"):
        lines.append("- The machine is virtual: what its host did meanwhile is not known.")
    if any("--tiny" in run.command for run in runs.values()):
        lines.append("- Commands with `--tiny` show that they run. Their figures mean nothing.")
    if len(sources := {run.source for run in runs.values()}) > 1:
        lines.append(f"- Not all of it was run from the same source: {len(sources)} are named above.")
    return lines
