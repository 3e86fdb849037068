"""What an entry cannot honour, said before anything is queued. Null and neutral values never come here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from server.errors import UnsupportedParameter
from server.generation.request import GenerationRequest
from server.registry import Entry
from server.registry.installing import told

# Forms of tool calls (an entry's tools.format) that are read from answers: none so far. Only a model whose
# calls can be read is shown tools; another's answer would be the text of a call.
CALLS_READ: frozenset[str] = frozenset()


def shown_tools(
    request: GenerationRequest, entry: Entry, calls_read: Collection[str]
) -> Sequence[Mapping[str, Any]]:
    """Return the tools the prompt shows: all that are offered, or none if the model cannot use any."""
    if entry.tools is None or "tools" not in entry.capabilities or entry.tools.format not in calls_read:
        return ()
    return request.tools


def check_capabilities(request: GenerationRequest, entry: Entry) -> None:
    """Raise UnsupportedParameter for the first thing this entry cannot do."""
    if "chat" not in entry.capabilities:
        raise UnsupportedParameter(
            f"{entry.id} does not chat (it can: {', '.join(entry.capabilities)}). Choose another model.",
            "model",
        )
    for constraint in request.constraints:
        if constraint.kind == "form":
            message = (
                f"{constraint.param} asks for an answer of a fixed form, which {entry.id} cannot be held to; "
                "ask for the form in the prompt instead"
            )
        else:
            message = (
                f"{constraint.param} asks for a tool call that must come or must fit its schema, which "
                f"{entry.id} cannot promise; use tool_choice auto or none, without strict"
            )
        raise UnsupportedParameter(message, constraint.param)
    if entry.backend == "rkllm":
        chosen = {
            "min_p": request.sampling.min_p,
            "logit_bias": request.sampling.logit_bias,
            "logprobs": request.logprobs is not None,
        }
        for param, value in chosen.items():
            if value:
                raise UnsupportedParameter(
                    f"{param} is not available on {entry.id}: its runtime, librkllmrt, has no such thing; "
                    "leave it out",
                    param,
                )


def check_images(images: Sequence[Mapping[str, Any]], entry: Entry, models_dir: Path) -> None:
    """Raise UnsupportedParameter for the first of a conversation's image parts if the entry takes none."""
    if not images or "vision" in entry.available(models_dir):
        return
    field = images[0]["field"]
    if entry.vision is not None:
        raise UnsupportedParameter(
            f"{field} is an image, and the image encoder of {entry.id} is not there: put it at "
            f"{told(entry, entry.vision.file)}, or send text only",
            field,
        )
    raise UnsupportedParameter(
        f"{entry.id} takes no images, and {field} is one. Choose a model with the capability vision, or send "
        "text only: in a new conversation, since chats send their older images again.",
        field,
    )
