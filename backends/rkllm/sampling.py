"""Our sampling values as the library's. Pure.

Every field is set for every run: the library's defaults change between versions and include a repeat penalty.
There is no seed, min_p or logit_bias in the API.
"""

from __future__ import annotations

from backends.base import Sampling
from backends.rkllm.structs import RKLLMSamplingParam

WIDEST_TOP_K = 1024
GREEDY_BELOW = 1e-3
"""A temperature below this is greedy: dividing float32 logits by it would overflow."""


def sampling_param(sampling: Sampling, vocab_size: int | None) -> RKLLMSamplingParam:
    """Return the struct for a run. vocab_size None: not known.

    Greedy is top_k 1: what the library does at temperature 0 is not documented, so it gets 1.
    What it does at top_k 0 is not documented either, and sorting a whole vocabulary of 130,000 costs about
    10 ms a token on the board: "all" is the best 1,024, beyond which a trained model has no share that could
    be noticed. A top_k a client asks for is passed on, up to the vocabulary.
    """
    greedy = sampling.temperature < GREEDY_BELOW or sampling.top_p <= 0
    if greedy:
        top_k = 1
    elif sampling.top_k <= 0:
        top_k = WIDEST_TOP_K
    else:
        top_k = sampling.top_k
    return RKLLMSamplingParam(
        top_k=min(top_k, vocab_size or 16 * WIDEST_TOP_K),
        top_p=1.0 if greedy else sampling.top_p,
        temperature=1.0 if greedy else sampling.temperature,
        repeat_penalty=sampling.repeat_penalty,
        frequency_penalty=sampling.frequency_penalty,
        presence_penalty=sampling.presence_penalty,
        mirostat=0,
        mirostat_tau=5.0,
        mirostat_eta=0.1,
    )
