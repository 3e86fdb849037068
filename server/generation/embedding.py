"""Texts to vectors: the same way through queue and worker as an answer goes. Knows no route and no HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.base import EmbedInput, EmbedParams, Span
from backends.protocol import Finished
from server.errors import InvalidRequest, UnsupportedParameter
from server.registry import Entry
from server.scheduling import Dispatcher, Job

MOST_CHARACTERS = 2_000_000
"""Of all inputs together: what a worker counts in tokens is bounded before it gets there."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingRequest:
    """What a client wants to have embedded. inputs: texts, or token ids.

    client, user: as in GenerationRequest. listed: they came as a list, so that errors name an index. query:
    they are questions, before which the entry's instruction is put.
    """

    model: str | None
    inputs: Sequence[str | Sequence[int]]
    client: str
    user: str = ""
    listed: bool = True
    dimensions: int | None = None
    query: bool = False


@dataclass(frozen=True)
class Embeddings:
    """The vectors, little-endian float32, in the inputs' order, and the tokens the inputs had together."""

    vectors: Sequence[bytes]
    prompt_tokens: int


class EmbeddingService:
    """Prepares and runs requests. One for the whole server; holds no state of any client.

    chosen: returns the installed entry of a name, or of none.
    """

    def __init__(self, chosen: Callable[[str | None], Entry], dispatcher: Dispatcher) -> None:
        self._chosen = chosen
        self._dispatcher = dispatcher

    def prepare(self, request: EmbeddingRequest) -> Job:
        """Check a request and make its job. Raises ApiError subclasses."""
        entry = self._chosen(request.model)
        if entry.embeddings is None:
            raise UnsupportedParameter(
                f"{entry.id} makes no embeddings (it can: {', '.join(entry.capabilities)}); choose another "
                "model",
                "model",
            )
        if sum(map(len, request.inputs)) > MOST_CHARACTERS:
            raise InvalidRequest(
                f"the inputs have more than {MOST_CHARACTERS:,} characters together; send fewer at once",
                "input",
            )
        before = entry.embeddings.instruction if request.query else None
        inputs = [
            _input(one, before, f"input.{index}" if request.listed else "input")
            for index, one in enumerate(request.inputs)
        ]
        params = EmbedParams(inputs=inputs, dimensions=request.dimensions)
        return Job(entry=entry, client=request.client, user=request.user, embed=params)

    async def run(self, job: Job) -> Embeddings:
        """Queue a job and run it to its end. Cancelling this cancels the work. Raises ApiError subclasses."""
        async with self._dispatcher.submit(job) as run:
            async for _, event in run:
                if isinstance(event, Finished):
                    return Embeddings(event.vectors, event.usage.prompt_tokens)
        raise AssertionError("a run ended without a Finished")


def _input(given: str | Sequence[int], before: str | None, field: str) -> EmbedInput:
    if not isinstance(given, str):
        return EmbedInput(token_ids=list(given), field=field)
    text = Span(given, False)
    return EmbedInput(prompt=[text] if before is None else [Span(before, True), text], field=field)
