"""rkserve repair: mend a model's files by another copy, fetching only what is damaged."""

from __future__ import annotations

import json
import os
import sys
from getpass import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.console import CommandError, say
from server.cli.context import ModelsDir, ModelsFile, entry_for, registry_for, settings_for, store_errors
from server.cli.progress import progress

if TYPE_CHECKING:
    from server.registry import Entry
    from server.settings import Settings
    from server.store.repair import Mended

EXAMPLES = (
    "Examples: [bold]rkserve repair minicpm5-2b --from http://other-board:8000[/], "
    "[bold]rkserve repair minicpm5-2b --from /mnt/nas/models/minicpm5-2b[/]. "
    "Another rkserve that asks for a key gets RKSERVE_API_KEY, else you are asked for it."
)


def repair(
    model: Annotated[
        str, typer.Argument(metavar="ID", help="The model, as rkserve models lists it.", show_default=False)
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="URL|PATH",
            help="Another rkserve (http://host:8000), a file or directory at an address, or one on a disk.",
            show_default=False,
        ),
    ],
    trust: Annotated[
        bool, typer.Option("--trust", help="Take the copy's word for hashes that nobody has told here.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
    models_file: ModelsFile = None,
    models_dir: ModelsDir = None,
) -> None:
    """Compare a model's files with another copy piece by piece, and fetch only the damaged pieces.

    The mended file takes the place of the damaged one when its whole hash is right, not before.
    """
    settings = settings_for({"models_file": models_file, "models_dir": models_dir})
    entry = entry_for(registry_for(settings), model)
    done = _repair(entry, settings, source, trust)
    if as_json:
        print(json.dumps([_row(one) for one in done], indent=2, ensure_ascii=False))
    for one in done:
        if one.changed:
            pieces = f"{len(one.fetched)} piece{'' if len(one.fetched) == 1 else 's'}"
            say(
                f"{one.path} is mended: {pieces}, {one.fetched_bytes / 1e6:,.1f} of its "
                f"{one.size_bytes / 1e6:,.1f} MB, came from {source}; its whole hash is right"
            )
    if not any(one.changed for one in done):
        say(f"{entry.id} is whole: nothing was fetched")
    else:
        say(f"a server that has {entry.id} loaded takes the mended file when it loads it again")


def _repair(entry: Entry, settings: Settings, source: str, trust: bool) -> list[Mended]:
    from server.settings import API_KEY_VARIABLE
    from server.store.copies import KeyRefused

    key = os.environ.get(API_KEY_VARIABLE)
    try:
        return _with_key(entry, settings, source, trust, key)
    except CommandError as error:
        asks = isinstance(error.__cause__, KeyRefused) and sys.stdin.isatty() and sys.stderr.isatty()
        if key or not asks:
            raise
        return _with_key(entry, settings, source, trust, getpass(f"API key of {source}: ").strip())


def _with_key(entry: Entry, settings: Settings, source: str, trust: bool, key: str | None) -> list[Mended]:
    from server.store.copies import open_copy
    from server.store.licence import accepted
    from server.store.lock import working_on
    from server.store.parts import main_part
    from server.store.repair import repair as mend
    from server.store.transfer import http_client

    if not entry.installed(settings.models_dir) and not accepted(entry, settings.models_dir):
        raise CommandError(
            f"{entry.id} is not installed, and its licence is to be accepted first: "
            f"rkserve pull {entry.id} --accept-license"
        )
    hybrid = entry.backend == "hybrid"
    main = "" if hybrid else main_part(entry, settings.models_dir).name
    with store_errors(), http_client() as client, working_on(entry, settings.models_dir):
        copy = open_copy(client, source, entry.id, main, key)
        with progress(f"repairing {entry.id}") as report:
            return mend(entry, settings.models_dir, copy, trust=trust, report=report)


def _row(one: Mended) -> dict[str, object]:
    return {
        "file": str(one.path),
        "state": "mended" if one.changed else "whole",
        "size_bytes": one.size_bytes,
        "fetched_pieces": list(one.fetched),
        "fetched_bytes": one.fetched_bytes,
    }
