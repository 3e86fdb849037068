"""Images on their way into a job: which go along, under which number, and which requests are refused."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from backends.base import Image, Span
from server.errors import FormNotMet, UnsupportedParameter
from server.generation.params import placed_images
from server.generation.request import Constraint, GenerationRequest
from server.generation.service import GenerationService
from server.generation.structured import take_form
from server.images.loader import ImageLoader
from server.registry import Entry, Registry
from server.settings import Settings
from server.templates import Templates
from server.templates.messages import images_of
from tests.server.scripted import ScriptedDispatcher, entry, install, says
from tests.vision.pictures import quadrants, saved
from tests.vision.test_fetch import answer, site

PICTURES = [saved(quadrants(8 + n, 8)) for n in range(3)]
VISION = {"file": "encoder.onnx", "size": (448, 448)}


def picture(index: int) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(PICTURES[index]).decode()
    return {"type": "image", "index": index, "url": url, "field": f"messages.{2 * index}.content.0"}


def turns() -> list[dict[str, Any]]:
    chat: list[dict[str, Any]] = []
    for index in range(3):
        chat.append({"role": "user", "content": [picture(index), {"type": "text", "text": "what?"}]})
        chat.append({"role": "assistant", "content": "that"})
    return chat[:-1]


class Counting(ScriptedDispatcher):
    """Counts 100 tokens an image and one a character."""

    async def count(self, entry: Entry, prompt: Sequence[Span]) -> int | None:
        return sum(100 if span.image is not None else len(span.text) for span in prompt)


def service(
    directory: Path, loader: ImageLoader | None = None, **keys: Any
) -> tuple[GenerationService, Counting]:
    known = {"backend": "rkllm", "vision": VISION, "capabilities": ("chat", "vision")}
    model = entry("viewer", **(known | keys))
    install(model, directory)
    if model.vision is not None:
        (model.path(directory).parent / model.vision.file).write_bytes(b"graph")
    dispatcher = Counting()
    settings = Settings(models_dir=directory)
    registry = Registry({"viewer": model}, directory)
    return GenerationService(settings, registry, Templates(directory), dispatcher, loader), dispatcher


def request() -> GenerationRequest:
    return GenerationRequest(model="viewer", messages=turns(), client="c", n=2)


async def test_all_images_go_along_with_each_answer(tmp_path: Path) -> None:
    generations, dispatcher = service(tmp_path)
    generation = await generations.prepare(request())
    assert [event async for event in generation.events()]
    for params in dispatcher.jobs[-1].params:
        assert params.images == [
            Image(data, f"messages.{2 * index}.content.0") for index, data in enumerate(PICTURES)
        ]
        assert [span.image for span in params.prompt if span.image is not None] == [0, 1, 2]


async def test_images_of_turns_that_are_left_out_stay_behind(tmp_path: Path) -> None:
    generations, dispatcher = service(
        tmp_path, overflow="truncate_oldest", context_length=300, max_tokens=50, template="chatml"
    )
    generation = await generations.prepare(request())
    assert generation.dropped == ("messages",)
    assert [event async for event in generation.events()]
    (params, _) = dispatcher.jobs[-1].params
    assert params.images == [Image(PICTURES[2], "messages.4.content.0")]
    assert [span.image for span in params.prompt if span.image is not None] == [0]


async def test_images_are_fetched_for_models_that_see_and_for_no_other(tmp_path: Path) -> None:
    async with site() as web:
        web.pages["/a.png"] = answer("200 OK", PICTURES[0])
        part = picture(0) | {"url": web.url("/a.png")}
        asked = GenerationRequest(model="viewer", messages=[{"role": "user", "content": [part]}], client="c")
        loader = ImageLoader(Settings(image_urls=True), web.fetcher())
        generations, dispatcher = service(tmp_path / "a", loader)
        generation = await generations.prepare(asked)
        assert [event async for event in generation.events()]
        assert dispatcher.jobs[-1].params[0].images == [Image(PICTURES[0], "messages.0.content.0")]
        blind, _ = service(tmp_path / "b", loader, vision=None, capabilities=("chat",))
        with pytest.raises(UnsupportedParameter):
            await blind.prepare(asked)
        assert len(web.asked) == 1


@pytest.mark.parametrize("text_last", [True, False])
async def test_a_form_is_asked_for_beside_an_image(tmp_path: Path, text_last: bool) -> None:
    parts = [picture(0), {"type": "text", "text": "what?"}]
    wanted = Constraint("choice", "form", form="choice", value=["a", "b"])
    asked = GenerationRequest(
        model="viewer",
        messages=[{"role": "user", "content": parts if text_last else parts[::-1]}],
        client="c",
        constraints=(wanted,),
    )
    model = entry("viewer", backend="rkllm", rkllm={"structured": "best_effort"})
    request, form = await take_form(asked, model)
    assert form is not None
    assert images_of(request.messages) == [picture(0)]
    texts = [part["text"] for part in request.messages[0]["content"] if part["type"] == "text"]
    assert "".join(texts) == f"what?\n\n{form.instruction}"


async def test_what_is_asked_again_is_about_the_images_that_were_fetched(tmp_path: Path) -> None:
    async with site() as web:
        web.pages["/a.png"] = answer("200 OK", PICTURES[0])
        part = picture(0) | {"url": web.url("/a.png")}
        asked = GenerationRequest(
            model="viewer",
            messages=[{"role": "user", "content": [part]}],
            client="c",
            n=2,
            constraints=(Constraint("choice", "form", form="choice", value=["a", "b"]),),
        )
        loader = ImageLoader(Settings(image_urls=True), web.fetcher())
        generations, dispatcher = service(tmp_path, loader, rkllm={"structured": "best_effort"})
        dispatcher.script = says("neither")
        generation = await generations.prepare(asked)
        with pytest.raises(FormNotMet):
            assert [event async for event in generation.events()]
        assert len(dispatcher.jobs) == 2 and len(web.asked) == 1
        for params in dispatcher.jobs[1].params:
            assert params.images == [Image(PICTURES[0], "messages.0.content.0")]


def test_a_place_that_belongs_to_no_image_is_dropped() -> None:
    images = [Image(b"a", "x"), Image(b"b", "y")]
    prompt = [Span("", True, 1), Span("t", False), Span("", True, 7), Span("", True, 0), Span("", True, 1)]
    assert placed_images(prompt, images) == (
        [Span("", True, 0), Span("t", False), Span("", True, 1), Span("", True, 2)],
        [images[1], images[0], images[1]],
    )


async def test_an_entry_without_vision_and_one_whose_encoder_is_gone(tmp_path: Path) -> None:
    generations, _ = service(tmp_path / "a", vision=None, capabilities=("chat",))
    with pytest.raises(UnsupportedParameter, match="takes no images") as caught:
        await generations.prepare(request())
    assert caught.value.param == "messages.0.content.0"
    generations, _ = service(tmp_path / "b")
    encoder = tmp_path / "b" / "viewer" / "encoder.onnx"
    encoder.unlink()
    # Where that is on this machine is not the client's concern.
    wanted = r"at RKSERVE_MODELS_DIR/viewer/encoder\.onnx"
    with pytest.raises(UnsupportedParameter, match=wanted) as caught:
        await generations.prepare(request())
    assert str(tmp_path) not in caught.value.message  # clients are told no folders of the server
