"""rkserve models: the table of all models that are known, and what is there of them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.console import results, say
from server.cli.context import ModelsDir, ModelsFile, registry_for, settings_for

if TYPE_CHECKING:
    from server.registry import Entry, Registry
    from server.templates import Templates
    from server.workers.runtimes import Runtimes

EXAMPLES = "Examples: [bold]rkserve models[/], [bold]rkserve models --json[/]"


@dataclass(frozen=True)
class Row:
    """What is shown of one model.

    runtime: what would run it here, None if nothing. details: what it and its runtime said when it was last
    loaded. warnings: from then, and why there is no runtime. size_mb: on the disk.
    """

    id: str
    installed: bool
    runtime: str | None
    size_mb: int | None
    memory_mb: int
    license: str
    score: float | None
    tokens_per_s: float | None
    remark: str | None
    details: dict[str, str]
    warnings: list[str]


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
    _print_table(rows)
    for row in rows:
        _say_more(row)
    if not any(row.installed for row in rows):
        say(f"none is installed in {settings.models_dir}; rkserve pull smollm2-135m fetches the demo model")


def _row(entry: Entry, registry: Registry, models_dir: Path, runtimes: Runtimes, templates: Templates) -> Row:
    from server.registry.last_load import read_last_load

    installed = entry.installed(models_dir)
    library, problem = runtimes.describe(entry)
    last = read_last_load(entry, models_dir) if installed else None
    template = templates.problem(entry) if installed else None
    template = template and registry.located(entry, "template", template)
    return Row(
        id=entry.id,
        installed=installed,
        runtime=library or _engine(entry),
        size_mb=round(_size_bytes(entry.path(models_dir)) / 1e6) if installed else None,
        memory_mb=entry.memory_mb,
        license=entry.license.id,
        score=entry.measured.score,
        tokens_per_s=entry.measured.tokens_per_s,
        remark=entry.measured.remark,
        details={} if last is None else last.details,
        warnings=[
            *(text for text in (problem, template) if text and installed),
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


def _print_table(rows: list[Row]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("ID", "INSTALLED", "RUNTIME"):
        table.add_column(header, no_wrap=header == "ID")
    for header in ("SIZE", "MEMORY", "SCORE", "TOK/S"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("LICENCE")
    table.add_column("REMARK")
    for row in rows:
        cells = (
            row.id,
            "yes" if row.installed else "-",
            row.runtime or "-",
            _megabytes(row.size_mb),
            _megabytes(row.memory_mb),
            _number(row.score),
            _number(row.tokens_per_s),
            row.license,
            row.remark or "",
        )
        table.add_row(*(Text(cell) for cell in cells))
    results().print(table)


def _megabytes(value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1000:.1f} GB" if value >= 1000 else f"{value} MB"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
