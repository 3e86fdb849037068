"""rkserve runtime: the vendor's runtime libraries, put where they are looked for and looked over."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from server.cli.console import CommandError, results, say
from server.cli.context import ModelsDir, ModelsFile, registry_for, settings_for

if TYPE_CHECKING:
    from server.runtimes.overview import Found
    from server.runtimes.placing import Installed
    from server.settings import Settings

app = typer.Typer(
    help="Install and list the vendor's runtime libraries, librkllmrt and librknnrt.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    epilog="Example: [bold]rkserve runtime install librkllmrt.so[/]. Where the vendor publishes them: "
    "docs/runtimes.md",
)
RuntimeDirs = Annotated[
    str | None, typer.Option("--runtime-dirs", metavar="DIRS", help="Where runtime libraries are, a:b.")
]
SYSTEM_LIBRKNNRT = "/usr/lib/librknnrt.so"  # the only one rknn-toolkit-lite2 takes


@app.command(
    "install",
    epilog="Examples: [bold]rkserve runtime install librkllmrt.so[/], [bold]rkserve runtime install "
    "https://.../librkllmrt.so --sha256 HEX[/]. Which file it is: docs/runtimes.md",
)
def install(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE|URL", help="The library: a file, or an http(s) address.", show_default=False
        ),
    ],
    sha256: Annotated[
        str | None, typer.Option("--sha256", metavar="HEX", help="Refuse the file unless it has this hash.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of other bytes of the same version.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
    runtime_dirs: RuntimeDirs = None,
) -> None:
    """Put a librkllmrt.so or librknnrt.so under its version, once it is known to fit this machine."""
    from backends.identity import own_machine
    from server.cli.progress import progress
    from server.runtimes.errors import InstallError
    from server.runtimes.placing import install as place
    from server.runtimes.placing import target_directory

    if sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise CommandError("--sha256 takes 64 hexadecimal digits", exit_code=2)
    settings = settings_for({"runtime_dirs": runtime_dirs})
    _warn_of_other_settings()
    try:
        directory = target_directory(settings.runtime_dirs)
        with progress("fetching") as report:
            done = place(source, directory, own_machine(), sha256=sha256, replace=replace, report=report)
    except InstallError as error:
        raise CommandError(error.message) from error
    if as_json:
        document = {"library": done.library, "version": done.version, "sha256": done.sha256}
        print(json.dumps(document | {"path": str(done.path), "unchanged": done.unchanged}, indent=2))
    else:
        print(f"{done.library} {done.version} {'was already' if done.unchanged else 'is now'} at {done.path}")
        print(f"sha256 {done.sha256}")
    _say_who_uses_it(done, settings)


@app.command("list", epilog="Examples: [bold]rkserve runtime list[/], [bold]rkserve runtime list --json[/]")
def list_libraries(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
    models_file: ModelsFile = None,
    models_dir: ModelsDir = None,
    runtime_dirs: RuntimeDirs = None,
) -> None:
    """Show which runtime libraries are found, where, and which models each is right for."""
    settings = settings_for(
        {"models_file": models_file, "models_dir": models_dir, "runtime_dirs": runtime_dirs}
    )
    found = _overview(settings)
    if as_json:
        print(json.dumps([asdict(library) for library in found], indent=2, ensure_ascii=False))
        return
    if not found:
        places = ", ".join(str(path) for path in settings.runtime_dirs)
        say(
            f"no librkllmrt.so and no librknnrt.so in {places}; rkserve runtime install FILE|URL puts one "
            "there"
        )
        return
    _print_table(found)
    for library in found:
        if library.problem is not None:
            say(f"{library.path}: {library.problem}")


def _warn_of_other_settings() -> None:
    """Say so where the service has settings that this user may not read: it may look in other directories."""
    from server.settings import SERVICE_ENV_FILE
    from server.sysroot import Sysroot

    if Sysroot(Path("/")).denied(str(SERVICE_ENV_FILE)):
        say(
            f"{SERVICE_ENV_FILE} may not be read by this user, so this is for your own server; run it with "
            "sudo for the service"
        )


def _overview(settings: Settings) -> list[Found]:
    from server.runtimes.overview import overview

    return overview(registry_for(settings), settings.models_dir, settings.runtime_dirs)


def _print_table(found: list[Found]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for header in ("LIBRARY", "VERSION", "FOR", "USED BY", "ALSO RIGHT FOR", "WHERE"):
        table.add_column(header, overflow="fold")
    for library in found:
        others = [model for model in library.satisfies if model not in library.used_by]
        cells = (
            library.library,
            library.version or "-",
            library.machine or "-",
            ", ".join(library.used_by) or "-",
            "nothing" if library.problem else ", ".join(others) or "-",
            library.path,
        )
        table.add_row(*(Text(cell) for cell in cells))
    results().print(table)


def _say_who_uses_it(done: Installed, settings: Settings) -> None:
    """Say which models get the library, and what else it takes."""
    here = next((one for one in _overview(settings) if one.path == str(done.path)), None)
    if here is not None and here.used_by:
        say(f"used by {', '.join(here.used_by)} from the next load on; a server need not be restarted")
    elif here is not None and here.satisfies:
        say(f"right for {', '.join(here.satisfies)}; rkserve models says which of them are installed")
    else:
        say("no model that rkserve knows wants this version; rkserve models --json shows what they want")
    if done.kind == "rknn":
        say(
            f"rknn-toolkit-lite2, which runs image encoders, takes {SYSTEM_LIBRKNNRT} and no other: "
            f"sudo ln -sf {done.path} {SYSTEM_LIBRKNNRT}"
        )
