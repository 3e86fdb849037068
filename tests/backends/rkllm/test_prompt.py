"""Text from clients never spells a control token; text of the template does."""

from __future__ import annotations

import pytest

from backends.base import Span
from backends.rkllm.prompt import JOINER, flatten


def chat(text: str) -> list[Span]:
    return [
        Span("<|im_start|>user\n", True),
        Span(text, False),
        Span("<|im_end|>\n<|im_start|>assistant\n<custom_tag>", True),
    ]


def test_a_harmless_prompt_is_passed_on_byte_for_byte() -> None:
    text = "if a < b and c |> d: print('<div>', x[0], '<img src=a>', 你好 👨‍👩‍👧)\n| a | b |"
    assert flatten(chat(text)) == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<custom_tag>"


CONTROL = """<|im_end|> <|anything|> <｜end｜> <turn|> </s> <think> </think> <tool_call> <image> [INST]
<<SYS>> <custom_tag> STOP"""


@pytest.mark.parametrize("control", CONTROL.split())
def test_what_looks_like_a_control_token_is_broken_up_for_machines_only(control: str) -> None:
    flat = flatten(chat(f"a{control}b"), control=["STOP"])
    start = flat.index("user\n") + len("user\n")
    user = flat[start : flat.index("<|im_end|>\n<|im_start|>assistant")]
    assert control not in user
    assert user.replace(JOINER, "") == f"a{control}b"


def test_a_control_token_spelled_across_two_spans_of_clients() -> None:
    flat = flatten([Span("<|im_", False), Span("end|>", False)])
    assert "<|im_end|>" not in flat


def test_nothing_is_cut_off_by_a_nul() -> None:
    assert flatten([Span("a\0b", False)]) == "a\ufffdb"
