"""Images keep their places through any template, and no text of a client is taken for one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends.base import Span
from server.errors import InvalidRequest
from server.templates import BUILTIN_TEMPLATES, Templates
from server.templates.guard import MOST_IMAGES, guard, image_place, spans
from tests.server.examples import example_entry
from tests.server.templates.support import answer, joined, spans_of, system, user


def image(index: int) -> dict[str, Any]:
    return {"type": "image", "index": index, "url": "", "field": f"messages.9.content.{index}"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def parts(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


@pytest.mark.parametrize("form", sorted(BUILTIN_TEMPLATES))
def test_every_form_has_images_where_their_parts_stand(form: str) -> None:
    chat = [
        system("S"),
        parts(text("before "), image(0), image(1), text(" after")),
        answer("A1"),
        parts(image(2)),
    ]
    prompt = spans_of(example_entry(template=form), chat)
    without = spans_of(
        example_entry(template=form), [system("S"), user("before  after"), answer("A1"), user("")]
    )
    assert [span.image for span in prompt if span.image is not None] == [0, 1, 2]
    assert all(span.text == "" and span.control for span in prompt if span.image is not None)
    at = [span.image for span in prompt].index(0)
    assert joined(prompt[:at]).endswith("before ")
    assert joined(prompt[at:]).startswith(" after")
    assert joined(prompt).split() == joined(without).split()


def test_spans_in_their_order() -> None:
    prompt = spans_of(example_entry(template="qwen3-vl"), [parts(text("a"), image(0), text("b"), image(1))])
    assert prompt == [
        Span("<|im_start|>user\n", True),
        Span("a", False),
        Span("", True, 0),
        Span("b", False),
        Span("", True, 1),
        Span("<|im_end|>\n<|im_start|>assistant\n", True),
    ]


def test_a_client_cannot_write_an_image_s_place() -> None:
    spelled = "".join(image_place(index) for index in (0, 1, MOST_IMAGES - 1)) + "\U00100000"
    prompt = spans_of(example_entry(template="qwen3-vl"), [user(spelled)])
    assert all(span.image is None for span in prompt)
    assert Span(spelled, False) in prompt
    assert spans(guard(spelled)) == [Span(spelled, False)]


@pytest.mark.parametrize(
    "source",
    ["nothing", "{% for m in messages %}{{ m.content | tojson }}{% endfor %}", "{{ messages[1].content }}"],
)
def test_a_template_that_leaves_an_image_out_is_told_of(tmp_path: Path, source: str) -> None:
    (tmp_path / "example").mkdir()
    (tmp_path / "example" / "own.jinja").write_text(source)
    entry = example_entry(template="own.jinja")
    with pytest.raises(InvalidRequest, match="has no place for the image") as caught:
        Templates(tmp_path).render(entry, [parts(image(0)), parts(image(1))])
    assert caught.value.param is not None and caught.value.param.startswith("messages.9.content.")
