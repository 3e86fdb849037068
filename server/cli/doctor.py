"""rkserve doctor: what keeps this machine from serving models, and what mends it.

With --deep: what the board and its vendor's library really do, tried out.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.cli.console import CommandError, results, say
from server.cli.context import ModelsDir, ModelsFile, entry_for, registry_for, settings_for

if TYPE_CHECKING:
    from backends.probing import Finding
    from server.probing.conductor import Conducted
    from server.registry import Entry
    from server.settings import Settings

EXAMPLES = (
    "Examples: [bold]rkserve doctor[/], [bold]rkserve doctor --json[/], "
    "[bold]rkserve doctor --deep minicpm5-2b[/]. Exit code 1: something is wrong. "
    "Nothing is ever changed."
)
PROBE_S = 300.0


def doctor(
    deep: Annotated[
        str | None,
        typer.Option(
            "--deep", metavar="ID", help="Try out what only a board can show of this model's runtime."
        ),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option("--explain", metavar="SECTION", help="Print a section of docs/troubleshooting.md."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON, for scripts.")] = False,
    probe_timeout: Annotated[
        float,
        typer.Option("--probe-timeout", metavar="SECONDS", min=1, help="How long one probe may take."),
    ] = PROBE_S,
    models_file: ModelsFile = None,
    models_dir: ModelsDir = None,
    runtime_dirs: Annotated[
        str | None,
        typer.Option("--runtime-dirs", metavar="DIRS", help="Where runtime libraries are, a:b."),
    ] = None,
) -> None:
    """Check this machine: a table of what is fine, what is wrong, why, and what mends it.

    With --deep ID: probe a model's runtime on a board, for a report to send us and the keys to set.
    """
    if explain is not None:
        print(_section(explain), end="")
        return
    settings = settings_for(
        {"models_file": models_file, "models_dir": models_dir, "runtime_dirs": runtime_dirs}
    )
    if deep is None:
        raise typer.Exit(_examine(settings, as_json))
    registry = registry_for(settings)
    asked = entry_for(registry, deep)
    entry = registry.host(asked)
    if entry is not asked:
        say(f"{asked.id} is an adapter on {entry.id}, which is probed in its place")
    library_version, conducted = _probe(entry, settings, probe_timeout)
    document = _keep(entry, settings, library_version, conducted)
    if as_json:
        print(json.dumps(document, indent=2, ensure_ascii=False))
    elif conducted.refused is None:
        _print_table(conducted.findings)
        _say_settings(entry, conducted.findings, document["settings"])
    if conducted.refused is not None:
        raise CommandError(f"{entry.id} cannot be probed. {conducted.refused}")
    if all(finding.outcome == "failed" for finding in conducted.findings):
        raise CommandError(f"no probe of {entry.id} succeeded; the report says how each failed")


def _section(name: str) -> str:
    """Return a section of the page by its anchor, or by the whole link that a finding shows."""
    from server.doctor.page import page_file, sections

    known = sections(page_file().read_text(encoding="utf-8"))
    wanted = name.rpartition("#")[2]
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise CommandError(f"docs/troubleshooting.md has no section {wanted}; {hint}", exit_code=2)
    return known[wanted]


def _examine(settings: Settings, as_json: bool) -> int:
    """Print what the checks find; return the exit code."""
    from server.cli.doctor_table import print_findings
    from server.doctor.checks import run
    from server.doctor.gather import gather
    from server.registry import Registry

    problem = None
    try:
        registry = registry_for(settings)
    except CommandError as error:  # the rest of the machine is looked at all the same
        registry, problem = Registry({}), str(error)
    findings, silent = run(gather(settings, registry, problem))
    bad = sum(finding.status == "bad" for finding in findings)
    advice = sum(finding.status == "advice" for finding in findings)
    if as_json:
        rows = [asdict(finding) | {"see": finding.see and finding.see.link} for finding in findings]
        document = {"ok": bad == 0, "findings": rows, "not_asked": silent}
        print(json.dumps(document, indent=2, ensure_ascii=False))
        return min(bad, 1)
    print_findings(findings)
    if bad or advice:
        say("rkserve doctor --explain SECTION prints what a row's last line names")
    if silent:
        say(f"nothing here to look at for: {', '.join(silent)}")
    say(
        ("nothing is wrong" if not bad else f"{bad} {'is' if bad == 1 else 'are'} wrong")
        + (f", {advice} could be better" if advice else "")
    )
    return min(bad, 1)


def _probe(entry: Entry, settings: Settings, probe_s: float) -> tuple[str, Conducted]:
    """Run the probes while nobody else uses the NPU; return the library's version too."""
    from backends.probing import RKLLM_PROBES, Plan
    from server.errors import ApiError
    from server.probing.conductor import Limits, conduct
    from server.probing.texts import probe_texts
    from server.registry.spec import model_spec
    from server.scheduling.npu_lock import NpuLock, default_lock_path
    from server.templates import TemplateError, Templates
    from server.workers.runtimes import Runtimes
    from server.workers.timeouts import Timeouts

    _check(entry, settings)
    try:
        library = Runtimes(settings).choose(entry)
        texts = probe_texts(entry, Templates(settings.models_dir))
    except (ApiError, TemplateError) as error:
        raise CommandError(error.message) from error
    assert library is not None  # every rkllm entry has one, or choose has raised
    plan = Plan(
        spec=model_spec(entry, settings, library.path),
        texts=texts,
        probes=[probe.name for probe in RKLLM_PROBES],
    )
    lock = NpuLock(default_lock_path(settings.sysroot))
    if not lock.try_acquire():
        say("waiting for the NPU, which another program is using")
        lock.acquire()
    try:
        say(f"probing {entry.id}; this takes some minutes, in which a running server waits for the NPU")
        limits = Limits(load_s=Timeouts.of(settings, entry).load_s, probe_s=probe_s)
        return str(library.version), conduct(plan, limits, say)
    finally:
        lock.release()


