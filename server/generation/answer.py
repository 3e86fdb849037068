"""Whole answers, for requests that do not stream, and the token counts of any request."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass, field

from backends.base import FinishReason, TokenLogprob, Usage
from backends.protocol import Delta, Finished
from server.generation.events import Reasoning
from server.generation.generation import Answering


@dataclass
class Counts:
    """Tokens of one request: the prompt once, however many answers it had; the answers together."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    _answers: int = 0

    def add(self, usage: Usage) -> None:
        """Count one finished answer. Later answers find the prompt in the cache: the first one tells."""
        if self._answers == 0:
            self.prompt_tokens = usage.prompt_tokens
            self.cached_tokens = usage.cached_tokens
        self._answers += 1
        self.completion_tokens += usage.completion_tokens


@dataclass
class Answer:
    """One finished answer. logprobs are those of the text, not of the reasoning."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: FinishReason = "stop"


async def collect(generation: Answering) -> tuple[list[Answer], Counts]:
    """Run a generation to its end. Cancelling this cancels the run. Raises ApiError subclasses."""
    answers = [Answer() for _ in range(generation.choices)]
    counts = Counts()
    async with aclosing(generation.events()) as events:
        async for index, event in events:
            answer = answers[index]
            match event:
                case Delta():
                    answer.text.append(event.text)
                    if event.logprobs:
                        answer.logprobs += event.logprobs
                case Reasoning():
                    answer.reasoning.append(event.text)
                    counts.reasoning_tokens += event.tokens
                case Finished():
                    answer.reason = event.reason
                    counts.add(event.usage)
    return answers, counts
