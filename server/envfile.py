"""Reading an environment file as systemd's EnvironmentFile= does. Knows nothing of what the variables mean.

After systemd.exec(5): KEY=value lines; blank lines and lines beginning with # or ; are ignored; a backslash
at the end of a line goes on in the next; values may stand in single or double quotes; nothing is expanded.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

_ASSIGNMENT = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


class EnvFileError(Exception):
    """A line that is no assignment."""


def read_env_file(path: Path) -> dict[str, tuple[str, int]]:
    """Return the variables of a file, each with its value and line; the last of several assignments counts.

    Empty for a file that does not exist or that this user may not read. Raises EnvFileError.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return {}
    except UnicodeDecodeError as error:
        raise EnvFileError(f"{path}: not UTF-8 text (byte {error.start})") from error
    variables: dict[str, tuple[str, int]] = {}
    for number, line in _logical_lines(text):
        match = _ASSIGNMENT.fullmatch(line)
        if match is None:
            raise EnvFileError(f"{path}:{number}: must be KEY=value, not {line.strip()!r}")
        variables[match[1]] = (_unquote(match[2].strip(), path, number), number)
    return variables


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    start, pending = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if not pending and (not line.strip() or line.lstrip()[0] in "#;"):
            continue
        start = start if pending else number
        if line.endswith("\\"):
            pending += line[:-1]
            continue
        yield start, pending + line
        pending = ""
    if pending:
        yield start, pending


def _unquote(value: str, path: Path, number: int) -> str:
    if not any(mark in value for mark in "\"'\\"):
        return value
    lexer = shlex.shlex(value, posix=True)
    lexer.whitespace = ""
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return "".join(lexer)
    except ValueError as error:
        raise EnvFileError(f"{path}:{number}: {str(error).lower()}") from error
