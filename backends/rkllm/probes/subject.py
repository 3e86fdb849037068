"""The model that probes try things on: loaded as the entry says or a little otherwise, run by run.

What a probe sees of a run is what the library shows: tokens, how many were prefilled, the KV cache's size.
Everything is greedy, so that two runs can be compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backends.base import Sampling, Span
from backends.engine import Cancellation
from backends.probing import Texts, Value
from backends.rkllm.capture import Capture
from backends.rkllm.encoder import Encoder
from backends.rkllm.library import Library, open_library
from backends.rkllm.loading import chosen_library, raise_file_limit, session_options
from backends.rkllm.parameters import SessionOptions
from backends.rkllm.prompt import flatten
from backends.rkllm.run import Ended, Perf
from backends.rkllm.sampling import sampling_param
from backends.rkllm.session import Session
from backends.spec import ModelSpec
from backends.tokenizer import PromptTokenizer

ANNOUNCED_LINES = 40

Prompt = Sequence[int] | str
Announce = Callable[[dict[str, Value]], None]
"""Told before each load what differs from the entry."""


@dataclass(frozen=True)
class Seen:
    """One run. tokens: ids and bytes as they came. kv: the KV cache's size after it, None if not told."""

    tokens: list[tuple[int, bytes]]
    perf: Perf | None
    kv: int | None
    ended: Ended
    seconds: float

    @property
    def ids(self) -> list[int]:
        return [token_id for token_id, _ in self.tokens]

    @property
    def text(self) -> str:
        return b"".join(data for _, data in self.tokens).decode("utf-8", "replace")

    @property
    def prefilled(self) -> int | None:
        """How many tokens of the prompt were computed, None if the library did not say."""
        return None if self.perf is None or self.perf.prefill_tokens <= 0 else self.perf.prefill_tokens


class Subject:
    """Loads the model when it is first needed and as often as options change. Close it at the end."""

    def __init__(self, spec: ModelSpec, texts: Texts, announce: Announce, loaded: Callable[[], None]) -> None:
        """Open the library. Raises BackendError, LibraryError."""
        self.spec = spec
        self.texts = texts
        self._announce = announce
        self._loaded = loaded
        path, _ = chosen_library(spec)
        raise_file_limit()
        self.capture = Capture()
        self.capture.start()
        self._library: Library = open_library(path)
        self._base = session_options(spec)
        self._options: SessionOptions | None = None
        self._session: Session | None = None
        self._encoder: Encoder | None = None

    @property
    def encoder(self) -> Encoder:
        """The entry's own encoder, read when it is first needed."""
        if self._encoder is None:
            self._encoder = Encoder(self.spec)
        return self._encoder

    @property
    def tokenizer(self) -> PromptTokenizer | None:
        """The entry's tokenizer, if it has one."""
        return self.encoder.tokenizer

    @property
    def session(self) -> Session:
        """The session of the last `load`, or one as the entry says."""
        return self._session if self._session is not None else self.load()

    def load(self, **changes: Value) -> Session:
        """Return a session with these options, loading the model unless that is how it is loaded already."""
        options = dataclasses.replace(self._base, **changes)  # type: ignore[arg-type]  # names of its fields
        if self._session is None or options != self._options:
            self.close_session()
            self._announce(changes)
            self._session = Session(self._library, options, self.capture)
            self._options = options
            self._loaded()
        return self._session

    def close_session(self) -> None:
        """Give the model back, if one is loaded."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def close(self) -> None:
        """Give everything back."""
        self.close_session()
        self.capture.close()

    def run(self, prompt: Prompt, tokens: int, *, stop_at: int | None = None) -> Seen:
        """Run a prompt for so many tokens at most, aborted after `stop_at` of them. Raises BackendError."""
        seen: list[tuple[int, bytes]] = []

        def take(token_id: int, data: bytes) -> Ended | None:
            seen.append((token_id, data))
            return Ended.STOP if stop_at is not None and len(seen) >= stop_at else None

        outcome = self.session.run(
            prompt, sampling_param(Sampling(temperature=0), None), tokens, take, Cancellation()
        )
        return Seen(
            seen,
            outcome.perf,
            self.session.kv_cache_size(),
            outcome.ended,
            outcome.prefill_s + outcome.decode_s,
        )

    def size(self, prompt: Prompt) -> int | None:
        """Return how many tokens the library makes of a prompt: what it prefills on an empty KV cache."""
        self.session.clear_kv_cache()
        return self.run(prompt, 1).prefilled

    def prompt(self, spans: Sequence[Span]) -> Prompt:
        """Return a prompt as the backend gives it to the library for this entry."""
        if self.tokenizer is None or self.spec.rkllm.input == "text":
            return flatten(spans)
        return self.tokenizer.encode(spans)


def made_up_ids(count: int, seed: int = 1) -> list[int]:
    """Return token ids that every vocabulary has; they spell nothing in particular."""
    return [1000 + (seed * 7919 + index * 104_729) % 20_011 for index in range(count)]


def sentences(count: int, topic: str = "door") -> str:
    """Return a text of so many sentences, no two alike, that ends with a full stop."""
    return " ".join(f"The {topic} of house {number} is open." for number in range(1, count + 1))
