"""A chat completion as a stream of chunks: one event for each piece of text, ready bytes.

Everything of a chunk but its text is the same from one token to the next, so it is encoded once; a token
costs the encoding of one JSON string.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from backends.protocol import Delta, Finished
from server.api.chat.answer import ResponseHead, finish_reason, logprobs_object, usage_object
from server.generation.answer import Counts
from server.generation.events import Reasoning, describe
from server.generation.generation import Answering
from server.http.json_line import json_line
from server.http.sse import DONE


class ChunkWriter:
    """Writes the events of one response. Pure. `usage`: chunks say `usage: null`, and one more tells it."""

    def __init__(self, head: ResponseHead, fingerprint: str | None, *, usage: bool) -> None:
        self._start = b"data: " + json_line(
            {
                "id": head.id,
                "object": "chat.completion.chunk",
                "created": head.created,
                "model": head.model,
                "system_fingerprint": fingerprint,
            }
        ).removesuffix(b"}")
        self._end = b',"usage":null}\n\n' if usage else b"}\n\n"

    def text(self, index: int, field: str = "content") -> tuple[bytes, bytes]:
        """Return what stands before and after the JSON string of a piece of text."""
        before = b'%s,"choices":[{"index":%d,"delta":{"%s":' % (self._start, index, field.encode())
        return before, b'},"logprobs":null,"finish_reason":null}]' + self._end

    def choice(
        self, index: int, delta: dict[str, Any], *, reason: str | None = None, logprobs: Any = None
    ) -> bytes:
        """Return a chunk of one choice."""
        choices = [{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}]
        return self._start + b',"choices":' + json_line(choices) + self._end

    def usage(self, counts: Counts) -> bytes:
        """Return the chunk that tells the usage. It has no choices."""
        return self._start + b',"choices":[],"usage":' + json_line(usage_object(counts)) + b"}\n\n"


class ChatStream:
    """The events of one response, and in a few words what the client is waiting for."""

    def __init__(
        self, generation: Answering, head: ResponseHead, *, logprobs: bool, include_usage: bool
    ) -> None:
        self._generation = generation
        self._head = head
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._state = "ping"

    def state(self) -> str:
        """Return the words for a keep-alive comment."""
        return self._state

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Yield each event. Closing this cancels the run. Raises ApiError subclasses."""
        writer: ChunkWriter | None = None
        around: list[tuple[bytes, bytes] | None] = [None] * self._generation.choices
        counts = Counts()
        async with aclosing(self._generation.events()) as events:
            async for index, event in events:
                if not isinstance(event, Delta | Reasoning | Finished):
                    self._state = describe(event)
                    continue
                if writer is None:
                    fingerprint = self._generation.fingerprint()
                    writer = ChunkWriter(self._head, fingerprint, usage=self._include_usage)
                    self._state = "ping"
                ends = around[index]
                if ends is None:
                    ends = around[index] = writer.text(index)
                    yield writer.choice(index, {"role": "assistant", "content": "", "refusal": None})
                if isinstance(event, Delta):
                    if event.logprobs and self._logprobs:
                        yield writer.choice(
                            index, {"content": event.text}, logprobs=logprobs_object(event.logprobs)
                        )
                    elif event.text:
                        yield b"%s%s%s" % (ends[0], json_line(event.text), ends[1])
                elif isinstance(event, Reasoning):
                    counts.reasoning_tokens += event.tokens
                    if event.text:
                        yield writer.choice(index, {"reasoning_content": event.text})
                else:
                    counts.add(event.usage)
                    yield writer.choice(index, {}, reason=finish_reason(event.reason))
            assert writer is not None, "a run ended without a Finished"
            if self._include_usage:
                yield writer.usage(counts)
            yield DONE
