"""Conversations and shortcuts the tests of templates share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from backends.base import Span
from server.registry import Entry
from server.templates import Templates
from tests.server.examples import example_entry

Message = Mapping[str, Any]

SWITCHED = {"default": False, "switch": "enable_thinking"}

# The 17 control tokens of SmolLM2's vocabulary, and marks other vocabularies have as added tokens.
SMOLLM2_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<repo_name>",
    "<reponame>",
    "<file_sep>",
    "<filename>",
    "<gh_stars>",
    "<issue_start>",
    "<issue_comment>",
    "<issue_closed>",
    "<jupyter_start>",
    "<jupyter_text>",
    "<jupyter_code>",
    "<jupyter_output>",
    "<jupyter_script>",
    "<empty_output>",
]
OTHER_TOKENS = [
    "<think>",
    "</think>",
    "<tools>",
    "</tools>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<function",
    "</function>",
    "[INST]",
    "[/INST]",
    "<s>",
    "</s>",
    "<|start_of_role|>",
    "<|end_of_role|>",
    "<|end_of_text|>",
    "<|startoftext|>",
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    "<|tool_list_start|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|turn>",
    "<turn|>",
    "<|channel>",
    "<bos>",
    "\n\nUser:",
    "<\uff5cUser\uff5c>",
]
TOKENS = SMOLLM2_TOKENS + OTHER_TOKENS


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def answer(content: str, **keys: Any) -> Message:
    return {"role": "assistant", "content": content, **keys}


def call(name: str, arguments: str, id: str = "c1") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: str, id: str = "c1") -> Message:
    return {"role": "tool", "tool_call_id": id, "content": content}


ONE = [user("U1")]
MANY = [user("U1"), answer("A1"), user("U2")]
LED = [system("S"), *MANY]
REASONED = [user("U1"), answer("A1", reasoning_content="R1"), user("U2")]
CALLED = [
    user("U1"),
    answer(
        "A1",
        reasoning_content="R1",
        tool_calls=[
            call("f", '{"city": "New York", "n": 3, "ok": true, "code": "a<b", "list": [1, "x"]}'),
            call("g", "{}", "c2"),
        ],
    ),
    result("T1"),
    result("T2", "c2"),
]
ANSWERED = [*CALLED, answer("A2"), user("U2")]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "Says \u00e9 & <b>",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "g"}},
]
# The same as JSON, one a line.
F_JSON = (
    '{"type": "function", "function": {"name": "f", "description": "Says \u00e9 & <b>", '
    '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}'
)
G_JSON = '{"type": "function", "function": {"name": "g"}}'


def spans_of(
    entry: Entry,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool | None = None,
    *,
    models_dir: Path = Path("/nowhere"),
    continue_final: bool = False,
) -> list[Span]:
    return _templates(models_dir).render(entry, messages, tools, thinking, continue_final)


def joined(spans: Sequence[Span]) -> str:
    return "".join(span.text for span in spans)


def control_text(spans: Sequence[Span]) -> str:
    """What stands in control spans, without white space, which belongs to nobody."""
    return "".join("".join(span.text for span in spans if span.control).split())


def client_text(spans: Sequence[Span]) -> str:
    return "".join("".join(span.text for span in spans if not span.control).split())


def prompt(
    template: str,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None = None,
    thinking: bool | None = None,
    *,
    mode: Mapping[str, Any] | None = None,
    continue_final: bool = False,
    **keys: Any,
) -> str:
    """Render with a built-in template. `mode` is the entry's thinking, SWITCHED if `thinking` is not None."""
    if mode is None and thinking is not None:
        mode = SWITCHED
    entry = example_entry(template=template, thinking=mode, **keys)
    return joined(spans_of(entry, messages, tools, thinking, continue_final=continue_final))


@cache
def _templates(models_dir: Path) -> Templates:
    return Templates(models_dir)
