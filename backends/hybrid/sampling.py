"""Choosing the next token: pure functions of logits, settings, what was said before, and a random generator.

The order, each step on what the one before it left:

1. repeat_penalty divides positive logits and multiplies negative ones of every token of prompt and answer
   (Keskar et al., CTRL, arXiv 1909.05858; over the whole sequence, as Hugging Face does, because the values
   in model cards are meant so; llama.cpp looks at the last 64 tokens only).
2. presence_penalty, once, and frequency_penalty, once per occurrence, are subtracted for tokens of the answer
   (the formula in OpenAI's API reference).
3. logit_bias is added, after the penalties, so that -100 bans and +100 forces whatever they did.
4. temperature 0 takes the highest logit; any other divides.
5. top_k, top_p and min_p cut the distribution that temperature made, in this order (as Hugging Face and vLLM
   do; llama.cpp applies temperature last).
6. One uniform number chooses by the inverse of the cumulated probabilities, in the order of the ids. Not in
   that of likelihood: logits of the same text differ by 2e-5 when part of it comes from a cache (products of
   other sizes add up in another order), which swaps near-equal tokens, and the same seed would go on
   differently. In the order of the ids such noise moves the sums by as little as itself.

Nothing here changes its arguments. Axis: V vocabulary.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from backends.base import Sampling
from backends.hybrid.kernels import NUMPY, Kernels

Array = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

_FIRST_CANDIDATES = 256


class History:
    """Which tokens a run has seen: those of its prompt, and how often each is in its answer."""

    def __init__(self, prompt: npt.NDArray[np.integer]) -> None:
        self._prompt = np.unique(prompt)
        self._counts: dict[int, int] = {}

    def add(self, token_id: int) -> None:
        """Count a token of the answer."""
        self._counts[token_id] = self._counts.get(token_id, 0) + 1

    def all_ids(self) -> Ids:
        """Return each token of prompt and answer once."""
        return np.union1d(self._prompt, np.fromiter(self._counts, np.int64, len(self._counts)))

    def answer_counts(self) -> tuple[Ids, Array]:
        """Return each token of the answer and how often it is there."""
        ids = np.fromiter(self._counts.keys(), np.int64, len(self._counts))
        return ids, np.fromiter(self._counts.values(), np.float32, len(self._counts))


def generator(seed: int | None) -> np.random.Generator:
    """Return the random generator of a run; equal seeds, of any size and sign, give equal numbers."""
    return np.random.Generator(np.random.PCG64(None if seed is None else seed % 2**64))


def choose(
    logits: Array, sampling: Sampling, history: History, rng: np.random.Generator, kernels: Kernels = NUMPY
) -> int:
    """Return the id of the next token. logits: (V,), as the model gave them. Draws once, or not if greedy."""
    logits = adjust(logits, sampling, history)
    if sampling.temperature <= 0:
        return int(logits.argmax())
    ids, probabilities = distribution(logits, sampling, kernels)
    sums = np.cumsum(probabilities)
    at = int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))
    return int(ids[min(at, len(ids) - 1)])


def adjust(logits: Array, sampling: Sampling, history: History) -> Array:
    """Return the logits after the penalties and the bias, a copy unless nothing is changed."""
    repeats = sampling.repeat_penalty != 1
    counts = sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
    if not (repeats or counts or sampling.logit_bias):
        return logits
    logits = logits.copy()
    if repeats:
        ids = history.all_ids()
        seen = logits[ids]
        penalty = np.float32(sampling.repeat_penalty)
        logits[ids] = np.where(seen > 0, seen / penalty, seen * penalty)
    if counts:
        ids, times = history.answer_counts()
        logits[ids] -= np.float32(sampling.presence_penalty) + np.float32(sampling.frequency_penalty) * times
    for token_id, bias in sampling.logit_bias.items():
        logits[token_id] += np.float32(bias)
    return logits


def distribution(
    logits: Array, sampling: Sampling, kernels: Kernels = NUMPY
) -> tuple[Ids, npt.NDArray[np.float64]]:
    """Return the tokens that may be chosen and their probabilities, which sum to 1 or less.

    In the order of their ids. Each cut keeps a beginning of the order of likelihood, the lower id first among
    equals, so the strictest of them decides. Temperature must be above 0.
    """
    if 0 < sampling.top_k < len(logits):
        ids = kernels.largest(logits, sampling.top_k)
        weights = kernels.weights(logits[ids], sampling.temperature)
        kept = _nucleus(weights, sampling.top_p)
        ids = ids[: len(kept)]
    else:
        weights = kernels.weights(logits, sampling.temperature)
        ids = (
            np.arange(len(weights)) if sampling.top_p >= 1 else _most_likely(weights, sampling.top_p, kernels)
        )
        kept = weights[ids]
    total = weights.sum()
    if sampling.min_p > 0:
        likely = np.flatnonzero(kept >= sampling.min_p)
        ids, kept = ids[likely], kept[likely]
    if len(ids) < len(logits):
        by_id = np.argsort(ids)
        ids, kept = ids[by_id], kept[by_id]
    return ids, kept / total


def _nucleus(
    weights: npt.NDArray[np.float64], top_p: float, total: float | None = None
) -> npt.NDArray[np.float64]:
    """Return the fewest of falling weights, at least one, that have `top_p` of the total."""
    if top_p >= 1:
        return weights
    sums = np.cumsum(weights)
    wanted = top_p * (sums[-1] if total is None else total)
    return weights[: int(np.searchsorted(sums, wanted, side="left")) + 1]


def _most_likely(weights: npt.NDArray[np.float64], top_p: float, kernels: Kernels) -> Ids:
    """Return the nucleus of the whole vocabulary, without sorting more of it than that needs."""
    total = float(weights.sum())
    count = _FIRST_CANDIDATES
    while True:
        ids = kernels.largest(weights, min(count, len(weights)))
        if count >= len(weights) or weights[ids].sum() >= top_p * total:
            return ids[: len(_nucleus(weights[ids], top_p, total))]
        count *= 8


def top_logprobs(
    logits: Array, token_id: int, count: int, kernels: Kernels = NUMPY
) -> tuple[float, list[tuple[int, float]]]:
    """Return the log probability of a token, and the `count` most likely tokens with theirs, best first.

    They are of the model's own distribution: the log-softmax of its logits before any setting.
    """
    exact = logits.astype(np.float64)
    largest = exact.max()
    total = largest + np.log(np.exp(exact - largest).sum())
    best = kernels.largest(logits, min(count, len(logits)))
    return float(exact[token_id] - total), [(int(i), float(exact[i] - total)) for i in best]
