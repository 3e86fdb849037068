"""Turns a conversation into a prompt: chooses the entry's template, runs it, cuts the result into spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from backends.base import Span
from server.errors import InvalidRequest
from server.registry import Entry
from server.registry.template_names import BUILTIN_TEMPLATES, MODEL_TEMPLATE
from server.templates.budget import Budget
from server.templates.compiled import FAILURES, Compiled
from server.templates.environment import (
    Complaint,
    builtin_environment,
    compile_source,
    model_environment,
)
from server.templates.errors import TemplateError
from server.templates.guard import SENTINEL, guard, guard_names, spans, unguard
from server.templates.messages import images_of, prepare_messages
from server.templates.source import read_source, source_state, template_file

_PLAINEST = [{"role": "user", "content": "Hi"}]


class Templates:
    """The templates of all entries, each compiled once. Rendering is pure and may run in any thread.

    A template that changes on the disk, or the tokenizer's settings beside it, is compiled again.
    """

    def __init__(self, models_dir: Path) -> None:
        self._models_dir = models_dir
        environment = builtin_environment()
        self._builtin = lru_cache(maxsize=None)(
            lambda name: Compiled(environment.get_template(f"{name}.jinja"))
        )
        self._from_file = lru_cache(maxsize=64)(_outcome)

    def quick(self, entry: Entry) -> bool:
        """Whether the entry's template is one of ours, whose time goes with the size of the messages alone.

        Any other one belongs in a thread: what it may take at most is seconds.
        """
        return entry.template in BUILTIN_TEMPLATES

    def check(self, entry: Entry) -> None:
        """Compile the entry's template. Raises TemplateError, which says what is wrong and where."""
        self._compiled(entry)

    def problem(self, entry: Entry) -> str | None:
        """Return what is wrong with the entry's template, for its owner; None if it compiles."""
        try:
            self.check(entry)
        except TemplateError as error:
            return error.message
        return None

    def render(
        self,
        entry: Entry,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool | None = None,
        continue_final: bool = False,
    ) -> list[Span]:
        """Return the prompt for the answer to `messages`.

        messages are normalised: developer is system, content is a string, or a list of texts and images, and
        each image gets a span of its own. thinking None: the entry's default.
        continue_final: the last message is an answer that goes on where it ends. Raises InvalidRequest for
        messages the template does not take, with its own complaint; UnsupportedParameter for tools it has no
        form for; TemplateError for a template that is broken or missing. Guarding and the template
        take time by the input's size: some 40 ms a megabyte.
        """
        compiled = self._compiled(entry)
        try:
            context = _context(entry, compiled, messages, tools, thinking, continue_final)
            rendered = compiled.render(entry.id, context)
        except Complaint as complaint:
            raise InvalidRequest(
                f"The chat template of {entry.id} says: {complaint}", "messages"
            ) from complaint
        except FAILURES as error:
            _probe(entry, compiled)
            raise InvalidRequest(
                f"The chat template of {entry.id} cannot render these messages "
                f"({type(error).__name__}: {unguard(str(error))}). Check roles, tool calls and their order.",
                "messages",
            ) from error
        if continue_final:
            rendered = _up_to_sentinel(rendered, entry)
        prompt = spans(rendered)
        _check_images(entry, messages, prompt)
        return prompt

    def _compiled(self, entry: Entry) -> Compiled:
        if entry.template in BUILTIN_TEMPLATES:
            return self._builtin(entry.template)
        home = entry.directory(self._models_dir)
        if entry.template == MODEL_TEMPLATE:
            path = entry.path(self._models_dir)
            file = template_file([path if entry.backend == "hybrid" else path.parent, home])
        else:
            file = home / entry.template  # an absolute path stays what it is
        try:
            state = source_state(file)
        except OSError as error:
            raise TemplateError(
                f"{file}: the template of {entry.id} cannot be read ({error.strerror}). "
                "Check the template key of its entry."
            ) from error
        outcome = self._from_file(file, state)
        if isinstance(outcome, TemplateError):
            raise TemplateError(outcome.message)
        return outcome


def _outcome(path: Path, _state: tuple[tuple[int, ...] | None, ...]) -> Compiled | TemplateError:
    """Compile a file; what is wrong with it is returned, to be kept as well: finding it out may take long."""
    try:
        return _compiled_file(path)
    except TemplateError as error:
        return error


def _compiled_file(path: Path) -> Compiled:
    source = read_source(path)
    environment = model_environment()
    with environment.spending(Budget()):  # what is constant is worked out now
        template = compile_source(environment, source.text, source.name)
    return Compiled(template, environment, source.bos or "", source.eos)


def _probe(entry: Entry, compiled: Compiled) -> None:
    """Raise TemplateError for a template that fails even at the plainest conversation.

    What it fails of is told as it is then: the client's own messages have no place in the log.
    """
    try:
        compiled.render(entry.id, _context(entry, compiled, _PLAINEST, None, None, False))
    except Complaint:
        return
    except FAILURES as error:
        raise TemplateError(
            f"The chat template of {entry.id} cannot render any messages "
            f"({type(error).__name__}: {unguard(str(error))}; {compiled.place(error)}). "
            "Mend the file, pull the model again, or name a built-in template in its entry."
        ) from error


def _context(
    entry: Entry,
    compiled: Compiled,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    thinking: bool | None,
    continue_final: bool,
) -> dict[str, Any]:
    """Return what the template sees."""
    mode = entry.thinking
    prepared = prepare_messages(messages, (mode.open, mode.close) if mode is not None else None)
    options = entry.template_options
    if options.default_system is not None and (not prepared or prepared[0]["role"] != "system"):
        prepared.insert(0, {"role": "system", "content": guard(options.default_system)})
    if continue_final:
        if not prepared or prepared[-1]["role"] != "assistant":
            raise InvalidRequest("Only an answer can be continued: the last message must be one.", "messages")
        prepared[-1]["content"] += SENTINEL
    context: dict[str, Any] = {
        "messages": prepared,
        "tools": guard_names(tools) if tools else None,
        "documents": None,
        "add_generation_prompt": not continue_final,
    }
    bos = compiled.bos if options.bos is None else options.bos
    if bos is not None:
        context["bos_token"] = bos
    eos = compiled.eos or next((token for token in entry.eos if isinstance(token, str)), None)
    if eos is not None:
        context["eos_token"] = eos
    if mode is not None and mode.switch is not None:
        context[mode.switch] = mode.default if thinking is None else thinking
    return context


def _check_images(entry: Entry, messages: Sequence[Mapping[str, Any]], prompt: Sequence[Span]) -> None:
    """Raise InvalidRequest where the template has left an image out: the answer would not be about it."""
    placed = {span.image for span in prompt if span.image is not None}
    for image in images_of(messages):
        if image["index"] not in placed:
            raise InvalidRequest(
                f"The chat template of {entry.id} has no place for the image {image['field']}.",
                image["field"],
            )


def _up_to_sentinel(rendered: str, entry: Entry) -> str:
    before, found, _ = rendered.rpartition(SENTINEL)
    if not found:
        raise InvalidRequest(
            f"The chat template of {entry.id} drops the answer that should be continued.", "messages"
        )
    return before
