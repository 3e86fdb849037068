"""Tells reasoning from answer while text arrives. Pure: strings in, strings out; one splitter an answer.

Reasoning stands between two marks at the very beginning of an answer, or begins in the prompt already, where
a template opens it. Marks later in the answer are text like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto


class _State(Enum):
    BEFORE = auto()  # nothing but white space so far: the opening mark may come
    REASONING = auto()
    AFTER = auto()  # between the closing mark and the answer: white space is dropped
    ANSWER = auto()


class ThinkingSplitter:
    """Splits the text of one answer. `begun`: as much of the opening mark as the prompt ends with, or the
    closing mark where the prompt ends with an empty thought.

    Text that may be part of a mark, and white space that is dropped if a mark follows, is held back and
    released as soon as it proves to be text.
    """

    def __init__(self, open_mark: str, close_mark: str, *, begun: str = "") -> None:
        self._open = open_mark
        self._close = close_mark
        states = {open_mark: _State.REASONING, close_mark: _State.AFTER}
        self._state = states.get(begun, _State.BEFORE)
        self._held = begun if self._state is _State.BEFORE else ""
        self._foreign = len(self._held)  # how much of the held text is the prompt's
        self._reasoned = False

    @property
    def reasoning(self) -> bool:
        """Whether text that comes now belongs to the reasoning."""
        return self._state is _State.REASONING

    def push(self, text: str) -> Iterator[tuple[bool, str]]:
        """Yield (is reasoning, text) pieces that are certain now, never empty."""
        self._held += text
        while self._held:
            state = self._state
            if state is _State.ANSWER:
                yield False, self._take(len(self._held))
            elif state is _State.AFTER:
                self._held = self._held.lstrip()
                if self._held:
                    self._state = _State.ANSWER
            elif state is _State.BEFORE:
                begun = self._held.lstrip()
                if begun.startswith(self._open):
                    self._held = begun[len(self._open) :]
                    self._state = _State.REASONING
                elif self._open.startswith(begun):
                    return
                else:
                    self._held = self._held[self._foreign :]
                    self._state = _State.ANSWER
            else:
                if not self._reasoned:
                    self._held = self._held.lstrip()
                at = self._held.find(self._close)
                certain = len(self._held[:at].rstrip()) if at >= 0 else self._certain()
                if certain:
                    self._reasoned = True
                    yield True, self._take(certain)
                if at < 0:
                    return
                self._held = self._held.lstrip()[len(self._close) :]
                self._state = _State.AFTER

    def flush(self) -> Iterator[tuple[bool, str]]:
        """Yield what was held back when the answer ends."""
        held, self._held = self._held, ""
        if self._state is _State.BEFORE:
            held = held[self._foreign :]
        elif self._state is _State.REASONING:
            held = held.rstrip()
        if held:
            yield self._state is _State.REASONING, held

    def _take(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken

    def _certain(self) -> int:
        """Return how much held text is neither white space at its end nor the start of the closing mark."""
        held, close = self._held, self._close
        end = len(held)
        for length in range(min(len(close) - 1, end), 0, -1):
            if held.endswith(close[:length]):
                end -= length
                break
        return len(held[:end].rstrip())


def begun_mark(tail: str, mark: str, close_mark: str) -> str:
    """Return how much of an opening mark a prompt ends with: nothing, a part, or all (white space aside).

    Or the closing mark, where it ends with that.
    """
    for whole in (mark, close_mark):
        if tail.rstrip().endswith(whole):
            return whole
    parts = (mark[:length] for length in range(len(mark) - 1, 0, -1))
    return next((part for part in parts if tail.endswith(part)), "")
