"""Answers of a form, by best effort: asked for in the prompt, checked, asked for again once.

Nothing of an answer is passed on before it has been found to be of the form. Knows no route.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from backends.protocol import Delta, Finished
from server.errors import ContextLengthExceeded, FormNotMet, InvalidRequest, UnsupportedParameter
from server.generation.events import Output, Reasoning
from server.generation.generation import Generation
from server.generation.overflow import Messages
from server.generation.request import GenerationRequest
from server.registry import Entry
from server.structured.form import Form, NotOfTheForm, make_form

Again = Callable[[Mapping[int, tuple[str, str]]], Awaitable[Generation]]
"""Asks once more for some choices: index -> (answer, what is wrong with it). Answers in their order."""


async def take_form(request: GenerationRequest, entry: Entry) -> tuple[GenerationRequest, Form | None]:
    """Return the request without the form it asks for, which its last question names instead, and the form.

    The request as it is and None where it asks for none, or where the entry cannot be asked: then the
    constraint stays for check_capabilities. Raises InvalidRequest and UnsupportedParameter.
    """
    forms = [constraint for constraint in request.constraints if constraint.kind == "form"]
    wanted = forms[0] if forms else None
    if entry.backend != "rkllm" or entry.rkllm.structured == "off" or wanted is None or wanted.form is None:
        return request, None
    if len(forms) > 1:
        raise InvalidRequest(
            f"{wanted.param} and {forms[1].param} both ask for a form; send one of them", forms[1].param
        )
    if request.continue_final:
        raise UnsupportedParameter(
            f"{wanted.param} cannot be combined with continue_final_message", wanted.param
        )
    # In a thread: a schema may take some tenths of a second.
    form = await asyncio.to_thread(make_form, wanted.form, wanted.value, wanted.param)
    others = tuple(constraint for constraint in request.constraints if constraint is not wanted)
    messages = _with_instruction(request.messages, form.instruction)
    return dataclasses.replace(request, messages=messages, constraints=others), form


def asked_again(request: GenerationRequest, answer: str, problem: str, form: Form) -> GenerationRequest:
    """Return the request that asks a model to answer once more."""
    said = f"Your answer cannot be used. {problem} Answer again. {form.instruction}"
    more = [{"role": "assistant", "content": answer}, {"role": "user", "content": said}]
    return dataclasses.replace(request, messages=[*request.messages, *more])


class StructuredGeneration:
    """Like a Generation, whose text comes whole and only if it is of the form. See generation.Answering."""

    def __init__(self, first: Generation, form: Form, again: Again) -> None:
        self.entry = first.entry
        self.choices = first.choices
        self.dropped = first.dropped
        self.by_side_model = first.by_side_model
        self._first = first
        self._form = form
        self._again = again

    def fingerprint(self) -> str | None:
        """See Generation."""
        return self._first.fingerprint()

    async def events(self) -> AsyncGenerator[tuple[int, Output], None]:
        """See Generation. Raises FormNotMet too."""
        answers = [_Answer() for _ in range(self.choices)]
        async with aclosing(_status(self._first, answers)) as events:
            async for event in events:
                yield event
        wrong = await asyncio.to_thread(self._check, answers)
        if wrong:
            better = [_Answer() for _ in wrong]
            try:
                said = {index: (answers[index].text, found.problem) for index, found in wrong.items()}
                second = await self._again(said)
                async with aclosing(_status(second, better)) as events:
                    async for event in events:
                        yield event
            except ContextLengthExceeded:
                raise self._refusal(wrong, "there is no room to ask again") from None
            if still := await asyncio.to_thread(self._check, better):
                raise self._refusal(still, "asked again, it did not either")
            prompts = [answer.finished.usage for answer in better]
            for index, answer in zip(wrong, better, strict=True):
                answer.follow(answers[index])
                answers[index] = answer
            # A request's prompts are counted with its first answer.
            answers[0].count(
                prompt_tokens=sum(usage.prompt_tokens for usage in prompts),
                cached_tokens=sum(usage.cached_tokens for usage in prompts),
            )
        for index, answer in enumerate(answers):
            for output in answer.outputs():
                yield index, output

    def _check(self, answers: Sequence[_Answer]) -> dict[int, NotOfTheForm]:
        """Leave in each answer what of it is passed on. Returns what is wrong with others, by index."""
        wrong: dict[int, NotOfTheForm] = {}
        for index, answer in enumerate(answers):
            try:
                answer.accepted = self._form.accept(answer.text)
            except NotOfTheForm as found:
                wrong[index] = found
                if answer.finished.reason == "length":
                    more = "It was cut off at its limit of tokens: be shorter."
                    wrong[index] = NotOfTheForm(
                        f"{found.problem} {more}", f"{found.brief}; cut off at its limit of tokens"
                    )
        return wrong

    def _refusal(self, wrong: Mapping[int, NotOfTheForm], then: str) -> FormNotMet:
        first = next(iter(wrong.values()))
        return FormNotMet(
            f"{self.entry.id} did not answer in the form asked for ({first.brief}), and {then}. It can only "
            "be asked to keep to one: ask for something simpler, allow more tokens, or choose another model."
        )


class _Answer:
    """An answer as it comes in, and what is passed on of it."""

    finished: Finished

    def __init__(self) -> None:
        self.accepted = ""
        self._text: list[str] = []
        self._tokens = 0
        self._reasoning: list[Reasoning] = []

    @property
    def text(self) -> str:
        return "".join(self._text)

    def take(self, event: Delta | Reasoning | Finished) -> None:
        match event:
            case Delta():
                self._text.append(event.text)
                self._tokens += event.tokens
            case Reasoning():
                self._reasoning.append(event)
            case Finished():
                self.finished = event

    def follow(self, other: _Answer) -> None:
        """Count the work of the answer that this one replaces, too, and its prompt instead of the own one."""
        self._reasoning.insert(0, Reasoning("", sum(event.tokens for event in other._reasoning)))
        usage = other.finished.usage
        own = self.finished.usage
        self.finished = msgspec.structs.replace(self.finished, usage=usage)
        self.count(
            completion_tokens=own.completion_tokens, prefill_ms=own.prefill_ms, decode_ms=own.decode_ms
        )

    def count(self, **more: float) -> None:
        """Add to the usage."""
        usage = self.finished.usage
        added = {name: getattr(usage, name) + value for name, value in more.items()}
        self.finished = msgspec.structs.replace(self.finished, usage=msgspec.structs.replace(usage, **added))

    def outputs(self) -> Iterator[Output]:
        yield from self._reasoning
        yield Delta(self.finished.request_id, self.accepted, self._tokens)
        yield self.finished


async def _status(
    generation: Generation, answers: Sequence[_Answer]
) -> AsyncGenerator[tuple[int, Output], None]:
    """Run a generation, keep what it answers, and yield how things stand meanwhile."""
    async with aclosing(generation.events()) as events:
        async for index, event in events:
            if isinstance(event, Delta | Reasoning | Finished):
                answers[index].take(event)
            else:
                yield index, event


def _with_instruction(messages: Messages, instruction: str) -> Messages:
    """Return the conversation whose last question asks for the form; where there is none, a new one does."""
    changed: list[Mapping[str, Any]] = list(messages)
    for index in reversed(range(len(changed))):
        message = changed[index]
        if message["role"] == "user":
            changed[index] = {**message, "content": _instructed(message.get("content") or "", instruction)}
            return changed
    return [*changed, {"role": "user", "content": instruction}]


def _instructed(content: str | Sequence[Mapping[str, Any]], instruction: str) -> object:
    """Return a message's content with an instruction behind it; the images in it stay where they are."""
    if isinstance(content, str):
        return f"{content}\n\n{instruction}"
    *before, last = content
    if last["type"] == "text":
        return [*before, {**last, "text": f"{last['text']}\n\n{instruction}"}]
    return [*content, {"type": "text", "text": f"\n\n{instruction}"}]
