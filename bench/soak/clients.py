"""One client of many: asks, reads, leaves, is refused, sends nonsense; and looks hard at what it gets."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from bench.soak.checks import LOST, Tally, Wrong, check_error, check_id, check_text
from bench.soak.http import Broken, Exchange, Head, Manner
from bench.soak.models import (
    CPU_MODEL,
    KEYS,
    LONG,
    MAX_BODY_MB,
    NPU_MODELS,
    QUESTIONS,
    answer,
    key,
    question,
)

CHAT = "/v1/chat/completions"
ANSWER_S = 180.0  # in which every request must have some end
# Of ten thousand requests each, roughly.
_WEIGHTS = {
    "stream": 4600,
    "whole": 1600,
    "leave": 2200,
    "stall": 100,
    "unknown": 400,
    "nonsense": 400,
    "large": 100,
    "no_key": 400,
    "models": 200,
}
_SELDOM = 0.01
_MANNERS: tuple[Manner, ...] = ("plain", "slow", "half")


@dataclass(frozen=True)
class Asked:
    """A question, and the text that answers it."""

    model: str
    text: str
    expected: str
    max_tokens: int | None = None

    def body(self, *, stream: bool) -> bytes:
        """Return the request."""
        asked: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": self.text}],
            "temperature": 0,
            "stream": stream,
        }
        if self.max_tokens is not None:
            asked["max_tokens"] = self.max_tokens
        return json.dumps(asked).encode()


class Client:
    """One of many. known: answers of the hybrid model to prompts, which cannot be known without asking it."""

    def __init__(self, number: int, port: int, tally: Tally, known: Mapping[str, str], seed: int) -> None:
        self._number = number
        self._port = port
        self._tally = tally
        self._known = known
        self._random = Random(seed * 10_007 + number)
        self._requests = 0

    async def live(self, until: float) -> None:
        """Go on until that time of the monotonic clock. Raises Wrong at the first thing that is."""
        doings: Mapping[str, Callable[[], Awaitable[str]]] = {
            "stream": self._stream,
            "whole": self._whole,
            "leave": self._leave,
            "stall": self._stall,
            "unknown": self._unknown,
            "nonsense": self._nonsense,
            "large": self._large,
            "no_key": self._no_key,
            "models": self._models,
        }
        while time.monotonic() < until:
            (doing,) = self._random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
            try:
                async with asyncio.timeout(ANSWER_S):
                    outcome = await doings[doing]()
            except TimeoutError:
                raise Wrong(f"{doing}: no end within {ANSWER_S:g} s") from None
            except (Broken, OSError, ValueError) as problem:
                raise Wrong(f"{doing}: {problem!r}") from problem
            self._tally.outcomes[f"{doing}: {outcome}"] += 1
            if outcome == "server_busy":
                await asyncio.sleep(self._random.uniform(0.5, 2.0))

    def _question(self) -> Asked:
        if self._random.random() < 0.4:
            prompt = self._random.choice(list(self._known))
            return Asked(CPU_MODEL, prompt, self._known[prompt], max_tokens=HYBRID_TOKENS)
        first, second, seldom = NPU_MODELS
        model = seldom if self._random.random() < _SELDOM else self._random.choice((first, second))
        number = self._random.randrange(QUESTIONS)
        return Asked(model, question(number), answer(model, number))

    def _exchange(self, path: str, body: bytes, *, with_key: bool = True, method: str = "POST") -> Exchange:
        self._requests += 1
        self._id = f"soak-{self._number}-{self._requests}"
        headers = {"x-request-id": self._id, "content-type": "application/json"}
        if with_key:
            headers["authorization"] = f"Bearer {key(self._number % KEYS)}"
        (manner,) = self._random.choices(_MANNERS, (90, 5, 5))
        return Exchange(self._port, method, path, body, headers, manner)

    async def _head(self, exchange: Exchange) -> Head:
        head = await exchange.head()
        check_id(head, self._id)
        return head

    async def _refused(self, exchange: Exchange, head: Head, *expected: str) -> str:
        code = check_error(head.status, head.headers, json.loads(await exchange.body()))
        if code not in expected:
            raise Wrong(f"status {head.status}, {code}, where one of {expected} was due")
        self._tally.refusals[code] += 1
        return code

    async def _stream(self) -> str:
        asked = self._question()
        begun = time.monotonic()
        async with self._exchange(CHAT, asked.body(stream=True)) as exchange:
            head = await self._head(exchange)
            if head.status != 200:
                return await self._refused(exchange, head, "server_busy", *LOST)
            text, reason, done, error = "", None, False, None
            async for event in exchange.events():
                if done or error:
                    raise Wrong("an event after the last")
                if event is None:
                    done = True
                elif "error" in event:
                    code = event["error"]["code"]
                    headers = {"x-should-retry": "false", "retry-after": "1"}
                    error = check_error(LOST.get(code, 503), headers if code in LOST else {}, event)
                else:
                    (choice,) = event["choices"]
                    if not text and choice["delta"].get("role"):
                        self._tally.one_id(event["id"])
                    if (piece := choice["delta"].get("content")) and not text:
                        self._tally.first_s.append(time.monotonic() - begun)
                    text += piece or ""
                    reason = choice["finish_reason"] or reason
        check_text(text, asked.expected, whole=done)
        if error is not None:
            if error not in LOST:
                raise Wrong(f"a stream ends in {error}")
            return f"{error} in mid-stream"
        if not done:
            raise Wrong("a stream without [DONE] and without an error")
        if reason not in ("stop", "length"):
            raise Wrong(f"finish_reason {reason}")
        return "answered"

    async def _whole(self) -> str:
        asked = self._question()
        async with self._exchange(CHAT, asked.body(stream=False)) as exchange:
            head = await self._head(exchange)
            if head.status != 200:
                return await self._refused(exchange, head, "server_busy", *LOST)
            made = json.loads(await exchange.body())
        self._tally.one_id(made["id"])
        check_text(made["choices"][0]["message"]["content"], asked.expected, whole=True)
        return "answered"

    async def _leave(self) -> str:
        """Ask and be gone: at once, while waiting, in prefill, or in mid-answer; streamed or not."""
        asked = self._question()
        if self._random.random() < 0.3:
            asked = Asked(self._random.choice(NPU_MODELS[:2]), LONG, "")
        stream = self._random.random() < 0.7
        async with self._exchange(CHAT, asked.body(stream=stream)) as exchange:
            try:
                async with asyncio.timeout(self._random.expovariate(1 / 1.5)):
                    head = await self._head(exchange)
                    if head.status != 200:
                        return await self._refused(exchange, head, "server_busy", *LOST)
                    async for _ in exchange.pieces():
                        pass
                    return "over before it was left"
            except TimeoutError:
                return "left"

    async def _stall(self) -> str:
        """Ask for much, read nothing of it for a while, then go."""
        asked = Asked(self._random.choice(NPU_MODELS[:2]), LONG, "")
        async with self._exchange(CHAT, asked.body(stream=True)) as exchange:
            head = await self._head(exchange)
            if head.status != 200:
                return await self._refused(exchange, head, "server_busy", *LOST)
            await asyncio.sleep(self._random.uniform(0.5, 3))
        return "left"

    async def _unknown(self) -> str:
        asked = Asked(f"nobody-knows-{self._random.random()}", "Hi", "")
        async with self._exchange(CHAT, asked.body(stream=self._random.random() < 0.5)) as exchange:
            return await self._refused(exchange, await self._head(exchange), "model_not_found")

    async def _nonsense(self) -> str:
        body = self._random.choice((b"", b"{", b"[]", b'{"messages": []}', b"\xff\xfe", b'{"messages": 3}'))
        async with self._exchange(CHAT, body) as exchange:
            return await self._refused(exchange, await self._head(exchange), "invalid_request")

    async def _large(self) -> str:
        async with self._exchange(CHAT, b"x" * (MAX_BODY_MB * 2**20 + 1)) as exchange:
            # All bodies together may be too much for a while, which is told instead.
            return await self._refused(exchange, await self._head(exchange), "body_too_large", "server_busy")

    async def _no_key(self) -> str:
        asked = self._question()
        async with self._exchange(CHAT, asked.body(stream=True), with_key=False) as exchange:
            return await self._refused(exchange, await self._head(exchange), "invalid_api_key")

    async def _models(self) -> str:
        async with self._exchange("/v1/models", b"", method="GET") as exchange:
            head = await self._head(exchange)
            listed = json.loads(await exchange.body())
            if head.status != 200 or len(listed["data"]) != len(NPU_MODELS) + 1:
                raise Wrong(f"/v1/models answers {head.status}: {listed}")
        return "answered"


HYBRID_TOKENS = 16
HYBRID_PROMPTS = 30


async def hybrid_answers(port: int) -> dict[str, str]:
    """Return prompts with the hybrid model's answers, no two alike, asked one after another."""
    found: dict[str, str] = {}
    for number in range(10 * HYBRID_PROMPTS):
        asked = Asked(CPU_MODEL, f"marker {number * 7919}: can you say it?", "", HYBRID_TOKENS)
        headers = {"authorization": f"Bearer {key(0)}"}
        async with Exchange(port, "POST", CHAT, asked.body(stream=False), headers) as exchange:
            head = await exchange.head()
            made = json.loads(await exchange.body())
        if head.status != 200:
            raise Wrong(f"the hybrid model does not answer: {made}")
        text = made["choices"][0]["message"]["content"]
        if text not in found.values():
            found[asked.text] = text
        if len(found) == HYBRID_PROMPTS:
            return found
    raise Wrong("the hybrid model's answers do not depend on the prompt")
