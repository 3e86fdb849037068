"""What is so of each installed model: its runtime, its prompt's form, what is known of its bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backends.base import Span
from server.doctor.facts import HashState, Model, Prompt
from server.doctor.gather.hashes import hash_state
from server.errors import ApiError
from server.registry import Entry, Registry
from server.registry.template_names import MODEL_TEMPLATE
from server.settings import Settings
from server.templates import TemplateError, Templates
from server.workers.runtimes import Runtimes

# The longest that a template takes counts: some have no place for a system prompt.
_USER: dict[str, Any] = {"role": "user", "content": "What is the capital of France?"}
_AGAIN: dict[str, Any] = {"role": "user", "content": "And of Italy?"}
_ANSWER: dict[str, Any] = {"role": "assistant", "content": "Paris."}
_SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief."}
_CONVERSATIONS = ([_SYSTEM, _USER, _ANSWER, _AGAIN], [_USER, _ANSWER, _AGAIN], [_USER])


def models(settings: Settings, registry: Registry) -> list[Model]:
    """Return the installed models."""
    runtimes, templates = Runtimes(settings), Templates(settings.models_dir)
    return [_model(entry, settings, registry, runtimes, templates) for entry in registry.installed()]


def _model(
    entry: Entry,
    settings: Settings,
    registry: Registry,
    runtimes: Runtimes,
    templates: Templates,
) -> Model:
    host = registry.host(entry)
    library, problem = runtimes.describe(host)
    encoder = host.encoder(settings.models_dir)
    return Model(
        id=entry.id,
        memory_mb=host.memory_mb + (entry.memory_mb if host is not entry else 0),
        npu=runtimes.uses_npu(host),
        library=library,
        problem=problem,
        encoder=encoder is not None and encoder.suffix == ".rknn",
        prompt=_prompt(entry, templates),
        hash=HashState() if host is not entry else hash_state(entry, settings.models_dir),
    )


def _prompt(entry: Entry, templates: Templates) -> Prompt:
    if (problem := templates.problem(entry)) is not None:
        return Prompt(entry.template, problem)
    if entry.template == MODEL_TEMPLATE:
        return Prompt(entry.template)
    own = entry.model_copy(update={"template": MODEL_TEMPLATE})
    for conversation in _CONVERSATIONS:
        theirs = _rendered(templates, own, conversation)
        ours = _rendered(templates, entry, conversation)
        if theirs is not None and ours is not None:
            return Prompt(entry.template, ours=ours, own=theirs)
    return Prompt(entry.template)


def _rendered(templates: Templates, entry: Entry, messages: Sequence[Mapping[str, Any]]) -> str | None:
    try:
        return _text(templates.render(entry, messages))
    except (ApiError, TemplateError):
        return None


def _text(prompt: Sequence[Span]) -> str:
    return "".join(span.text for span in prompt)
