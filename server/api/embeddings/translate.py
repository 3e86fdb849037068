"""An embeddings request to the neutral request. Pure; knows no model."""

from __future__ import annotations

from collections.abc import Sequence

from server.api.embeddings.schema import MOST_INPUTS, EmbeddingsRequest
from server.errors import InvalidRequest
from server.generation.embedding import EmbeddingRequest


def translate(body: EmbeddingsRequest, client: str) -> EmbeddingRequest:
    """Return what a request asks for. Raises InvalidRequest."""
    inputs, listed = _inputs(body)
    return EmbeddingRequest(
        model=body.model,
        inputs=inputs,
        client=client,
        user=body.user or "",
        listed=listed,
        dimensions=body.dimensions,
        query=body.input_type in ("query", "search_query"),
    )


def _inputs(body: EmbeddingsRequest) -> tuple[Sequence[str | list[int]], bool]:
    """Return the inputs, and whether each is an element of the list; a list of numbers is one input."""
    given = body.input
    if isinstance(given, str):
        return [given], False
    ids = [one for one in given if isinstance(one, int)]
    if len(ids) == len(given):
        return [ids], False
    inputs = [one for one in given if not isinstance(one, int)]
    if ids or len({type(one) for one in inputs}) > 1:
        raise InvalidRequest(
            "input mixes texts and token ids; send strings only, or lists of token ids only", "input"
        )
    if len(inputs) > MOST_INPUTS:
        raise InvalidRequest(
            f"input has {len(inputs)} entries, and a request may have {MOST_INPUTS}; send fewer at once",
            "input",
        )
    return inputs, True
