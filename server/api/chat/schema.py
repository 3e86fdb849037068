"""What a chat completion request looks like: types and ranges. What a model can do is checked elsewhere."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from server.api.fields import (
    LIST,
    OBJECT,
    TEXT,
    Biases,
    Penalty,
    PositiveWhole,
    RepeatPenalty,
    RequestSchema,
    Seed,
    Share,
    Stop,
    Temperature,
    Whole,
    one_of_kinds,
)

LONGEST_NAME = 256
# More of these is no conversation: without bounds a body within its limit takes minutes to parse.
MOST_MESSAGES = 20_000
MOST_PARTS = 1_000
MOST_CALLS = 256
MOST_TOOLS = 512
MOST_MODALITIES = 16
LONGEST_ARGUMENTS = 1_000_000

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]


class ImageUrl(RequestSchema):
    """An image, as a data URL or an address. detail is of no effect: the encoder has one size."""

    url: str
    detail: str | None = None


class Part(RequestSchema):
    """One part of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | None = None


Content = Annotated[
    Annotated[str, Tag(TEXT)]
    | Annotated[list[Part], Field(max_length=MOST_PARTS, fail_fast=True), Tag(LIST)],
    one_of_kinds("a string or a list of parts"),
]


class FunctionCall(RequestSchema):
    """A call a model made, in the history. arguments: JSON text, or the object itself."""

    name: str
    arguments: (
        Annotated[
            Annotated[str, Field(max_length=LONGEST_ARGUMENTS), Tag(TEXT)]
            | Annotated[dict[str, Any], Tag(OBJECT)],
            one_of_kinds("a string of JSON or an object"),
        ]
        | None
    ) = None


class ToolCall(RequestSchema):
    """A tool call in the history."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class ChatMessage(RequestSchema):
    """One message of the conversation."""

    role: Role
    content: Content | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MOST_CALLS, fail_fast=True)] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None


class FunctionTool(RequestSchema):
    """A function a model may call."""

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(RequestSchema):
    """A tool a model may use."""

    type: str
    function: FunctionTool | None = None


class NamedFunction(RequestSchema):
    """The function that must be called."""

    name: Annotated[str, Field(min_length=1)]


class NamedTool(RequestSchema):
    """The tool that must be called."""

    type: str
    function: NamedFunction | None = None


ToolChoice = Annotated[
    Annotated[Literal["auto", "none", "required"], Tag(TEXT)] | Annotated[NamedTool, Tag(OBJECT)],
    one_of_kinds("'auto', 'none', 'required' or an object that names a tool"),
]
LegacyFunctionChoice = Annotated[
    Annotated[Literal["auto", "none"], Tag(TEXT)] | Annotated[NamedFunction, Tag(OBJECT)],
    one_of_kinds("'auto', 'none' or an object that names a function"),
]


class ResponseFormat(RequestSchema):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class StreamOptions(RequestSchema):
    """What a stream tells besides text."""

    include_usage: bool | None = None


class TemplateKwargs(RequestSchema):
    """Variables for the model's template. Only the thinking switch is passed on."""

    enable_thinking: bool | None = None


class ChatRequest(RequestSchema):
    """The body of POST /v1/chat/completions."""

    model: Annotated[str, Field(max_length=LONGEST_NAME)] | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES, fail_fast=True)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[PositiveWhole, Field(le=8)] | None = None
    max_tokens: PositiveWhole | None = None
    max_completion_tokens: PositiveWhole | None = None
    stop: Stop | None = None
    user: Annotated[str, Field(max_length=LONGEST_NAME)] | None = None

    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    min_p: Share | None = None
    repeat_penalty: RepeatPenalty | None = None
    repetition_penalty: RepeatPenalty | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Seed | None = None
    logit_bias: Biases | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None

    enable_thinking: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    reasoning_effort: str | None = None
    continue_final_message: bool | None = None

    tools: Annotated[list[Tool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionTool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    function_call: LegacyFunctionChoice | None = None
    modalities: Annotated[list[str], Field(max_length=MOST_MODALITIES, fail_fast=True)] | None = None

    response_format: ResponseFormat | None = None
    regex: Any = None
    choice: Any = None
    grammar: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json: Any = None
    structured_outputs: Any = None
