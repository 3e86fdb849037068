"""What a client chose over what the entry says: the parameters of each answer. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from backends.base import Adapter, GenerateParams, Image, Sampling, Span
from server.generation.request import GenerationRequest, SamplingChoice
from server.registry import Entry

SEEDS = 2**63
MOST_TOKENS = 2**31 - 1


def choice_params(
    request: GenerationRequest,
    entry: Entry,
    prompt: list[Span],
    images: Sequence[Image] = (),
    adapter: Adapter | None = None,
) -> tuple[GenerateParams, ...]:
    """Return each answer's parameters: the entry's defaults, what the client chose, a seed of its own.

    images: those of the conversation; the ones that stand in the prompt go along. adapter: what the entry is,
    if it is one; then its limit and stops go along, since the worker has its base's.
    """
    prompt, shown = placed_images(prompt, images)
    seed = request.sampling.seed
    max_tokens = request.max_tokens
    stop = list(request.stop)
    if adapter is not None:
        max_tokens = max_tokens or entry.max_tokens
        stop += entry.stop
    return tuple(
        GenerateParams(
            prompt=prompt,
            sampling=merged_sampling(
                entry, request.sampling, None if seed is None else (seed + index) % SEEDS
            ),
            max_tokens=None if max_tokens is None else min(max_tokens, MOST_TOKENS),
            stop=stop,
            logprobs=request.logprobs,
            owner=request.owner,
            adapter=adapter,
            images=shown,
        )
        for index in range(request.n)
    )


def placed_images(prompt: list[Span], images: Sequence[Image]) -> tuple[list[Span], list[Image]]:
    """Return a prompt with its images numbered in their order, and these.

    A template may leave messages out or turn them around. A place that no image belongs to, which a template
    can spell, is dropped.
    """
    spans: list[Span] = []
    shown: list[Image] = []
    for span in prompt:
        if span.image is None:
            spans.append(span)
        elif span.image < len(images):
            spans.append(Span("", True, len(shown)))
            shown.append(images[span.image])
    return spans, shown


def merged_sampling(entry: Entry, chosen: SamplingChoice, seed: int | None) -> Sampling:
    """Return the entry's sampling overlaid by what the client chose."""
    defaults = entry.sampling

    def pick(name: str) -> float:
        value = getattr(chosen, name)
        return float(getattr(defaults, name) if value is None else value)

    return Sampling(
        temperature=pick("temperature"),
        top_p=pick("top_p"),
        top_k=int(pick("top_k")),
        min_p=pick("min_p"),
        repeat_penalty=pick("repeat_penalty"),
        presence_penalty=pick("presence_penalty"),
        frequency_penalty=pick("frequency_penalty"),
        seed=seed,
        logit_bias=dict(chosen.logit_bias),
    )
