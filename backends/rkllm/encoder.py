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
from backends.base import BackendError, Span
from backends.prompts import Context, read_tokenizer
from backends.rkllm import estimate
from backends.rkllm.estimate import Estimator
from backends.rkllm.multimodal import image_order, with_text
from backends.rkllm.prompt import flatten
from backends.spec import ModelSpec


@dataclass(frozen=True)
class Encoded:
    """A prompt as the library takes it. tokens: its length, an estimate where `exact` is False.

    most: it has for sure no more. measured: tokens is what another run of it was seen to have. images: the
    numbers of those whose marks stand in the text, in their order there.
    """

    prompt: Sequence[int] | str
    tokens: int
    most: int
    exact: bool
    measured: bool = False
    images: Sequence[int] = ()


class Encoder:
    """Encodes prompts of one model; from any thread.

    eos: ids that end an answer. stops: strings that do where ids are not known: the EOS strings then.
    vocab_size and tokenizer are None without one.
    """

    def __init__(self, spec: ModelSpec) -> None:
        """Read the tokenizer, if the entry has one. Raises BackendError."""
        self.tokenizer = None if spec.tokenizer is None else read_tokenizer(Path(spec.tokenizer))
        self._estimator = Estimator()
        self._marks = None if spec.vision is None else spec.vision.marks
        self._image_tokens = 0
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

    def take_images(self, tokens_each: int) -> None:
        """Encode prompts with images from now on, each so many tokens."""
        self._image_tokens = tokens_each

    def measured(self, encoded: Encoded, tokens: int) -> None:
        """Take note of how many tokens an encoded prompt turned out to have."""
        if isinstance(encoded.prompt, str) and not encoded.exact and not encoded.images:
            self._estimator.learn(encoded.prompt, tokens)

    def given(self, token_ids: Sequence[int], append: str) -> Encoded:
        """Return a prompt of a client's own token ids, ended by what `append` spells unless it is already.

        Raises BackendError for ids that the model does not have, which would read beyond its tables.
        """
        if self.tokenizer is None:
            raise BackendError(
                "unsupported_parameter",
                "Token ids cannot be checked, since the entry of this model names no tokenizer. Send text.",
            )
        if self._as_text:
            raise BackendError(
                "unsupported_parameter",
                "The entry of this model says that its runtime takes texts only (rkllm: {input: text}). Send "
                "text.",
            )
        if not token_ids:
            raise prompts.empty_prompt()
        size = len(self.tokenizer.vocabulary)
        if (wrong := next((one for one in token_ids if not 0 <= one < size), None)) is not None:
            raise BackendError(
                "invalid_request", f"There is no token {wrong}: the ids go from 0 to {size - 1}."
            )
        ending = self.tokenizer.encode([Span(append, True)]) if append else []
        ids = [*token_ids]
        if ending and ids[-len(ending) :] != ending:
            ids += ending
        return Encoded(ids, len(ids), len(ids), exact=True)

    def encode(self, prompt: Sequence[Span], context: Context) -> Encoded:
        """Return a prompt for the library, longer than the context too.

        Raises BackendError for one that is empty, or so long that encoding it would be a waste.
        """
        if images := image_order(prompt):
            encoded = self._with_images(prompt, images, context)
        else:
            encoded = self._text(prompt, context) if self._as_text else self._ids(prompt, context)
        if not encoded.prompt:
            raise prompts.empty_prompt()
        return encoded

    @property
    def _control(self) -> list[str]:
        """What clients must not spell, beside what the prompt's own template text shows."""
        marks = self._marks
        spelled = [] if marks is None else [marks.image, marks.start, marks.end, marks.content]
        return [*self._eos_strings, *spelled]

    def _with_images(self, prompt: Sequence[Span], images: Sequence[int], context: Context) -> Encoded:
        """Return a prompt with images, which is a text even where there is a tokenizer.

        Then the tokenizer counts, but the library encodes, so that the count may be a little off.
        """
        marks = self._marks
        if marks is None or not self._image_tokens:
            raise BackendError(
                "unsupported_parameter",
                f"{context.model_id} takes no images: it was loaded without its image encoder. Restart the "
                "server if the encoder's file has been put there since.",
                "messages",
            )
        tokens = len(images) * self._image_tokens
        if tokens >= context.length:
            raise context.refusal(f"at least {tokens}")
        text = flatten(with_text(prompt, marks.image), self._control)
        if self.tokenizer is None:
            tokens += self._estimator.tokens(text)
        else:
            around = with_text(prompt, marks.start + marks.end)
            tokens += len(prompts.encode(self.tokenizer, around, context))
        most = self._estimator.most(text) + len(images) * (
            self._image_tokens + estimate.most(marks.start) + estimate.most(marks.end)
        )
        return Encoded(text, tokens, most, exact=False, images=images)

    def _ids(self, prompt: Sequence[Span], context: Context) -> Encoded:
        assert self.tokenizer is not None
        ids = prompts.encode(self.tokenizer, prompt, context)
        return Encoded(ids, len(ids), len(ids), exact=True)

    def _text(self, prompt: Sequence[Span], context: Context) -> Encoded:
        """Return a prompt as text. Its tokens: as the library will count them, which spells out all of it."""
        text = flatten(prompt, self._control)
        added = 0
        if self._runtime_bos is not None:
            text, added = text.removeprefix(self._runtime_bos), 1
        if self.tokenizer is None:
            most = self._estimator.most(text)
            tokens = min(self._estimator.tokens(text) + added, most)
            return Encoded(text, tokens, most, exact=False, measured=self._estimator.knows(text))
        ids = prompts.encode(self.tokenizer, [Span(text, True)], context)
        return Encoded(text, len(ids) + added, len(ids) + added, exact=True)
