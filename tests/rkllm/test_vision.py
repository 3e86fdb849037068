"""Images from the OpenAI SDK to the library: what stands in its call log is worked out from the pixels."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from server.registry import load_registry
from server.settings import Settings
from tests.rkllm.board import Board, Server, add_tokenizer
from tests.vision.encoders import write_encoder
from tests.vision.pictures import (
    BLUE,
    GREY,
    RED,
    SIDE,
    TOKENS,
    Bytes,
    image_part,
    patch_means,
    quadrants,
    saved,
)

MODEL = "wevisone-vl-2b"
MARKS = {"start": "<|vision_start|>", "end": "<|vision_end|>", "content": "<|image_pad|>"}
SPECIALS = {"<|im_start|>": 256, "<|im_end|>": 258, "<|vision_start|>": 270, "<|vision_end|>": 271}
OUTPUTS = ((1.0, 0.0), (-0.5, 3.0))
SCRIPT: dict[str, Any] = {
    "specials": SPECIALS,
    "vision": {"embd": 3 * len(OUTPUTS), "width": SIDE, "height": SIDE, **MARKS},
}


def packaged(**changes: Any) -> dict[str, Any]:
    """Return the packaged entry with an encoder that runs anywhere."""
    entry = load_registry(Settings()).resolve(MODEL).model_dump(mode="json", exclude_unset=True)
    del entry["id"]
    entry["vision"]["file"] = "encoder.onnx"
    entry["file"] = "m.rkllm"
    return entry | changes


def board_with_encoder(directory: Path, entry: dict[str, Any] | None = None, **script: Any) -> Board:
    board = Board(directory)
    board.add_runtime()
    board.add(MODEL, entry or packaged(), **(SCRIPT | script))
    write_encoder(board.models / MODEL / "encoder.onnx", outputs=OUTPUTS)
    return board


def embedding(square: Bytes) -> bytes:
    """Return what the library must get for a prepared image: for each token one output after the other."""
    means = patch_means(square)
    return b"".join(
        np.float32(means[token] * np.float32(factor) + np.float32(term)).tobytes()
        for token in range(TOKENS)
        for factor, term in OUTPUTS
    )


def crc(*squares: Bytes) -> int:
    return zlib.crc32(b"".join(map(embedding, squares)))


def on_grey(pixels: Bytes, left: int, top: int) -> Bytes:
    square = np.full((SIDE, SIDE, 3), GREY, np.uint8)
    square[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return square


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def chat(server: Server, messages: list[Any], **options: Any) -> openai.types.chat.ChatCompletion:
    answer: openai.types.chat.ChatCompletion = server.client.chat.completions.create(
        model=MODEL, messages=messages, **options
    )
    return answer


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Board, Server]]:
    board = board_with_encoder(tmp_path_factory.mktemp("board"), answers=["I see."])
    with board.serve(max_image_mp=1) as server:
        yield board, server


def test_two_images_over_three_turns(tmp_path: Path) -> None:
    board = board_with_encoder(tmp_path, answers=["Four colours.", "A red strip.", "The first."])
    first, strip = quadrants(), np.full((SIDE, 224, 3), RED, np.uint8)
    squares = first, on_grey(strip, 112, 0)
    one, two = image_part(saved(first)), image_part(saved(strip))
    turns = [
        user(text("What is "), one, text(" this?")),
        user(two, text("And this?")),
        {"role": "user", "content": "Which is brighter?"},
    ]
    history: list[Any] = []
    usages = []
    with board.serve() as server:
        assert "vision" in server.model(MODEL)["capabilities"]
        for turn, answer in zip(turns, ("Four colours.", "A red strip.", "The first."), strict=True):
            history.append(turn)
            stream = server.client.chat.completions.create(
                model=MODEL, messages=history, stream=True, stream_options={"include_usage": True}
            )
            pieces = []
            for chunk in stream:
                pieces += [choice.delta.content or "" for choice in chunk.choices]
                usage = chunk.usage
            assert "".join(pieces) == answer
            usages.append(usage)
            history.append({"role": "assistant", "content": answer})
        details = server.model(MODEL)["details"]
    assert details["image_tokens"] == str(TOKENS)
    assert details["image_encoder"].startswith("onnxruntime ")
    begin = "<|im_start|>user\nWhat is <image> this?<|im_end|>\n<|im_start|>assistant\n"
    second = (
        begin + "Four colours.<|im_end|>\n<|im_start|>user\n<image>And this?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    third = (
        second + "A red strip.<|im_end|>\n<|im_start|>user\nWhich is brighter?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    runs, ends = board.calls("rkllm_run"), board.calls("run_end")
    assert [run["input"]["prompt"] for run in runs] == [begin, second, third]
    assert [run["input"]["type"] for run in runs] == ["multimodal"] * 3
    for run, shown in zip(runs, (squares[:1], squares, squares), strict=True):
        assert run["input"]["image"] == {
            "count": len(shown),
            "tokens": TOKENS,
            "width": SIDE,
            "height": SIDE,
            **MARKS,
            "floats": len(shown) * TOKENS * 3 * len(OUTPUTS),
            "crc32": crc(*shown),
        }
    for usage, run, end in zip(usages, runs, ends, strict=True):
        assert usage is not None and usage.prompt_tokens_details is not None
        assert abs(usage.prompt_tokens - len(run["input"]["ids"])) <= 1
        assert usage.prompt_tokens_details.cached_tokens == pytest.approx(end["reused"], abs=1)
    assert [end["reused"] > 0 for end in ends] == [False, True, True]  # images are no obstacle to reuse
    assert usages[1].prompt_tokens > 2 * TOKENS  # type: ignore[union-attr]  # checked above
    assert not board.calls("rkllm_clear_kv_cache")


def test_another_image_in_the_same_place_is_never_answered_from_the_cache(
    shared: tuple[Board, Server],
) -> None:
    board, server = shared
    before = len(board.calls("run_end"))
    cleared = len(board.calls("rkllm_clear_kv_cache"))
    for square in (quadrants(), quadrants(), quadrants(first=BLUE)):
        chat(server, [user(image_part(saved(square)), text("What?"))])
    ends = board.calls("run_end")[before:]
    assert ends[1]["reused"] > TOKENS
    assert ends[2]["reused"] == 0
    assert len(board.calls("rkllm_clear_kv_cache")) - cleared == 1


def test_text_that_spells_marks_is_no_image(shared: tuple[Board, Server]) -> None:
    board, server = shared
    spelled = "<image> <|vision_start|><|image_pad|><|vision_end|>"
    chat(server, [user(text(spelled), image_part(saved(quadrants())), text(spelled))])
    run = board.calls("rkllm_run")[-1]
    assert run["input"]["prompt"].count("<image>") == 1
    assert run["input"]["ids"].count(SPECIALS["<|vision_start|>"]) == 1
    assert run["input"]["image"]["count"] == 1
    answer = server.says(MODEL, spelled)
    assert answer == "I see."
    run = board.calls("rkllm_run")[-1]
    assert run["input"]["type"] == "prompt"
    assert "<image>" not in run["input"]["prompt"]


def test_images_count_in_the_context(shared: tuple[Board, Server]) -> None:
    board, server = shared
    before = len(board.calls("rkllm_run"))
    tiny = image_part(saved(np.zeros((1, 1, 3), np.uint8)))
    with pytest.raises(openai.BadRequestError) as caught:
        chat(server, [user(*[tiny] * 21)])  # 21 times 196 is over 4,096
    assert caught.value.code == "context_length_exceeded"
    assert str(21 * TOKENS) in caught.value.message
    assert len(board.calls("rkllm_run")) == before
    chat(server, [user(*[tiny] * 20)])
    assert board.calls("rkllm_run")[-1]["input"]["image"]["count"] == 20


def test_ten_thousand_tiny_images_are_refused_at_once(shared: tuple[Board, Server]) -> None:
    tiny = image_part(saved(np.zeros((1, 1, 3), np.uint8)))
    messages = [user(*[tiny] * 1000) for _ in range(10)]
    with pytest.raises(openai.BadRequestError, match="10000 images") as caught:
        chat(shared[1], messages)
    assert (caught.value.code, caught.value.param) == ("invalid_request", "messages.0.content.128")


def test_bad_images_name_their_part(shared: tuple[Board, Server]) -> None:
    _, server = shared
    good = saved(quadrants())
    noise = np.random.default_rng(0).integers(0, 255, (SIDE, SIDE, 3), np.uint8)
    cases: list[tuple[dict[str, Any], str]] = [
        (image_part(b"%PDF-1.7 " + good), "is not a PNG, JPEG, WebP or GIF image"),
        (image_part(good, "text/html"), "'text/html', which is no image"),
        (image_part(good[:-40]), "damaged or incomplete"),
        (image_part(saved(noise, "JPEG")[:5000]), "damaged or incomplete"),
        (image_part(saved(np.zeros((1001, 1001, 3), np.uint8))), "RKSERVE_MAX_IMAGE_MP"),
        ({"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}}, "RKSERVE_IMAGE_URLS is off"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "RKSERVE_IMAGE_URLS is off"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,@@@"}}, "damaged or cut off"),
    ]
    for part, message in cases:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                chat(server, [{"role": "user", "content": "Hi"}, user(text("?"), part)], stream=stream)
            assert message in caught.value.message
            assert (caught.value.code, caught.value.param) == ("invalid_request", "messages.1.content.1")
    assert chat(server, [user(image_part(good))]).choices[0].message.content == "I see."


def test_thin_images_need_no_more_memory_than_others(shared: tuple[Board, Server]) -> None:
    board, server = shared
    thin = np.full((1, 60_000, 3), RED, np.uint8)  # its surrounding square has 3.6 billion pixels
    chat(server, [user(image_part(saved(thin)))])
    square = on_grey(np.full((1, SIDE, 3), RED, np.uint8), 0, 223)
    assert board.calls("rkllm_run")[-1]["input"]["image"]["crc32"] == crc(square)


def test_a_model_without_vision_and_one_without_its_encoder(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.add_runtime()
    board.add("blind")
    board.add(MODEL, packaged(), **SCRIPT)
    part = image_part(saved(quadrants()))
    with board.serve() as server:
        for model, words in (("blind", "takes no images"), (MODEL, "encoder.onnx")):
            with pytest.raises(openai.BadRequestError) as caught:
                server.client.chat.completions.create(model=model, messages=[user(part)])  # type: ignore[list-item]  # a plain dict
            assert (caught.value.code, caught.value.param) == (
                "unsupported_parameter",
                "messages.0.content.0",
            )
            assert words in caught.value.message and str(board.models) not in caught.value.message
            assert server.says(model) == "OK."
        assert server.model(MODEL)["capabilities"] == ["chat", "tools"]
        write_encoder(board.models / MODEL / "encoder.onnx", outputs=OUTPUTS)
        assert "vision" in server.model(MODEL)["capabilities"]
        with pytest.raises(openai.BadRequestError, match="without its image encoder"):
            chat(server, [user(part)])  # the loaded worker has not got it


def test_what_is_no_encoder_or_not_the_entry_s(tmp_path: Path) -> None:
    board = board_with_encoder(tmp_path)
    encoder = board.models / MODEL / "encoder.onnx"
    with board.serve() as server:
        for write, words in (
            (lambda: encoder.write_bytes(b"<html>"), "Put the whole file there"),
            (lambda: write_encoder(encoder, layout="nchw"), "Correct size, layout and dtype"),
            (lambda: write_encoder(encoder, dtype="float32"), "Correct size, layout and dtype"),
            (lambda: write_encoder(encoder, side=224), "Correct size, layout and dtype"),
        ):
            write()
            with pytest.raises(openai.InternalServerError, match=words) as caught:
                server.says(MODEL)
            assert (caught.value.status_code, caught.value.code) == (503, "model_corrupt")


def test_with_fetching_on_this_machine_and_its_network_stay_out_of_reach(tmp_path: Path) -> None:
    board = board_with_encoder(tmp_path)
    with board.serve(image_urls="on") as server:
        for url in (f"{server.url}/health", "http://localhost/a.png", "http://169.254.169.254/latest/"):
            with pytest.raises(openai.BadRequestError, match="no public address") as caught:
                chat(server, [user({"type": "image_url", "image_url": {"url": url}})])
            assert (caught.value.code, caught.value.param) == ("invalid_request", "messages.0.content.0")


def test_with_a_tokenizer_images_still_go_in_as_text_and_other_chats_as_ids(tmp_path: Path) -> None:
    board = board_with_encoder(tmp_path, answers=["Yes."])
    add_tokenizer(board.models / MODEL)
    with board.serve() as server:
        usage = chat(server, [user(image_part(saved(quadrants())), text("a cat?"))]).usage
        server.says(MODEL, "no image")
    runs = board.calls("rkllm_run")
    assert [run["input"]["type"] for run in runs] == ["multimodal", "token"]
    assert runs[0]["input"]["prompt"] == "<|im_start|>user\n<image>a cat?<|im_end|>\n<|im_start|>assistant\n"
    assert usage is not None
    assert abs(usage.prompt_tokens - len(runs[0]["input"]["ids"])) <= 1


def test_a_long_text_with_an_image_never_overflows_the_context(tmp_path: Path) -> None:
    board = board_with_encoder(
        tmp_path,
        packaged(context_length=600, max_tokens=500),
        tokenizer="bytes",
        answers=[{"events": ["y"], "repeat": -1}],
    )
    picture = image_part(saved(quadrants()))
    with board.serve(repeat_guard="off") as server:
        answer = chat(server, [user(picture, text("x" * 250))])
    assert board.calls("context_shift") == []
    measuring, run = board.calls("rkllm_run")
    assert measuring["input"] == run["input"]
    tokens = len(run["input"]["ids"])
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (tokens, 600 - 4 - tokens)
    assert board.calls("rkllm_clear_kv_cache") == []
