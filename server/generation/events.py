"""What comes out of a generation, after the parsers: the same events for every route.

`protocol.Delta` is text of the answer and passes through as it came; text that turned out to be reasoning
becomes `Reasoning`. Queued, Loading and Prefill tell a waiting client how things stand.
"""

from __future__ import annotations

import msgspec

from backends.protocol import Delta, Finished, Loading, Prefill
from server.scheduling.run import Queued, Status


class Reasoning(msgspec.Struct, frozen=True):
    """A piece of the model's reasoning, and how many tokens it stands for."""

    text: str
    tokens: int


Output = Status | Delta | Reasoning | Finished


def describe(status: Status) -> str:
    """Say in a few words how things stand, for a keep-alive comment. One line of ASCII."""
    match status:
        case Queued(position=position):
            return f"queued {position}"
        case Loading(done=done):
            return f"loading {round(100 * done)} %"
        case Prefill(done=done, total=total):
            return f"prefill {done}/{total}"
