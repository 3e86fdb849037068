"""rkserve key: the API keys of the server. The file holds hashes; a key is shown once, when it is made."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import secrets
from pathlib import Path
from typing import Annotated

import typer

from server.cli.console import CommandError, say
from server.cli.context import settings_for
from server.cli.keys_file import changing, read_lines

KEY_BYTES = 32
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@-]{0,63}(?<! )")

app = typer.Typer(
    help="Make, list and revoke the API keys of this server.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    epilog="Example: [bold]rkserve key add open-webui[/]. A running server takes up changes by itself.",
)
KeysFile = Annotated[
    str | None,
    typer.Option("--file", metavar="FILE", help="The keys file; else RKSERVE_API_KEYS_FILE, else your own."),
]


@app.command("add", epilog="Example: [bold]rkserve key add open-webui[/]")
def add(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Whom or what the key is for.", show_default=False)
    ],
    file: KeysFile = None,
) -> None:
    """Make a key and print it. It cannot be shown again."""
    path, _ = _keys_file(file)
    key, first = make_key(path, name)
    print(key)
    say(f"keep it, it is not shown again; its hash is in {path}")
    if first:
        say(f"this is the first key: a server that uses this file asks for a key from now on{_how(file)}")
    else:
        say(f"a server that uses this file accepts it from now on{_how(file)}")


def make_key(path: Path, name: str) -> tuple[str, bool]:
    """Put a new key into the file; return it, and whether it is the first. Raises CommandError."""
    if not _NAME.fullmatch(name):
        raise CommandError(f'"{name}" is no name for a key: use letters, digits, spaces and . _ @ -')
    key = "rk-" + secrets.token_urlsafe(KEY_BYTES)
    with changing(path) as lines:
        first = not _names(lines)
        if name in _names(lines):
            raise CommandError(f'there is a key "{name}" already; rkserve key revoke "{name}" takes it away')
        lines.append(f"{name}:{hashlib.sha256(key.encode()).hexdigest()}")
    return key, first


def names_in(path: Path) -> list[str]:
    """Return the names of a file's keys. Raises CommandError."""
    return _names(read_lines(path))


@app.command("list", epilog="Examples: [bold]rkserve key list[/], [bold]rkserve key list --json[/]")
def list_keys(
    file: KeysFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of names.")] = False,
) -> None:
    """Print the names of the keys there are."""
    path, _ = _keys_file(file)
    names = _names(read_lines(path))
    if as_json:
        print(json.dumps(names))
        return
    for name in names:
        print(name)
    if not names:
        say(f"no keys in {path}; rkserve key add NAME makes one")


@app.command("revoke", epilog="Example: [bold]rkserve key revoke open-webui[/]")
def revoke(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The key's name.", show_default=False)],
    file: KeysFile = None,
) -> None:
    """Take a key away. A running server stops accepting it at once."""
    path, named = _keys_file(file)
    if name not in _names(read_lines(path)):  # before anything is made or locked
        raise _no_such_key(name, path)
    with changing(path) as lines:
        kept = [line for line in lines if _name(line) != name]
        if len(kept) == len(lines):
            raise _no_such_key(name, path)
        lines[:] = kept
    say(f'"{name}" is revoked; a server that uses this file no longer accepts it')
    if not _names(kept):
        add = "rkserve key add NAME" + ("" if file is None else f" --file {file}")
        say(f"that was the last key: a running server lets nobody in until `{add}` makes one")
        if named:
            say("started again, it lets nobody in either, and refuses to listen beyond this machine")
        else:
            say("started again, it is open to this machine and refuses to listen beyond it")


def _no_such_key(name: str, path: Path) -> CommandError:
    near = difflib.get_close_matches(name, _names(read_lines(path)), n=1)
    hint = f'did you mean "{near[0]}"?' if near else "rkserve key list shows all"
    return CommandError(f'there is no key "{name}" in {path}; {hint}')


def _keys_file(flag: str | None) -> tuple[Path, bool]:
    """Return the keys file, and whether a flag or a setting names it."""
    settings = settings_for({"api_keys_file": flag})
    assert settings.api_keys_file is not None  # it has a default
    return settings.api_keys_file, settings.keys_wanted


def _how(flag: str | None) -> str:
    """Say how a server comes to use a file that was named by a flag here."""
    return "" if flag is None else f" (rkserve serve --api-keys-file {flag})"


def _name(line: str) -> str | None:
    """Return the name in a line of the file, None for a blank line or a comment."""
    line = line.strip()
    return None if not line or line.startswith("#") else line.rpartition(":")[0].strip()


def _names(lines: list[str]) -> list[str]:
    return [name for line in lines if (name := _name(line)) is not None]
