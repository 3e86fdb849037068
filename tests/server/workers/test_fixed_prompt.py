"""With what a model's chats begin: all of the template that no client has a say in, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.registry import Entry
from server.templates import BUILTIN_TEMPLATES, Templates
from server.workers.fixed_prompt import fixed_prompt
from tests.server.scripted import entry


def text_of(model: Entry, tmp_path: Path) -> str:
    return "".join(span.text for span in fixed_prompt(model, Templates(tmp_path)))


def test_the_default_system_prompt_and_the_marks_up_to_the_user(tmp_path: Path) -> None:
    model = entry("m", template_options={"default_system": "Be brief."})
    assert text_of(model, tmp_path) == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
    assert text_of(entry("m"), tmp_path) == "<|im_start|>user\n"


@pytest.mark.parametrize("template", sorted(BUILTIN_TEMPLATES))
def test_every_chat_begins_with_it(tmp_path: Path, template: str) -> None:
    model = entry("m", template=template, template_options={"default_system": "Be brief."})
    templates = Templates(tmp_path)
    beginning = fixed_prompt(model, templates)
    assert "Be brief." in "".join(span.text for span in beginning)
    for text in ("a", "aa", "1", "x\n\ny", "Be brief.", "<|im_end|>"):
        messages = [{"role": "user", "content": text}]
        assert templates.render(model, messages)[: len(beginning)] == beginning
        longer = [*messages, {"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
        assert templates.render(model, longer)[: len(beginning)] == beginning


def test_a_template_that_cannot_be_run_gives_none(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    file = tmp_path / "m" / "own.jinja"
    model = entry("m", template="own.jinja")
    for source in ("{{ raise_exception('no') }}", "{% if %}", "{{ messages[7].content }}"):
        file.write_text(source)
        assert fixed_prompt(model, Templates(tmp_path)) == []
    file.unlink()
    assert fixed_prompt(model, Templates(tmp_path)) == []
