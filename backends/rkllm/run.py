"""One run of the library as its callbacks and the session see it: tokens in, why it ends, what it came to.

Knows no handle. The callbacks come from one thread at a time, `cancel` from any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from backends.engine import Cancellation
from backends.rkllm.enums import LLMCallState


class Ended(Enum):
    """Why a run ended."""

    ITSELF = "itself"  # the library's own EOS, or the limit it was given
    EOS = "eos"
    STOP = "stop"
    REPEATS = "repeats"
    CANCELLED = "cancelled"


OnToken = Callable[[int, bytes], Ended | None]
"""Takes a token's id and text, which may be none or part of a character; returns why to end, if so."""


@dataclass(frozen=True)
class Perf:
    """The library's own figures of a run. prefill_tokens: those really prefilled, cached ones excepted."""

    prefill_tokens: int
    generate_tokens: int


@dataclass(frozen=True)
class Outcome:
    """A run that has ended. tokens: those made, also any made while it was being ended. Times in seconds.

    perf is None where the library gave none, as may be after an abort. kv_tokens: what the KV cache held,
    where it was emptied after the run. foreign: it held another client's prompt before and could not be
    emptied, so that what was used again is not for this client to know.
    """

    ended: Ended
    tokens: int
    perf: Perf | None
    prefill_s: float
    decode_s: float
    kv_tokens: int | None = None
    foreign: bool = False

    @property
    def prefilled(self) -> int | None:
        """How many tokens of the prompt were computed, None where the library did not say."""
        return None if self.perf is None or self.perf.prefill_tokens <= 0 else self.perf.prefill_tokens

    @property
    def cut_in_prefill(self) -> bool:
        """Whether it was ended before its first token."""
        return self.ended is not Ended.ITSELF and not self.tokens

    def behind(self, measuring: Outcome) -> Outcome:
        """Return what this run comes to for a client, another one having measured its prompt before it.

        Prefilled is what either had to: mostly the first, and the second where it could not use that again.
        """
        perf = self.perf
        if perf is not None:
            told = self.prefilled is not None and measuring.prefilled is not None
            prefilled = max(self.prefilled or 0, measuring.prefilled or 0) if told else 0
            perf = Perf(prefilled, perf.generate_tokens)
        return replace(
            self,
            perf=perf,
            prefill_s=measuring.prefill_s + measuring.decode_s + self.prefill_s,
            foreign=measuring.foreign or self.foreign,
        )


class Run:
    """What a run and its callbacks share."""

    def __init__(self, on_token: OnToken, cancelled: Cancellation) -> None:
        self._on_token = on_token
        self._cancelled = cancelled
        self._began = time.perf_counter()
        self._first: float | None = None
        self._end = self._began
        self._tokens = 0
        self._perf: Perf | None = None
        self._decided = threading.Lock()
        self.ended = Ended.ITSELF
        self.asked = threading.Event()  # to end early, or no more to be waited for
        self.again = threading.Event()  # to abort once more, or no more
        self.returned = threading.Event()  # by the library
        self.error = False
        self.aborted = False
        self.failure: BaseException | None = None

    def take(self, result: Any, state: int) -> None:
        """Take one callback. Never raises; what `on_token` raises is kept."""
        try:
            self._take(result, state)
        except BaseException as error:
            self.failure = error
            self._ask(Ended.STOP)

    def cancel(self) -> None:
        """End the run because nobody wants it any more."""
        self._ask(Ended.CANCELLED)

    def end(self) -> None:
        """Note that the library has returned."""
        self._end = time.perf_counter()
        self.returned.set()
        self.again.set()
        self.asked.set()

    def outcome(self) -> Outcome:
        """Return what the run came to."""
        first = self._end if self._first is None else self._first
        return Outcome(self.ended, self._tokens, self._perf, first - self._began, self._end - first)

    def _take(self, result: Any, state: int) -> None:
        if state == LLMCallState.ERROR:
            self.error = True
        elif not result:
            return  # NULL
        elif state == LLMCallState.FINISH:
            perf = result.contents.perf
            self._perf = Perf(perf.prefill_tokens, perf.generate_tokens)
        else:
            self._take_token(result.contents)

    def _take_token(self, result: Any) -> None:
        self._tokens += 1
        if self._first is None:
            self._first = time.perf_counter()
            if self.asked.is_set():
                self.again.set()  # it was asked to end before it had begun, and has not heard of it
        if self.asked.is_set():
            return  # the library has not noticed yet
        if self._cancelled.is_set():
            self._ask(Ended.CANCELLED)
        elif (why := self._on_token(result.token_id, result.text or b"")) is not None:
            self._ask(why)

    def _ask(self, why: Ended) -> None:
        with self._decided:
            if not self.asked.is_set():
                self.ended = why
                self.asked.set()


class StatesRun(Run):
    """A run that makes states instead of tokens, each result of it for `take_result`."""

    def __init__(self, take_result: Callable[[Any], None], cancelled: Cancellation) -> None:
        super().__init__(no_token, cancelled)
        self._take_result = take_result

    def _take_token(self, result: Any) -> None:
        if self.asked.is_set():
            self.again.set()
        else:
            self._take_result(result)


def no_token(token_id: int, text: bytes) -> None:
    """Take a token of a run whose tokens do not matter."""
    return None
