"""Which runtime libraries lie where, and which models each of them satisfies. Looks at files, loads none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import SpecifierSet

from backends.discovery import (
    FILE_NAMES,
    Kind,
    NoFittingRuntime,
    RuntimeFinder,
    RuntimeLibrary,
    drivable,
    misfit,
)
from backends.identity import own_machine
from server.registry import Entry, Registry


@dataclass(frozen=True)
class Found:
    """A library. problem: why none of our models can use it. satisfies: ids of all models it is right for.

    used_by: of these, the installed ones that get it, since no other library comes before it.
    """

    library: str
    version: str | None
    machine: str | None
    path: str
    problem: str | None
    satisfies: tuple[str, ...]
    used_by: tuple[str, ...]


def wants(entry: Entry) -> Iterator[tuple[Kind, str | None]]:
    """Yield each kind of library a model needs on a board, with the versions that will do."""
    if entry.adapter is not None:
        return  # its base has them
    if entry.backend == "rkllm":
        yield "rkllm", entry.runtime
    elif entry.hybrid.executor in ("rknn", "rknnlite") or entry.runtime is not None:
        yield "rknn", entry.runtime
    if entry.vision is not None and entry.vision.file.endswith(".rknn"):
        yield "rknn", entry.vision.runtime


def overview(registry: Registry, models_dir: Path, runtime_dirs: tuple[Path, ...]) -> list[Found]:
    """Return every library found, in the order in which they count, librkllmrt first."""
    finder = RuntimeFinder(runtime_dirs, system=())
    machine = own_machine()
    wanted = [(entry, kind, text) for entry in registry.entries.values() for kind, text in wants(entry)]
    found = []
    for kind in FILE_NAMES:
        chosen = {
            entry.id: path
            for entry, which, text in wanted
            if which == kind and entry.installed(models_dir) and (path := _chosen(finder, kind, text))
        }
        for library in finder.find(kind):
            satisfies = dict.fromkeys(
                entry.id
                for entry, which, text in wanted
                if which == kind and misfit(library, _both(kind, text), machine) is None
            )
            found.append(
                _found(library, machine, tuple(satisfies), [i for i in chosen if chosen[i] == library.path])
            )
    return found


def _chosen(finder: RuntimeFinder, kind: Kind, text: str | None) -> Path | None:
    try:
        return finder.choose(kind, text).path
    except NoFittingRuntime:
        return None


def _both(kind: Kind, text: str | None) -> SpecifierSet:
    return SpecifierSet(text or "") & drivable(kind)


def _found(
    library: RuntimeLibrary, machine: str | None, satisfies: tuple[str, ...], used_by: list[str]
) -> Found:
    return Found(
        library=FILE_NAMES[library.kind].removesuffix(".so"),
        version=library.version_text,
        machine=library.machine,
        path=str(library.path),
        problem=misfit(library, drivable(library.kind), machine),
        satisfies=satisfies,
        used_by=tuple(used_by),
    )
