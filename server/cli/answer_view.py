"""Shows an answer while it comes, without control characters: a model must not steer the terminal."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from rich.console import Console

from server.cli.console import plain
from server.cli.conversation import Piece

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class AnswerView:
    """One answer on standard output; a spinner on a terminal until its first text. Reasoning is dim there.

    Where standard output is no terminal, reasoning is left out: what is piped on is the answer.
    """

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._waiting = ExitStack()
        self._thinking = False
        self._at_line_start = True

    def __enter__(self) -> Self:
        if self._terminal and sys.stderr.isatty():
            self._waiting.enter_context(Console(stderr=True).status("waiting for the model"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiting.close()
        self._switch(thinking=False)
        if not self._at_line_start:
            self._write("\n")

    def show(self, piece: Piece) -> None:
        """Print a piece at once."""
        if piece.thinking and not self._terminal:
            return
        self._waiting.close()
        if self._thinking and not piece.thinking and not self._at_line_start:
            self._write("\n")
        self._switch(piece.thinking)
        self._write(plain(piece.text))

    def note(self, text: str) -> None:
        """Print a remark behind what was shown so far."""
        self._waiting.close()
        self._switch(thinking=False)
        self._write(f" [{text}]")

    def _switch(self, thinking: bool) -> None:
        if self._terminal and thinking != self._thinking:
            sys.stdout.write(_DIM if thinking else _PLAIN)
        self._thinking = thinking

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            sys.stdout.flush()
            self._at_line_start = text.endswith("\n")
