"""The built-in forms against texts written by hand from what is known of each model's prompt."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from server.errors import InvalidRequest, UnsupportedParameter
from server.templates import BUILTIN_TEMPLATES
from server.templates.environment import BUILTIN
from tests.server.templates.support import (
    ANSWERED,
    CALLED,
    F_JSON,
    G_JSON,
    LED,
    MANY,
    ONE,
    REASONED,
    TOOLS,
    Message,
    answer,
    call,
    prompt,
    result,
    system,
    user,
)

NANBEIGE = "你是南北阁，一款由BOSS直聘自主研发并训练的专业大语言模型。"
SMOL = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

C_ONE = "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\n"
C_MANY = (
    "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
    "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n"
)
C_LED = "<|im_start|>system\nS<|im_end|>\n" + C_MANY
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"

GRANITE_MANY = (
    "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\n<think></think>A1<|im_end|>\n"
    "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n"
)
GRANITE4_MANY = (
    "<|start_of_role|>user<|end_of_role|>U1<|end_of_text|>\n"
    "<|start_of_role|>assistant<|end_of_role|>A1<|end_of_text|>\n"
    "<|start_of_role|>user<|end_of_role|>U2<|end_of_text|>\n"
    "<|start_of_role|>assistant<|end_of_role|>"
)
LLAMA_MANY = (
    "<|start_header_id|>user<|end_header_id|>\n\nU1<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nA1<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nU2<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
GEMMA_MANY = "<|turn>user\nU1<turn|>\n<|turn>model\nA1<turn|>\n<|turn>user\nU2<turn|>\n<|turn>model\n"
RWKV_MANY = "User: U1\n\nAssistant: A1\n\nUser: U2\n\nAssistant:"

# form, conversation, thinking, prompt
CHATS: list[tuple[str, Sequence[Message], bool | None, str]] = [
    ("chatml", ONE, None, C_ONE),
    ("chatml", MANY, None, C_MANY),
    ("chatml", LED, None, C_LED),
    ("chatml", REASONED, None, C_MANY),
    ("qwen3-vl", ONE, None, C_ONE),
    ("qwen3-vl", LED, None, C_LED),
    ("smollm2", ONE, None, f"<|im_start|>system\n{SMOL}<|im_end|>\n" + C_ONE),
    ("smollm2", MANY, None, f"<|im_start|>system\n{SMOL}<|im_end|>\n" + C_MANY),
    ("smollm2", LED, None, C_LED),
    ("smollm2", [system(""), *ONE], None, "<|im_start|>system\n<|im_end|>\n" + C_ONE),
    ("qwen3", ONE, None, C_ONE),
    ("qwen3", LED, True, C_LED),
    ("qwen3", LED, False, C_LED + EMPTY_THOUGHT),
    ("qwen3", REASONED, True, C_MANY),
    ("nanbeige", ONE, None, f"<|im_start|>system\n{NANBEIGE}<|im_end|>\n" + C_ONE),
    ("nanbeige", LED, None, C_LED),
    ("nanbeige", REASONED, None, f"<|im_start|>system\n{NANBEIGE}<|im_end|>\n" + C_MANY),
    ("nanbeige", LED, False, C_LED),
    ("minicpm5", ONE, None, "<s>" + C_ONE),
    ("minicpm5", LED, None, "<s>" + C_LED),
    ("minicpm5", MANY, False, "<s>" + C_MANY + EMPTY_THOUGHT),
    ("minicpm5", REASONED, True, "<s>" + C_MANY + "<think>\n"),
    ("kanana2", ONE, None, C_ONE + EMPTY_THOUGHT),
    ("kanana2", LED, False, C_LED + EMPTY_THOUGHT),
    ("kanana2", REASONED, True, C_MANY),
    ("granite4.2", ONE, None, "<|im_start|>system\n<|im_end|>\n" + C_ONE + "<think>\n"),
    ("granite4.2", MANY, True, "<|im_start|>system\n<|im_end|>\n" + GRANITE_MANY + "<think>\n"),
    ("granite4.2", LED, False, "<|im_start|>system\nS<|im_end|>\n" + GRANITE_MANY + "<think></think>"),
    ("granite4.2", REASONED, None, "<|im_start|>system\n<|im_end|>\n" + GRANITE_MANY + "<think>\n"),
    ("granite4", MANY, None, GRANITE4_MANY),
    ("granite4", LED, None, "<|start_of_role|>system<|end_of_role|>S<|end_of_text|>\n" + GRANITE4_MANY),
    ("lfm2", ONE, None, "<|startoftext|>" + C_ONE),
    ("lfm2", LED, None, "<|startoftext|>" + C_LED),
    ("lfm3", MANY, None, "<|startoftext|>" + C_MANY),
    ("lfm3", LED, False, "<|startoftext|>" + C_LED),
    ("lfm3", REASONED, True, "<|startoftext|>" + C_MANY),
    ("llama3", MANY, None, "<|begin_of_text|>" + LLAMA_MANY),
    (
        "llama3",
        [system("  S\n"), *MANY],
        None,
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>" + LLAMA_MANY,
    ),
    ("gemma4", MANY, None, "<bos>" + GEMMA_MANY),
    ("gemma4", [system(" S "), *MANY], False, "<bos><|turn>system\nS<turn|>\n" + GEMMA_MANY),
    ("gemma4", LED, True, "<bos><|turn>system\n<|think|>\nS<turn|>\n" + GEMMA_MANY),
    ("gemma4", REASONED, True, "<bos><|turn>system\n<|think|>\n<turn|>\n" + GEMMA_MANY),
    ("rwkv", ONE, None, "User: U1\n\nAssistant:"),
    ("rwkv", MANY, None, RWKV_MANY),
    ("rwkv", LED, False, "System: S\n\n" + RWKV_MANY + " <think></think>\n"),
    ("rwkv", REASONED, True, RWKV_MANY + " <think"),
    ("rwkv", [user("a\n\n\r\n\r\r\nb\n")], None, "User: a\nb\n\nAssistant:"),
    ("rwkv", [user("a\n\nUser: b")], None, "User: a\nUser: b\n\nAssistant:"),
    ("rwkv", [user("U1"), answer(""), user("U2")], None, "User: U1\n\nAssistant:\n\nUser: U2\n\nAssistant:"),
]


@pytest.mark.parametrize(("form", "messages", "thinking", "expected"), CHATS)
def test_chat(form: str, messages: Sequence[Message], thinking: bool | None, expected: str) -> None:
    assert prompt(form, messages, thinking=thinking) == expected


HERMES_CALLS = (
    '<tool_call>\n{"name": "f", "arguments": {"city": "New York", "n": 3, "ok": true, "code": "a<b", '
    '"list": [1, "x"]}}\n</tool_call>\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
)
HERMES_RESULTS = (
    "<tool_response>\nT1\n</tool_response>\n<tool_response>\nT2\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\n"
)
C_END = "A2<|im_end|>\n<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n"
C_CALLS = f"A1\n{HERMES_CALLS}<|im_end|>\n<|im_start|>user\n" + HERMES_RESULTS
XML_CALLS = (
    '<function name="f"><param name="city">New York</param><param name="n">3</param>'
    '<param name="ok">true</param><param name="code"><![CDATA[a<b]]></param>'
    '<param name="list">[1, "x"]</param></function>\n<function name="g"></function>'
)
GRANITE_CALLS = (
    "A1\n<tool_call>\n<function=f>\n<parameter=city>\nNew York\n</parameter>\n"
    "<parameter=n>\n3\n</parameter>\n"
    "<parameter=ok>\ntrue\n</parameter>\n<parameter=code>\na<b\n</parameter>\n"
    '<parameter=list>\n[1, "x"]\n</parameter>\n</function>\n</tool_call>\n'
    "<tool_call>\n<function=g>\n</function>\n</tool_call>\n<|im_end|>\n"
    "<|im_start|>user\n<tool_response>\nT1\n</tool_response>\n<tool_response>\nT2\n</tool_response>\n<|im_end|>\n"
    "<|im_start|>assistant\n"
)
LFM_CALLS = (
    '<|tool_call_start|>[f(city="New York", n=3, ok=True, code="a<b", list=[1, "x"]), g()]<|tool_call_end|>A1'
)
NO_SYSTEM = "<|im_start|>system\n<|im_end|>\n"

# form, conversation, thinking, prompt
HISTORIES: list[tuple[str, Sequence[Message], bool | None, str]] = [
    ("chatml", CALLED, None, C_ONE + C_CALLS),
    ("chatml", ANSWERED, None, C_ONE + C_CALLS + C_END),
    ("qwen3", CALLED, True, C_ONE + "<think>\nR1\n</think>\n\n" + C_CALLS),
    ("qwen3", ANSWERED, True, C_ONE + C_CALLS + C_END),
    ("kanana2", ANSWERED, False, C_ONE + C_CALLS + C_END + EMPTY_THOUGHT),
    (
        "nanbeige",
        CALLED,
        None,
        f"<|im_start|>system\n{NANBEIGE}<|im_end|>\n" + C_ONE + "<think>\nR1\n</think>\n\n" + C_CALLS,
    ),
    (
        "minicpm5",
        ANSWERED,
        None,
        "<s>" + C_ONE + f"A1\n{XML_CALLS}<|im_end|>\n<|im_start|>user\n" + HERMES_RESULTS + C_END,
    ),
    (
        "granite4.2",
        CALLED,
        False,
        NO_SYSTEM + C_ONE + "<think>\nR1\n</think>\n" + GRANITE_CALLS + "<think></think>",
    ),
    (
        "granite4.2",
        ANSWERED,
        True,
        NO_SYSTEM + C_ONE + "<think></think>" + GRANITE_CALLS + "<think></think>" + C_END + "<think>\n",
    ),
    (
        "granite4",
        ANSWERED,
        None,
        "<|start_of_role|>user<|end_of_role|>U1<|end_of_text|>\n"
        f"<|start_of_role|>assistant<|end_of_role|>A1\n{HERMES_CALLS}<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>\n<tool_response>\nT1\n</tool_response>\n"
        "<tool_response>\nT2\n</tool_response><|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>A2<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>U2<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    ),
    (
        "lfm2",
        ANSWERED,
        None,
        f"<|startoftext|>{C_ONE}{LFM_CALLS}<|im_end|>\n"
        "<|im_start|>tool\n<|tool_response_start|>T1<|tool_response_end|><|im_end|>\n"
        "<|im_start|>tool\n<|tool_response_start|>T2<|tool_response_end|><|im_end|>\n"
        "<|im_start|>assistant\n" + C_END,
    ),
    (
        "lfm3",
        CALLED,
        None,
        f"<|startoftext|>{C_ONE}{LFM_CALLS}<|im_end|>\n<|im_start|>tool\nT1<|im_end|>\n"
        "<|im_start|>tool\nT2<|im_end|>\n<|im_start|>assistant\n",
    ),
]


@pytest.mark.parametrize(("form", "messages", "thinking", "expected"), HISTORIES)
def test_tool_history(form: str, messages: Sequence[Message], thinking: bool | None, expected: str) -> None:
    assert prompt(form, messages, thinking=thinking) == expected


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (
            "chatml",
            'U1<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{"name": "f", "arguments": x}\n</tool_call>',
        ),
        ("minicpm5", 'U1<|im_end|>\n<|im_start|>assistant\n<function name="f">x</function>'),
        (
            "granite4.2",
            "assistant\n<think></think>\n<tool_call>\n<function=f>\nx\n</function>\n</tool_call>\n",
        ),
        ("lfm2", "assistant\n<|tool_call_start|>[f(x)]<|tool_call_end|><|im_end|>"),
    ],
)
def test_arguments_that_are_no_object_stay_text(form: str, expected: str) -> None:
    messages = [user("U1"), answer("", tool_calls=[call("f", "x")]), result("T")]
    assert expected in prompt(form, messages)


HERMES_INTRO = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n"
)
SIGNATURES = f"<tools>\n{F_JSON}\n{G_JSON}\n</tools>"
HERMES_TOOLS = (
    f"{HERMES_INTRO}{SIGNATURES}\n\n"
    "For each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
GRANITE4_TOOLS = (
    "You are a helpful assistant with access to the following tools. You may call one or more tools to "
    "assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n"
    f"{SIGNATURES}\n\nFor each tool call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>. '
    "If a tool does not exist in the provided list of tools, notify the user that you do not have the "
    "ability to fulfill the request."
)
MINICPM_TOOLS = (
    "# Tools\n\nYou are provided with function signatures within <tools></tools> XML tags:\n"
    f"{SIGNATURES}\n\nTool usage guidelines:\n"
    "- You may call zero or more functions. If no function calls are needed, just answer normally and do not "
    "include any <function ... </function>.\n"
    "- When calling a function, return an XML object within <function ... </function> using:\n"
    '<function name="function-name"><param name="param-name">param-value</param></function>\n'
    "- param-value may be multi-line. If it contains <, & or newline characters, wrap it in a CDATA block: "
    '<param name="param-name"><![CDATA[...multi-line value...]]></param>'
)

# form, conversation, prompt
LISTS: list[tuple[str, Sequence[Message], str]] = [
    ("chatml", ONE, f"<|im_start|>system\n{HERMES_TOOLS}<|im_end|>\n" + C_ONE),
    ("chatml", LED, f"<|im_start|>system\nS\n\n{HERMES_TOOLS}<|im_end|>\n" + C_MANY),
    ("smollm2", ONE, f"<|im_start|>system\n{SMOL}\n\n{HERMES_TOOLS}<|im_end|>\n" + C_ONE),
    ("minicpm5", LED, f"<s><|im_start|>system\nS\n\n{MINICPM_TOOLS}<|im_end|>\n" + C_MANY),
    ("minicpm5", ONE, f"<s><|im_start|>system\n{MINICPM_TOOLS}<|im_end|>\n" + C_ONE),
    (
        "granite4",
        ONE,
        f"<|start_of_role|>system<|end_of_role|>{GRANITE4_TOOLS}<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>U1<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    ),
    (
        "lfm2",
        LED,
        "<|startoftext|><|im_start|>system\nS\nList of tools: "
        f"<|tool_list_start|>[{F_JSON}, {G_JSON}]<|tool_list_end|><|im_end|>\n" + C_MANY,
    ),
    (
        "lfm3",
        ONE,
        f"<|startoftext|><|im_start|>system\nList of tools: [{F_JSON}, {G_JSON}]<|im_end|>\n" + C_ONE,
    ),
]


@pytest.mark.parametrize(("form", "messages", "expected"), LISTS)
def test_list_of_tools(form: str, messages: Sequence[Message], expected: str) -> None:
    assert prompt(form, messages, TOOLS) == expected


def test_nanbeige_has_another_default_with_tools() -> None:
    text = prompt("nanbeige", ONE, TOOLS)
    assert text.startswith("<|im_start|>system\n你是一位工具函数调用专家，")
    assert text.endswith(f"使用自然语言回复用户。\n\n{HERMES_TOOLS}<|im_end|>\n" + C_ONE)


def test_granite42_lists_schemas_and_shows_its_dialect() -> None:
    text = prompt("granite4.2", LED, TOOLS)
    assert text.startswith("<|im_start|>system\nS\n\n# Tools\n\n")
    assert SIGNATURES in text
    assert "<tool_call>\n<function=function_name>\n<parameter=parameter_name>\nvalue\n</parameter>\n" in text


@pytest.mark.parametrize("form", ["kanana2", "llama3", "gemma4", "rwkv"])
def test_tools_without_a_form_are_refused(form: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        prompt(form, ONE, TOOLS)
    assert caught.value.param == "tools"


@pytest.mark.parametrize("form", ["llama3", "gemma4", "rwkv"])
@pytest.mark.parametrize("messages", [CALLED[:2], [user("U1"), result("T1")]])
def test_tool_history_without_a_form_is_refused(form: str, messages: Sequence[Message]) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        prompt(form, messages)
    assert caught.value.param == "messages"


def test_system_turns_may_stand_in_the_middle() -> None:
    messages = [user("U1"), answer("A1"), system("S2"), user("U2")]
    assert prompt("chatml", messages) == (
        "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
        "<|im_start|>system\nS2<|im_end|>\n<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n"
    )


def test_options_change_what_stands_at_the_beginning() -> None:
    options = {"bos": "<b>", "default_system": "D"}
    led = "<b><|im_start|>system\nD<|im_end|>\n"
    assert prompt("chatml", ONE, template_options=options) == led + C_ONE
    assert prompt("minicpm5", ONE, template_options=options) == led + C_ONE
    assert prompt("smollm2", ONE, template_options=options) == led + C_ONE
    assert prompt("chatml", LED, template_options=options) == "<b>" + C_LED
    assert prompt("minicpm5", ONE, template_options={"bos": ""}) == C_ONE


@pytest.mark.parametrize(
    ("mode", "end"),
    [
        ({"default": True, "switch": "enable_thinking"}, "<think>\n"),
        ({"default": False, "switch": "enable_thinking"}, EMPTY_THOUGHT),
        ({"default": True, "switch": None}, ""),
        (None, ""),
    ],
)
def test_the_entrys_default_counts_where_a_request_says_nothing(
    mode: dict[str, object] | None, end: str
) -> None:
    assert prompt("minicpm5", ONE, mode=mode) == "<s>" + C_ONE + end


# form, thinking, prompt
CONTINUED = [
    ("chatml", None, "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1 "),
    (
        "smollm2",
        None,
        f"<|im_start|>system\n{SMOL}<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1 ",
    ),
    ("qwen3", False, f"<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\n{EMPTY_THOUGHT}A1 "),
    (
        "granite4.2",
        False,
        f"{NO_SYSTEM}<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\n<think></think>A1 ",
    ),
    ("llama3", None, "<|begin_of_text|>" + LLAMA_MANY.partition("A1")[0] + "A1 "),
    ("rwkv", None, "User: U1\n\nAssistant: A1 "),
]


@pytest.mark.parametrize(("form", "thinking", "expected"), CONTINUED)
def test_an_answer_goes_on_where_it_ends(form: str, thinking: bool | None, expected: str) -> None:
    assert prompt(form, [user("U1"), answer("A1 ")], thinking=thinking, continue_final=True) == expected


def test_only_an_answer_can_be_continued() -> None:
    with pytest.raises(InvalidRequest, match="last message"):
        prompt("chatml", ONE, continue_final=True)


def test_every_form_has_a_file_and_every_file_a_name() -> None:
    files = {path.stem for path in BUILTIN.glob("*.jinja")}
    assert {name for name in files if not name.startswith("_")} == BUILTIN_TEMPLATES
