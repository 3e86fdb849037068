"""How commands talk to people: results on standard output, everything else on standard error."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console

from server.streams import tell

_CONTROL = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


class CommandError(Exception):
    """What went wrong, in lines that also say what to do. Ends the command; exit code 2 for wrong usage."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def results() -> Console:
    """Return a console for what the command was asked for. Not a terminal: as wide as its content."""
    console = Console(highlight=False)
    return console if console.is_terminal else _ForScripts(highlight=False, width=10_000)


class _ForScripts(Console):
    """Prints no blanks at the ends of lines, which a table fills up to its longest cell."""

    def print(self, *objects: Any, **options: Any) -> None:
        with self.capture() as captured:
            super().print(*objects, **options)
        sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def say(message: str, command: str = "rkserve") -> None:
    """Print a line about what is going on, on standard error; never wrapped, so that scripts can read it."""
    tell(sys.stderr, f"{command}: {message}")


def plain(text: str) -> str:
    """Return a text from elsewhere without control characters, which could steer the terminal."""
    return text.translate(_CONTROL)