def _check(entry: Entry, settings: Settings) -> None:
    from server.workers.memory import available_mb

    if entry.backend != "rkllm":
        raise CommandError(f"{entry.id} runs on the hybrid engine: there is nothing of the vendor's to probe")
    if not entry.installed(settings.models_dir):
        raise CommandError(
            f"{entry.id} is not installed: its file belongs at {entry.path(settings.models_dir)}"
        )
    needed, free = entry.memory_mb + settings.memory_reserve_mb, available_mb(settings.sysroot)
    if free < needed:
        raise CommandError(
            f"probing {entry.id} takes {needed} MB of memory beside what runs, and {free} MB are free. Stop "
            "the server and other programs, then try again"
        )


def _keep(entry: Entry, settings: Settings, library_version: str, conducted: Conducted) -> dict[str, Any]:
    """Write the report into the working directory and the record beside the model; return the report."""
    from server.probing.report import probes_record, report
    from server.registry.record import write_section

    document = report(entry, settings.models_dir, library_version, conducted, settings.sysroot)
    path = Path(f"rkserve-doctor-{entry.id}-{datetime.now():%Y%m%d-%H%M%S}.json").absolute()
    try:
        path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        say(f"the report is {path}; please send it to us")
    except OSError as error:
        say(f"the report could not be written to {path}: {error.strerror}; use --json to have it printed")
    if conducted.refused is None:
        try:
            write_section(entry, settings.models_dir, "probes", probes_record(document))
        except OSError as error:
            say(f"nothing was noted beside the model, {error.strerror}: {error.filename}")
    return document


def _print_table(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 1, 0))
    table.add_column("PROBE", no_wrap=True)
    for header in ("RESULT", "WHAT IT DOES", "WHAT FOLLOWS", "SET"):
        table.add_column(header)
    for finding in findings:
        cells = (
            finding.probe,
            finding.outcome,
            finding.finding,
            finding.meaning,
            "\n".join(f"{key}: {json.dumps(value)}" for key, value in finding.settings.items()) or "-",
        )
        table.add_row(*(Text(cell) for cell in cells))
    results().print(table)


def _say_settings(entry: Entry, findings: list[Finding], keys: dict[str, Any]) -> None:
    failed = [finding.probe for finding in findings if finding.outcome == "failed"]
    if failed:
        say(f"these probes failed, so that it is not known what they would ask for: {', '.join(failed)}")
    if keys:
        inside = ", ".join(
            f"{key.removeprefix('rkllm.')}: {json.dumps(value)}" for key, value in keys.items()
        )
        say(f"set in the entry of {entry.id} in your models.yaml, beside what is there: rkllm: {{{inside}}}")
    elif not failed:
        say(f"nothing is to be set in the entry of {entry.id}")
