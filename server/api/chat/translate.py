"""A chat completion request to the neutral request. Pure; knows no model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from server.api.chat.messages import normalised
from server.api.chat.schema import ChatRequest
from server.errors import InvalidRequest, UnsupportedParameter
from server.generation.request import Constraint, FormKind, GenerationRequest, SamplingChoice

# Fields of other servers that hold an answer to a form.
_FORMS: Mapping[str, FormKind | None] = {
    "regex": "regex",
    "choice": "choice",
    "grammar": None,
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": None,
    "guided_json": "json_schema",
}
# The keys of structured_outputs, which holds the same.
_STRUCTURED: Mapping[str, FormKind] = {"regex": "regex", "choice": "choice", "json": "json_schema"}
_LARGEST_TOKEN_ID = 2**31 - 1
# Top-p of 0 means the best token only; engines want a share above 0.
_SMALLEST_TOP_P = 1e-6


def translate(chat: ChatRequest, client: str, task: str = "") -> GenerationRequest:
    """Return what a request asks for; task: what its header says of that.

    Raises InvalidRequest and UnsupportedParameter.
    """
    if chat.modalities and chat.modalities != ["text"]:
        raise UnsupportedParameter("modalities: the models here answer in text only", "modalities")
    messages = normalised(chat.messages)
    continue_final = bool(chat.continue_final_message)
    if continue_final and chat.messages[-1].role != "assistant":
        raise InvalidRequest(
            "continue_final_message needs a last message of role assistant", "continue_final_message"
        )
    return GenerationRequest(
        model=chat.model,
        messages=messages,
        client=client,
        user=chat.user or "",
        task=task,
        n=chat.n or 1,
        sampling=_sampling(chat),
        max_tokens=chat.max_completion_tokens or chat.max_tokens,
        stop=[chat.stop] if isinstance(chat.stop, str) else chat.stop or (),
        logprobs=_logprobs(chat),
        thinking=_thinking(chat),
        continue_final=continue_final,
        tools=_offered_tools(chat),
        constraints=tuple(_constraints(chat)),
    )


def _sampling(chat: ChatRequest) -> SamplingChoice:
    penalty = chat.repeat_penalty if chat.repeat_penalty is not None else chat.repetition_penalty
    return SamplingChoice(
        temperature=chat.temperature,
        top_p=None if chat.top_p is None else max(chat.top_p, _SMALLEST_TOP_P),
        top_k=None if chat.top_k is None else min(max(chat.top_k, 0), _LARGEST_TOKEN_ID),
        min_p=chat.min_p,
        repeat_penalty=penalty,
        presence_penalty=chat.presence_penalty,
        frequency_penalty=chat.frequency_penalty,
        seed=chat.seed,
        logit_bias=_logit_bias(chat.logit_bias or {}),
    )


def _logit_bias(biases: Mapping[str, float]) -> dict[int, float]:
    by_id: dict[int, float] = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= _LARGEST_TOKEN_ID):
            raise InvalidRequest(
                "logit_bias must have token ids (whole numbers, as strings) for its keys", "logit_bias"
            )
        by_id[int(key)] = bias
    return by_id


def _logprobs(chat: ChatRequest) -> int | None:
    if chat.logprobs:
        return chat.top_logprobs or 0
    if chat.top_logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", "top_logprobs")
    return None


def _thinking(chat: ChatRequest) -> bool | None:
    if chat.enable_thinking is not None:
        return chat.enable_thinking
    if chat.chat_template_kwargs is not None and chat.chat_template_kwargs.enable_thinking is not None:
        return chat.chat_template_kwargs.enable_thinking
    return None if chat.reasoning_effort is None else chat.reasoning_effort != "none"


def _offered_tools(chat: ChatRequest) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = []
    if chat.tools and chat.tool_choice != "none":
        tools += [tool.model_dump(exclude_none=True) for tool in chat.tools]
    if chat.functions and chat.function_call != "none":  # the older form
        tools += [
            {"type": "function", "function": function.model_dump(exclude_none=True)}
            for function in chat.functions
        ]
    return tools


def _constraints(chat: ChatRequest) -> Iterator[Constraint]:
    """Yield what binds the answer. An empty value (null, "", [], {}) binds nothing."""
    for name, form in _FORMS.items():
        if value := getattr(chat, name):
            yield Constraint(name, "form", form, value)
    if isinstance(chat.structured_outputs, dict):
        for name, value in chat.structured_outputs.items():
            if value:
                yield Constraint("structured_outputs", "form", _STRUCTURED.get(name), value)
    elif chat.structured_outputs:
        yield Constraint("structured_outputs", "form")
    if chat.response_format is not None and chat.response_format.type != "text":
        kind = chat.response_format.type
        value = (chat.response_format.json_schema or {}).get("schema") if kind == "json_schema" else None
        yield Constraint("response_format", "form", kind, value)
    if chat.tool_choice is not None and chat.tool_choice not in ("auto", "none"):
        yield Constraint("tool_choice", "call")
    if chat.function_call is not None and chat.function_call not in ("auto", "none"):
        yield Constraint("function_call", "call")
    if chat.tool_choice != "none":
        for index, tool in enumerate(chat.tools or ()):
            if tool.function is not None and tool.function.strict:
                yield Constraint(f"tools.{index}.function.strict", "call")
