"""What an entry cannot honour, said before anything is queued. Null and neutral values never come here."""

from __future__ import annotations

from server.errors import UnsupportedParameter
from server.generation.request import GenerationRequest
from server.registry import Entry


def check_capabilities(request: GenerationRequest, entry: Entry) -> None:
    """Raise UnsupportedParameter for the first thing this entry cannot do."""
    if "chat" not in entry.capabilities:
        raise UnsupportedParameter(
            f"{entry.id} does not chat (it can: {', '.join(entry.capabilities)}); choose another model",
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
