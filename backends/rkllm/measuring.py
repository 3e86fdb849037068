"""How many tokens a prompt has that only the runtime can count, as its KV cache shows after a run.

Mostly that is the run for the answer. Where the answer's limit depends on it, a run for one token goes before
it: the runtime uses what that has computed again, so that the answer's own run begins almost at once.
"""

from __future__ import annotations

from backends.base import Adapter
from backends.engine import Cancellation
from backends.rkllm.parameters import Prompt, neutral_sampling
from backends.rkllm.run import Ended, OnToken, Outcome
from backends.rkllm.session import Session


class PromptMeter:
    """Measures one model's prompts. Call from the engine's thread.

    last_token_cached: see RkllmOptions. possible: whether anything came of it so far; a model without a KV
    cache (RWKV) may show nothing, and has no context that could shift.
    """

    def __init__(self, session: Session, *, last_token_cached: bool) -> None:
        self._session = session
        self._last_token_cached = last_token_cached
        self.possible = True

    def after(self, outcome: Outcome, limit: int) -> int | None:
        """Return the tokens of the prompt of a run that has just ended, to within one; None if not shown.

        limit: of tokens to make, which the run was given. The last token made is chosen but not in the cache,
        unless the entry says so: where the library's own EOS ended the run, that was none of those it has
        shown. A run that was cut short before its first token shows nothing: of its prompt only a part may be
        there.
        """
        if outcome.cut_in_prefill:
            return None
        size = (self._session.kv_cache_size() if outcome.kv_tokens is None else outcome.kv_tokens) or 0
        ended_by_eos = outcome.ended is Ended.ITSELF and outcome.tokens < limit
        whole = ended_by_eos or self._last_token_cached
        answer = outcome.tokens if whole else max(0, outcome.tokens - 1)
        return max(size - answer, outcome.prefilled or 0) if size > answer else None

    def measure(
        self, prompt: Prompt, cancelled: Cancellation, adapter: Adapter | None, owner: str
    ) -> tuple[Outcome, int | None]:
        """Run a prompt for a token that nobody sees; return the outcome and the prompt's tokens, if shown.

        Raises as Session.run does, also BackendError(context_length_exceeded) for a prompt that is too long.
        """
        # Where the cache's size is not told, all of a prompt is prefilled on an empty one, and that is told.
        untold = self._session.kv_cache_size() is None
        emptied = untold and self._session.clear_kv_cache()
        outcome = self._session.run(prompt, neutral_sampling(), 1, _one_token(), cancelled, adapter, owner)
        tokens = self.after(outcome, 1)
        if tokens is None and outcome.ended is not Ended.CANCELLED:
            tokens = outcome.prefilled if emptied else None
            self.possible = tokens is not None
        return outcome, tokens


def _one_token() -> OnToken:
    """Return what ends a run that does not end after its first token, its limit."""
    made = 0

    def take(token_id: int, data: bytes) -> Ended | None:
        nonlocal made
        made += 1
        return Ended.STOP if made > 1 else None

    return take
