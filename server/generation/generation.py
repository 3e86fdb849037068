"""One request on its way through queue and worker, its text told apart into reasoning and answer."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from backends.base import GenerateParams
from backends.protocol import Delta, Finished
from server.errors import ContextLengthExceeded
from server.generation.events import Output, Reasoning
from server.generation.thinking import ThinkingSplitter
from server.registry import Entry
from server.scheduling import Dispatcher, Job


class Answering(Protocol):
    """A request on its way, as routes see it."""

    entry: Entry
    choices: int
    dropped: tuple[str, ...]
    by_side_model: bool

    def events(self) -> AsyncGenerator[tuple[int, Output], None]:
        """Run it: yield (choice index, event) to the last Finished. Close the iterator to cancel the work."""

    def fingerprint(self) -> str | None:
        """Return backend and runtime version once the model is loaded, for system_fingerprint."""


class Generation:
    """One request, ready for the queue. `dropped` names what was left out of it, for a header.

    `shorten` makes a shorter job of one whose prompt turned out too long, or None where it must be an error.
    `by_side_model`: the entry is not the one that was asked for, but its side model.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        job: Job,
        *,
        reasoning_begun: str,
        dropped: Sequence[str] = (),
        shorten: Callable[[], Awaitable[Job | None]] | None = None,
        by_side_model: bool = False,
    ) -> None:
        self.entry = job.entry
        self.choices = len(job.params)
        self.dropped = tuple(dropped)
        self.by_side_model = by_side_model
        self._dispatcher = dispatcher
        self.job = job
        self._reasoning_begun = reasoning_begun
        self._shorten = shorten

    def of(self, params: tuple[GenerateParams, ...]) -> Generation:
        """Return one for the same model that makes other answers. Nothing shortens it."""
        job = dataclasses.replace(self.job, params=params)
        return Generation(self._dispatcher, job, reasoning_begun=self._reasoning_begun, dropped=self.dropped)

    async def events(self) -> AsyncGenerator[tuple[int, Output], None]:
        """Queue the job, run it, yield (choice index, event) to the last Finished.

        Close the iterator (contextlib.aclosing) to cancel the work wherever it is. Raises ApiErrors.
        """
        try:
            async with aclosing(self._run(self.job)) as events:
                async for event in events:
                    yield event
            return
        except ContextLengthExceeded:  # always before the first text
            shorter = None if self._shorten is None else await self._shorten()
            if shorter is None:
                raise
        async with aclosing(self._run(shorter)) as events:
            async for event in events:
                yield event

    async def _run(self, job: Job) -> AsyncGenerator[tuple[int, Output], None]:
        thinking = self.entry.thinking
        async with self._dispatcher.submit(job) as run:
            if thinking is None:
                async for arrived in run:
                    yield arrived
                return
            splitters = [
                ThinkingSplitter(thinking.open, thinking.close, begun=self._reasoning_begun)
                for _ in range(self.choices)
            ]
            async for index, event in run:
                if isinstance(event, Delta):
                    for output in split_delta(splitters[index], event):
                        yield index, output
                else:
                    if isinstance(event, Finished):
                        for reasoning, text in splitters[index].flush():
                            yield index, Reasoning(text, 0) if reasoning else Delta(event.request_id, text, 0)
                    yield index, event

    def fingerprint(self) -> str | None:
        """Return backend and runtime version once the model is loaded, for system_fingerprint."""
        info = self._dispatcher.status_of(self.entry).info
        return None if info is None else f"{self.entry.backend}-{info.runtime}".replace(" ", "-")


def split_delta(splitter: ThinkingSplitter, delta: Delta) -> Sequence[Output]:
    """Return the outputs of one delta, at least one. Its tokens and logprobs go with the last of them."""
    was_reasoning = splitter.reasoning
    pieces = list(splitter.push(delta.text))
    if not pieces:
        # A mark, white space beside one, or held back: no text, but the tokens count.
        pieces = [(was_reasoning or splitter.reasoning, "")]
    *before, (reasoning, text) = pieces
    outputs: list[Output] = [
        Reasoning(piece, 0) if is_reasoning else Delta(delta.request_id, piece, 0)
        for is_reasoning, piece in before
    ]
    if reasoning:
        outputs.append(Reasoning(text, delta.tokens))
    else:
        outputs.append(Delta(delta.request_id, text, delta.tokens, delta.logprobs))
    return outputs
