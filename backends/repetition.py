"""Noticing an answer that only repeats itself: one token, or a short cycle, far beyond reason.

A model on the wrong runtime, with the wrong template or with damaged weights mostly shows it in this way,
without any error, and holds the NPU up to the limit of the answer. Pure: tokens are whatever can be compared.
"""

from __future__ import annotations

from collections.abc import Hashable

LONGEST_CYCLE = 32
BASE_TOKENS = 256
TOKENS_PER_CYCLE_TOKEN = 16
CHECK_EVERY = 32

_KEPT = BASE_TOKENS + TOKENS_PER_CYCLE_TOKEN * LONGEST_CYCLE


class RepetitionGuard:
    """Takes an answer's tokens. Not thread-safe; made anew for each answer.

    A cycle of c tokens, 32 at most, counts once it fills the last 256 + 16 c tokens: the same token 272
    times, or a line of 20 tokens 28 times. So dashed lines, tables, refrains and matrices of zeros pass.
    It is looked for every 32 tokens, since looking costs more than a token's other handling.
    """

    def __init__(self) -> None:
        self._tokens: list[Hashable] = []
        self._count = 0

    def push(self, token: Hashable) -> bool:
        """Take a token; return whether the answer only repeats itself."""
        self._tokens.append(token)
        self._count += 1
        return self._count % CHECK_EVERY == 0 and self._repeats()

    def _repeats(self) -> bool:
        tokens = self._tokens
        del tokens[:-_KEPT]
        for cycle in range(1, LONGEST_CYCLE + 1):
            span = BASE_TOKENS + TOKENS_PER_CYCLE_TOKEN * cycle
            if len(tokens) < span:
                return False
            if tokens[-1] == tokens[-1 - cycle] and tokens[-span:-cycle] == tokens[cycle - span :]:
                return True
        return False


def warning(model_id: str) -> str:
    """Return what the owner of a model should know when the guard has ended an answer."""
    return (
        f"An answer of {model_id} only repeated itself and was ended. If that happens again, check in this "
        "order: the version of the runtime (is it the one the model was converted for?), the chat template "
        "(is it the model's own?), the sha256 of its files (right size, wrong bytes?). "
        "RKSERVE_REPEAT_GUARD=off lets such answers run to their limit."
    )
