"""rkserve models: the table of all models that are known, and what is there of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.console import say
from server.cli.context import ModelsDir, ModelsFile, registry_for, settings_for, where_not_installed
from server.cli.models_table import Row, print_table

if TYPE_CHECKING:
    from server.registry import Entry, Registry
    from server.templates import Templates
    from server.workers.runtimes import Runtimes

EXAMPLES = "Examples: [bold]rkserve models[/], [bold]rkserve models --json[/]"


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
    models_file: ModelsFile = None,
    models_dir: ModelsDir = None,
    runtime_dirs: Annotated[
        str | None,
        typer.Option("--runtime-dirs", metavar="DIRS", help="Where runtime libraries are, a:b."),
    ] = None,
) -> None:
    """List the models that are known: which are installed, what they need, how good and quick they are."""
    from server.templates import Templates
    from server.workers.runtimes import Runtimes

    settings = settings_for(
        {"models_file": models_file, "models_dir": models_dir, "runtime_dirs": runtime_dirs}
    )
    registry = registry_for(settings)
    runtimes = Runtimes(settings)
    templates = Templates(settings.models_dir)
    rows = [
        _row(entry, registry, settings.models_dir, runtimes, templates) for entry in registry.entries.values()
    ]
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False))
        return
    left_out = print_table(rows)
    for row in rows:
        _say_more(row)
    if left_out:
        say(f"no room for {', '.join(left_out)}: a wider terminal or --json shows all")
    if not any(row.installed for row in rows):
        where = where_not_installed(settings.models_dir)
        say(f"none is installed in {where}; rkserve pull smollm2-135m fetches the demo model")


def _row(entry: Entry, registry: Registry, models_dir: Path, runtimes: Runtimes, templates: Templates) -> Row:
    from server.registry.last_load import read_last_load
    from server.store.soundness import known_damage, soundness

    host = registry.host(entry)
    installed = entry.installed(models_dir) and host.installed(models_dir)
    library, problem = runtimes.describe(host)
    last = read_last_load(entry, models_dir) if installed else None
    damage = known_damage(entry, models_dir) if installed else None
    template = templates.problem(entry) if installed else None
    template = template and registry.located(entry, "template", template)
    return Row(
        id=entry.id,
        installed=installed,
        verified=soundness(entry, models_dir) if installed else None,
        runtime=library or _engine(entry),
        size_mb=round(_size_bytes(entry.path(models_dir)) / 1e6) if installed else None,
        memory_mb=entry.memory_mb,
        license=entry.license.id,
        notice=entry.license.notice,
        attribution=entry.license.attribution,
        score=entry.measured.score,
        tokens_per_s=entry.measured.tokens_per_s,
        remark=entry.measured.remark,
        details={} if last is None else last.details,
        warnings=[
            *(text for text in (damage, problem, template) if text and installed),
            *([] if last is None else last.warnings),
        ],
    )


def _say_more(row: Row) -> None:
    """Say of an installed model what the table has no room for."""
    if not row.installed:
        return
    if row.details:
        details = ", ".join(f"{key} {value}" for key, value in row.details.items())
        say(f"{row.id}, when it was last loaded: {details}")
    if said := [text for text in (row.attribution, row.notice) if text]:
        say(f"{row.id}, {row.license}: {'. '.join(said)}")
    for warning in row.warnings:
        say(f"{row.id}: {warning}")


def _engine(entry: Entry) -> str | None:
    """Return the engine of ours that would run the model on this machine, None where there is none."""
    from importlib.metadata import PackageNotFoundError, version

    if entry.backend != "hybrid" or entry.hybrid.executor not in ("auto", "onnxruntime"):
        return None
    try:
        return f"onnxruntime {version('onnxruntime')}"
    except PackageNotFoundError:
        return None


def _size_bytes(path: Path) -> int:
    files = (file for file in path.rglob("*") if file.is_file()) if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files)
