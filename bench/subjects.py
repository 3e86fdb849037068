"""Who is measured by bench.engine: our engine and llama.cpp, each reads a prompt and decodes on from it.

Times are wall time as seen from outside the process that computes, from the order to the token.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from backends.base import GenerateParams, Sampling, Span, Usage
from backends.protocol import Delta, Finished
from bench.processes import ROOT, rss_mb
from server.registry import Entry
from server.scheduling import Dispatcher, Job

_SHARED_TOKENS = 8  # the beginning that all prompts of this program share, and digits of their numbers
_NUMBERS = " one two three four five six seven eight nine ten"


@dataclass
class Series:
    """One side's measurements at one prompt length."""

    prompt_tokens: list[float] = field(default_factory=list)
    first_token_s: list[float] = field(default_factory=list)
    decode_tps: list[float] = field(default_factory=list)
    prefill_tps: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)

    def add(self, prompt_tokens: int, first_token_s: float, decode_tps: float, memory_mb: float) -> None:
        self.prompt_tokens.append(prompt_tokens)
        self.first_token_s.append(first_token_s)
        self.decode_tps.append(decode_tps)
        self.prefill_tps.append(prompt_tokens / first_token_s)
        self.memory_mb.append(memory_mb)


@dataclass(frozen=True)
class SecondTurn:
    """Tokens of the first turn; of its answer and the second turn together; of what was computed for it."""

    history: int
    new: int
    prefilled: int
    first_token_s: float


class Engine:
    """Our side: one worker with the model loaded. Every prompt begins anew, so that no cache serves it."""

    name = "rkserve"

    def __init__(self, dispatcher: Dispatcher, entry: Entry, eos_token_ids: Sequence[int]) -> None:
        self._dispatcher = dispatcher
        self._entry = entry
        # An answer that ends early would be no measurement, so the model is kept from ending.
        self._sampling = Sampling(temperature=0.0, logit_bias=dict.fromkeys(eos_token_ids, -100.0))
        self._nonce = 0
        self.runtime = ""
        self.kernels = ""

    async def load(self) -> float:
        """Load the model. Return the seconds from nothing to the first token of a tiny prompt."""
        started = time.monotonic()
        await self._run(" one", 1)
        taken = time.monotonic() - started
        if (info := self._dispatcher.status_of(self._entry).info) is not None:
            self.runtime = info.runtime
            self.kernels = info.details.get("kernels", "")
        return taken

    async def measure(self, prompt: int, decode: int, series: Series) -> None:
        """Prefill about `prompt` tokens and decode `decode` more."""
        times, _, usage = await self._run(self._text(prompt), decode + 1)
        if usage.cached_tokens > _SHARED_TOKENS:
            raise RuntimeError(f"{usage.cached_tokens} tokens of a new prompt came from the cache")
        if usage.completion_tokens != decode + 1:
            raise RuntimeError(f"the model ended after {usage.completion_tokens} of {decode + 1} tokens")
        steps = usage.completion_tokens - 1
        started, first, last = times[0], times[1], times[-1]
        series.add(usage.prompt_tokens, first - started, steps / (last - first), self._memory_mb())

    async def second_turn(self, history: int) -> SecondTurn:
        """Answer a prompt of about `history` tokens, then that with its answer and some new text."""
        begin, more = self._text(history), _NUMBERS * 2
        _, answer, first = await self._run(begin, 17)
        times, _, second = await self._run(begin + answer + more, 2)
        return SecondTurn(
            history=first.prompt_tokens,
            new=second.prompt_tokens - first.prompt_tokens,
            prefilled=second.prompt_tokens - second.cached_tokens,
            first_token_s=times[1] - times[0],
        )

    def _text(self, tokens: int) -> str:
        """Return text of about so many tokens: number words, one token each, after a beginning of its own."""
        self._nonce += 1
        words = (_NUMBERS.split() * (tokens // 10 + 1))[: tokens - 4]
        return f"Count {self._nonce}: {' '.join(words)}"

    async def _run(self, text: str, tokens: int) -> tuple[list[float], str, Usage]:
        """Return when the run was submitted and each piece of text came, the text, and the counts."""
        params = GenerateParams(prompt=[Span(text, False)], sampling=self._sampling, max_tokens=tokens)
        times = [time.monotonic()]
        pieces: list[str] = []
        usage: Usage | None = None
        async with self._dispatcher.submit(Job(entry=self._entry, client="bench", params=(params,))) as run:
            async for _, event in run:
                if isinstance(event, Delta):
                    times.append(time.monotonic())
                    pieces.append(event.text)
                elif isinstance(event, Finished):
                    usage = event.usage
        if usage is None or len(times) < 2:
            raise RuntimeError("the run gave no token")
        return times, "".join(pieces), usage

    def processes(self) -> list[psutil.Process]:
        return psutil.Process().children()

    def _memory_mb(self) -> float:
        workers = [
            process for process in self.processes() if "backends.worker" in " ".join(process.cmdline())
        ]
        return max((rss_mb(worker) for worker in workers), default=float("nan"))


class LlamaPeer:
    """llama.cpp in a child of another interpreter. A context manager: leaving it ends the child."""

    name = "llama.cpp"

    def __init__(self, python: Path, gguf: Path, threads: int, context: int) -> None:
        started = time.monotonic()
        # stderr is shown: an environment without llama-cpp-python explains itself there.
        self._child = subprocess.Popen(
            [python, ROOT / "bench" / "llama_peer.py", gguf, str(threads), str(context)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.version: str = self._answer()["version"]
        self.load_s = time.monotonic() - started

    def __enter__(self) -> LlamaPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child: it stops at the end of its input."""
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.close()
        self._child.wait(30)
        self._child.stdout.close()

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(self._child.pid)]

    def measure(self, prompt: int, decode: int, series: Series) -> None:
        """Prefill exactly `prompt` tokens and decode `decode` more."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"prompt": prompt, "decode": decode}) + "\n")
        self._child.stdin.flush()
        answer = self._answer()
        memory_mb = rss_mb(self.processes()[0])
        series.add(prompt, answer["first_token_s"], decode / answer["decode_s"], memory_mb)

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the llama.cpp program ended with code {self._child.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer
