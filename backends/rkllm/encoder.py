"""From a prompt's spans to what the library is given: token ids where we have a tokenizer, else a text.

An entry can ask for texts all the same, for a library that uses its KV cache again for those alone.

Knows no handle. With a tokenizer counts are exact, text from clients can never become a control token, and
the tokens that end an answer are ours; without one counts are estimates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backends import prompts
from backends.base import ModelSpec, Span
from backends.prompts import Context, read_tokenizer
from backends.rkllm.estimate import Estimator
from backends.rkllm.prompt import flatten


@dataclass(frozen=True)
class Encoded:
    """A prompt as the library takes it. tokens: its length, an estimate where `exact` is False."""

    prompt: Sequence[int] | str
    tokens: int
    exact: bool


class Encoder:
    """Encodes prompts of one model; from any thread.

    eos: ids that end an answer. stops: strings that do where ids are not known: the EOS strings then.
    vocab_size and tokenizer are None without one.
    """

    def __init__(self, spec: ModelSpec) -> None:
        """Read the tokenizer, if the entry has one. Raises BackendError."""
        self.tokenizer = None if spec.tokenizer is None else read_tokenizer(Path(spec.tokenizer))
        self._estimator = Estimator()
        self._as_text = self.tokenizer is None or spec.rkllm.input == "text"
        self._runtime_bos = spec.rkllm.runtime_bos
        self._eos_strings = [eos for eos in spec.eos if isinstance(eos, str)]
        ids = {eos for eos in spec.eos if isinstance(eos, int)}
        unknown = []
        for eos in self._eos_strings:
            token_id = None if self.tokenizer is None else self.tokenizer.vocabulary.id_of(eos)
            if token_id is None:
                unknown.append(eos)
            else:
                ids.add(token_id)
        self.eos = frozenset(ids)
        self.stops = unknown
        self.vocab_size = None if self.tokenizer is None else len(self.tokenizer.vocabulary)
        self.warnings: list[str] = []
        if self.tokenizer is not None and unknown:
            self.warnings.append(
                f"eos names what is no token of the tokenizer: {', '.join(map(repr, unknown))}. As a text it "
                "ends answers all the same; correct eos, or fetch the tokenizer that belongs to the model."
            )

    def measured(self, encoded: Encoded, tokens: int) -> None:
        """Take note of how many tokens an encoded prompt turned out to have."""
        if isinstance(encoded.prompt, str) and not encoded.exact:
            self._estimator.learn(encoded.prompt, tokens)

    def encode(self, prompt: Sequence[Span], context: Context) -> Encoded:
        """Return a prompt for the library, longer than the context too.

        Raises BackendError for one that is empty, or so long that encoding it would be a waste.
        """
        encoded = self._text(prompt, context) if self._as_text else self._ids(prompt, context)
        if not encoded.prompt:
            raise prompts.empty_prompt()
        return encoded

    def _ids(self, prompt: Sequence[Span], context: Context) -> Encoded:
        assert self.tokenizer is not None
        ids = prompts.encode(self.tokenizer, prompt, context)
        return Encoded(ids, len(ids), exact=True)

    def _text(self, prompt: Sequence[Span], context: Context) -> Encoded:
        """Return a prompt as text. Its tokens: as the library will count them, which spells out all of it."""
        text = flatten(prompt, self._eos_strings)
        added = 0
        if self._runtime_bos is not None:
            text, added = text.removeprefix(self._runtime_bos), 1
        if self.tokenizer is None:
            return Encoded(text, self._estimator.tokens(text) + added, exact=False)
        ids = prompts.encode(self.tokenizer, [Span(text, True)], context)
        return Encoded(text, len(ids) + added, exact=True)
