"""A backend that plays back numbered tokens at a given pace instead of computing any.

What the measured servers all relay. The text of a run is `<start>,<first>|00001|00002|...|<last>`: the first
token tells when the run began and when it was handed over, the last when that one was, all others their
number, so that a client can see from the text alone what was lost, doubled or late. Times are nanoseconds of
the monotonic clock, which processes of one machine share.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event

from backends.base import FinishReason, GenerateParams, Span, Usage
from backends.engine import Sink
from backends.spec import ModelInfo

CONTEXT_LENGTH = 1_000_000


@dataclass(frozen=True)
class Script:
    """How to play: `rate` tokens a second (0: as fast as they are taken), after `prefill_ms` of waiting."""

    tokens: int
    rate: float
    prefill_ms: float

    def prompt(self) -> str:
        """Return the user message that asks for this script."""
        return f"replay rate={self.rate:g} prefill_ms={self.prefill_ms:g}"

    @classmethod
    def of(cls, params: GenerateParams) -> Script:
        """Read the script from a request made of `prompt()` and max_tokens."""
        text = "".join(span.text for span in params.prompt)
        words = text[text.index("replay rate=") :].split(maxsplit=3)
        numbers = [float(word.partition("=")[2].split("<")[0]) for word in words[1:3]]
        return cls(tokens=params.max_tokens or 1, rate=numbers[0], prefill_ms=numbers[1])


@dataclass(frozen=True)
class Played:
    """What the text of a run says of the backend's side. Seconds of the monotonic clock.

    fault: how the text differs from what was sent, empty if it does not; then `last` is nan.
    """

    began: float
    first: float
    last: float
    fault: str

    @classmethod
    def of(cls, pieces: Sequence[str], script: Script) -> Played:
        """Read the pieces a client got, one an event. Raises ValueError when not even the first is there."""
        began, comma, first = (pieces[0] if pieces else "").partition(",")
        if not comma:
            raise ValueError(f"an answer begins with {pieces[:1]}, not with the times of its run")
        fault = ""
        for number, piece in enumerate(pieces[1 : script.tokens - 1], start=1):
            if piece != token(number):
                fault = f"token {number} came as {piece!r}"
                break
        if not fault and len(pieces) != script.tokens:
            fault = f"{len(pieces)} events came of {script.tokens} tokens"
        last = math.nan if fault else int(pieces[-1].lstrip("|")) / 1e9
        return cls(int(began) / 1e9, int(first) / 1e9, last, fault)


def token(number: int) -> str:
    """Return the text of a token in the middle: of the length of a short word."""
    return f"|{number % 100_000:05d}"


class ReplayBackend:
    """Plays scripts. Keeps no state between runs."""

    def __init__(self) -> None:
        self.info = ModelInfo(
            runtime="replay 1", context_length=CONTEXT_LENGTH, vocab_size=100_000, memory_mb=1
        )

    def count_tokens(self, prompt: Sequence[Span]) -> int:
        return sum(len(span.text.split()) for span in prompt)

    def generate(self, params: GenerateParams, sink: Sink, cancelled: Event) -> tuple[FinishReason, Usage]:
        clock = time.monotonic_ns
        began = clock()
        script = Script.of(params)
        prompt_tokens = self.count_tokens(params.prompt)
        sink.prefill(0, prompt_tokens)
        time.sleep(script.prefill_ms / 1000)  # it stands for a prefill of this length
        interval = 1e9 / script.rate if script.rate else 0.0
        first = clock()
        reason: FinishReason = "length"
        sent = 0
        for number in range(script.tokens):
            if cancelled.is_set():
                reason = "cancelled"
                break
            # One sleep to the token's own moment; a late one is made up for by hurrying, never by skipping.
            wait = first + number * interval - clock()
            if wait > 0:
                time.sleep(wait / 1e9)  # the pace that is being measured
            if number == 0:
                text = f"{began},{clock()}"
            elif number == script.tokens - 1:
                text = f"|{clock()}"
            else:
                text = token(number)
            sink.delta(text, 1, None)
            sent += 1
        usage = Usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=0,
            completion_tokens=sent,
            prefill_ms=(first - began) / 1e6,
            decode_ms=(clock() - first) / 1e6,
        )
        return reason, usage

    def close(self) -> None:
        pass
