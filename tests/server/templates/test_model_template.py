"""The template that came with a model: found, read, compiled, and refused with file and line if broken."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from server.templates import BUILTIN_TEMPLATES, TemplateError, Templates
from tests.server.examples import example_entry
from tests.server.templates.support import LED, MANY, ONE, Message, joined, prompt, user

FIXTURE = Path(__file__).parent / "fixtures" / "smollm2" / "chat_template.jinja"
TELLS = "{{ bos_token }}|{{ eos_token }}|{{ messages[0].content }}"

SMOL_ONE = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\n"
)
SMOL_LED = (
    "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU1<|im_end|>\n<|im_start|>assistant\nA1<|im_end|>\n"
    "<|im_start|>user\nU2<|im_end|>\n<|im_start|>assistant\n"
)


def _installed(models_dir: Path, files: dict[str, str], folder: str = ".") -> None:
    directory = models_dir / "example" / folder
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(("messages", "expected"), [(ONE, SMOL_ONE), (LED, SMOL_LED)])
def test_smollm2s_own_template(messages: Sequence[Message], expected: str, tmp_path: Path) -> None:
    _installed(tmp_path, {"chat_template.jinja": FIXTURE.read_text(encoding="utf-8")})
    own = joined(Templates(tmp_path).render(example_entry(template="model"), messages))
    assert own == expected
    assert prompt("smollm2", messages) == expected


def test_a_template_in_the_tokenizers_settings(tmp_path: Path) -> None:
    settings = {"chat_template": TELLS, "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
    _installed(tmp_path, {"tokenizer_config.json": json.dumps(settings)})
    assert joined(Templates(tmp_path).render(example_entry(template="model"), ONE)) == "<s>|</s>|U1"


def test_the_one_called_default_of_several(tmp_path: Path) -> None:
    several = [{"name": "rag", "template": "no"}, {"name": "default", "template": TELLS}]
    _installed(tmp_path, {"tokenizer_config.json": json.dumps({"chat_template": several})})
    assert joined(Templates(tmp_path).render(example_entry(template="model"), ONE)) == "||U1"


def test_a_file_of_its_own_goes_before_the_settings_and_takes_the_tokens_from_them(tmp_path: Path) -> None:
    settings = {"chat_template": "no", "bos_token": "<s>", "eos_token": None}
    _installed(tmp_path, {"chat_template.jinja": TELLS, "tokenizer_config.json": json.dumps(settings)})
    entry = example_entry(template="model", eos=[7, "<end>"])
    assert joined(Templates(tmp_path).render(entry, ONE)) == "<s>|<end>|U1"
    entry = example_entry(template="model", template_options={"bos": "<b>"})
    assert joined(Templates(tmp_path).render(entry, ONE)) == "<b>||U1"


def test_a_folder_inside_the_models_directory_and_beside_a_file(tmp_path: Path) -> None:
    _installed(tmp_path, {"chat_template.jinja": "in {{ messages[0].content }}"}, "sub")
    hybrid = example_entry(template="model", folder="sub")
    assert joined(Templates(tmp_path).render(hybrid, ONE)) == "in U1"
    rkllm = example_entry(template="model", backend="rkllm", folder=None, file="sub/x.rkllm")
    assert joined(Templates(tmp_path).render(rkllm, ONE)) == "in U1"


def test_a_path_of_its_own(tmp_path: Path) -> None:
    _installed(tmp_path, {"own.jinja": "own {{ messages[0].content }}"})
    assert joined(Templates(tmp_path).render(example_entry(template="own.jinja"), ONE)) == "own U1"
    absolute = str(tmp_path / "example" / "own.jinja")
    assert joined(Templates(Path("/nowhere")).render(example_entry(template=absolute), ONE)) == "own U1"


def test_a_default_system_text_for_a_template_that_has_none(tmp_path: Path) -> None:
    _installed(tmp_path, {"own.jinja": "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"})
    entry = example_entry(template="own.jinja", template_options={"default_system": "D"})
    templates = Templates(tmp_path)
    assert joined(templates.render(entry, ONE)) == "<system>D<user>U1"
    assert joined(templates.render(entry, LED[:2])) == "<system>S<user>U1"


def test_the_switch_is_called_as_the_entry_says(tmp_path: Path) -> None:
    _installed(tmp_path, {"own.jinja": "{{ deep is defined }}{{ deep }}{{ enable_thinking is defined }}"})
    templates = Templates(tmp_path)
    entry = example_entry(template="own.jinja", thinking={"default": True, "switch": "deep"})
    assert joined(templates.render(entry, ONE)) == "TrueTrueFalse"
    assert joined(templates.render(entry, ONE, thinking=False)) == "TrueFalseFalse"
    assert joined(templates.render(example_entry(template="own.jinja"), ONE, thinking=True)) == "FalseFalse"


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    templates, entry = Templates(tmp_path), example_entry(template="own.jinja")
    _installed(tmp_path, {"own.jinja": "one"})
    assert joined(templates.render(entry, ONE)) == "one"
    _installed(tmp_path, {"own.jinja": "two"})
    os.utime(tmp_path / "example" / "own.jinja", ns=(1, 1))
    assert joined(templates.render(entry, ONE)) == "two"


def test_changed_tokens_beside_the_template_are_seen(tmp_path: Path) -> None:
    templates, entry = Templates(tmp_path), example_entry(template="model")
    _installed(tmp_path, {"chat_template.jinja": "{{ bos_token }}|"})
    assert joined(templates.render(entry, ONE)) == "|"
    _installed(tmp_path, {"tokenizer_config.json": '{"bos_token": "<a>"}'})
    assert joined(templates.render(entry, ONE)) == "<a>|"
    _installed(tmp_path, {"tokenizer_config.json": '{"bos_token": "<b>"}'})
    os.utime(tmp_path / "example" / "tokenizer_config.json", ns=(1, 1))
    assert joined(templates.render(entry, ONE)) == "<b>|"
    (tmp_path / "example" / "tokenizer_config.json").unlink()
    assert joined(templates.render(entry, ONE)) == "|"


@pytest.mark.parametrize(
    ("files", "template", "told"),
    [
        ({}, "model", ["chat_template.jinja", "example", "Pull the model"]),
        ({}, "own.jinja", ["own.jinja", "example", "template key"]),
        ({"own.jinja": "a\nb\n{% if %}"}, "own.jinja", ["own.jinja", "line 3", "does not compile"]),
        ({"own.jinja": "a\n{{ x | nosuch }}"}, "own.jinja", ["own.jinja", "line 2", "nosuch"]),
        ({"tokenizer_config.json": "{"}, "model", ["tokenizer_config.json", "JSON"]),
        ({"tokenizer_config.json": "[]"}, "model", ["tokenizer_config.json", "object"]),
        ({"tokenizer_config.json": '{"chat_template": 3}'}, "model", ["tokenizer_config.json", "default"]),
        ({"tokenizer_config.json": '{"chat_template": [3, {"name": "x"}]}'}, "model", ["default"]),
        (
            {"tokenizer_config.json": '{"chat_template": "{% for %}"}'},
            "model",
            ["tokenizer_config.json", "line 1"],
        ),
        ({"tokenizer_config.json": "[" * 100_000}, "model", ["tokenizer_config.json", "JSON"]),
    ],
)
def test_what_is_wrong_with_a_template_is_told_at_start(
    files: dict[str, str], template: str, told: list[str], tmp_path: Path
) -> None:
    _installed(tmp_path, files)
    with pytest.raises(TemplateError) as caught:
        Templates(tmp_path).check(example_entry(template=template))
    assert all(part in caught.value.message for part in told), caught.value.message


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    _installed(tmp_path, {})
    (tmp_path / "example" / "own.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(TemplateError, match=r"own\.jinja"):
        Templates(tmp_path).check(example_entry(template="own.jinja"))


def test_the_built_in_ones_compile(tmp_path: Path) -> None:
    templates = Templates(tmp_path)
    for name in BUILTIN_TEMPLATES:
        templates.check(example_entry(template=name))


def test_rendering_from_many_threads(tmp_path: Path) -> None:
    templates, entry = Templates(tmp_path), example_entry(template="qwen3")
    texts = [f"question {number} " * 50 for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        prompts = list(pool.map(lambda text: joined(templates.render(entry, [*MANY, user(text)])), texts))
    head = prompt("qwen3", MANY)
    assert prompts == [
        head.removesuffix("<|im_start|>assistant\n")
        + f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        for text in texts
    ]
