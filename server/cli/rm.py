"""rkserve rm: remove a model's files. Its entry in models.yaml stays, so that it can be pulled again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.console import CommandError, say
from server.cli.context import ModelsDir, ModelsFile, entry_for, registry_for, settings_for, store_errors

if TYPE_CHECKING:
    from server.registry import Entry, Registry
    from server.settings import Settings

EXAMPLES = "Examples: [bold]rkserve rm kanana-2-3b[/], [bold]rkserve rm kanana-2-3b --yes[/]"


def rm(
    model: Annotated[
        str, typer.Argument(metavar="ID", help="The model, as rkserve models lists it.", show_default=False)
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    models_file: ModelsFile = None,
    models_dir: ModelsDir = None,
) -> None:
    """Remove a model's files from the models directory, what was fetched in part included, to free the space.

    Files elsewhere, which the entry names by an absolute path, stay.
    """
    from server.store.removal import directory_size, remove

    settings = settings_for({"models_file": models_file, "models_dir": models_dir})
    registry = registry_for(settings)
    entry = entry_for(registry, model)
    if entry.shares_with is not None:
        raise CommandError(
            f"{entry.id} has no files of its own, but those of {entry.shares_with}: rkserve rm "
            f"{entry.shares_with} removes both"
        )
    directory = entry.directory(settings.models_dir)
    elsewhere = _elsewhere(entry, settings.models_dir)
    if not os.path.lexists(directory):
        if elsewhere is not None:
            raise CommandError(f"{entry.id} lies at {elsewhere}, no place of rkserve's: remove it yourself")
        raise CommandError(f"of {entry.id} nothing is there in {settings.models_dir}")
    for line in _what_goes_with_it(entry, registry, settings):
        say(line)
    if not yes:
        _ask(f"remove {directory} ({directory_size(directory) / 1e6:,.0f} MB)?")
    with store_errors():
        freed = remove(entry, settings.models_dir)
    say(f"{entry.id} is removed from {directory}: {freed / 1e6:,.0f} MB are free again")
    if elsewhere is not None:
        say(
            f"{elsewhere} stays: it is no place of rkserve's. What lay here, such as its tokenizer, "
            f"is gone: take the entry {entry.id} out of models.yaml, or add the file again"
        )


def _elsewhere(entry: Entry, models_dir: Path) -> Path | None:
    """Return where the model is, if not in its own directory."""
    path = entry.path(models_dir)
    return None if path.is_relative_to(entry.directory(models_dir)) or not path.exists() else path


def _what_goes_with_it(entry: Entry, registry: Registry, settings: Settings) -> list[str]:
    """Say whom it will be missing: servers that have it loaded, adapters on it."""
    from server.store.in_use import processes_using

    directory = entry.directory(settings.models_dir)
    lines = [
        f"{other.id} has its files there, too, and goes with it"
        for other in registry.entries.values()
        if other is not entry
        and other.path(settings.models_dir).is_relative_to(directory)
        and registry.host(other) is other
    ]
    lines += [
        f"{other.id} is an adapter of {entry.id} and does not run without it"
        for other in registry.entries.values()
        if other is not entry and registry.host(other) is entry and other.installed(settings.models_dir)
    ]
    if processes := processes_using(directory):
        shown = ", ".join(map(str, processes))
        lines.append(
            f"the files are in use now (process {shown}): answers that have begun go on, and the space is "
            "free only when the model is unloaded"
        )
    return lines


def _ask(question: str) -> None:
    """Ask on the terminal; what is no yes ends the command."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(f"{question} Nobody is there to ask: say --yes", exit_code=2)
    if not typer.confirm(f"rkserve: {question}", err=True):
        raise CommandError("nothing was removed")
