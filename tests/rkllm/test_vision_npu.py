"""The packaged vision model, its encoder on a stand-in for the vendor's closed package and its failures."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openai
import pytest

from backends.base import BackendError, EngineLost, GenerateParams, Image, Sampling
from backends.elf import OWN_EXECUTABLE
from backends.engine import Cancellation
from backends.rkllm.encoder import Encoded
from backends.rkllm.images import Images
from backends.spec import RkllmOptions, VisionOptions
from backends.vision.encoder import ImageEncoder
from tests.backends.rkllm.conftest import ListSink
from tests.demo_model import ROOT
from tests.rkllm.board import Board, Server
from tests.rkllm.test_vision import MODEL, OUTPUTS, SCRIPT, chat, crc, text, user
from tests.vision.pictures import BLUE, SIDE, TOKENS, image_part, quadrants, saved

STANDIN = ROOT / "tests/standin/rknn_toolkit_lite2"
PICTURE, OTHER = quadrants(), quadrants(first=BLUE)


def add_librknnrt(board: Board, version: str = "2.3.2") -> Path:
    path = board.runtimes / version / "librknnrt.so"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(OWN_EXECUTABLE.read_bytes()[:64] + f"\0librknnrt version: {version} (x@2025)\0".encode())
    return path


def vision_board(directory: Path, *, toolkit: bool = True, **script: Any) -> tuple[Board, Path]:
    """Return a board with the packaged entry, and its encoder's file."""
    board = Board(directory)
    board.add_runtime()
    if toolkit:
        board.python_path.append(STANDIN)
    entry = board.add_packaged(MODEL, **SCRIPT)
    assert entry.vision is not None
    encoder = entry.directory(board.models) / entry.vision.file
    encoder.write_text(json.dumps({"outputs": OUTPUTS} | script))
    return board, encoder


def log(encoder: Path, call: str) -> list[dict[str, Any]]:
    lines = Path(f"{encoder}.log").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if entry["call"] == call]


def refusal(server: Server) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as caught:
        chat(server, [user(image_part(saved(PICTURE)))])
    return caught.value


def test_an_image_that_is_sent_each_turn_is_encoded_once(tmp_path: Path) -> None:
    board, encoder = vision_board(tmp_path)
    add_librknnrt(board)
    one, two = image_part(saved(PICTURE)), image_part(saved(OTHER))
    messages: list[Any] = []
    with board.serve() as server:
        for turn in (user(one, text("What?")), user(text("And"), two), user(text("Both?"), one)):
            messages.append(turn)
            answer = chat(server, messages, n=2).choices[0].message.content
            messages.append({"role": "assistant", "content": answer})
        model = server.model(MODEL)
    assert (model["details"]["image_encoder"], model["details"]["image_tokens"]) == ("librknnrt 2.3.2", "196")
    assert not any("domain" in warning for warning in model["warnings"])
    assert log(encoder, "init_runtime") == [{"call": "init_runtime", "core_mask": 7}]
    runs = log(encoder, "inference")
    assert len(runs) == 3  # one to see how many tokens it gives, and one for each image
    for run, picture in zip(runs[1:], (PICTURE, OTHER), strict=True):
        assert run == {
            "call": "inference",
            "shape": [1, SIDE, SIDE, 3],
            "dtype": "uint8",
            "data_format": ["nhwc"],
            "crc32": zlib.crc32(picture.tobytes()),
        }
    images = [run["input"]["image"] for run in board.calls("rkllm_run")]
    assert [image["count"] for image in images] == [1, 1, 2, 2, 3, 3]
    assert images[-1]["crc32"] == crc(PICTURE, OTHER, PICTURE)
    assert board.calls("rkllm_init")[0]["base_domain_id"] == 1
    assert log(encoder, "release") == [{"call": "release"}]


def test_a_run_that_fails_costs_the_worker_and_the_next_one_works(tmp_path: Path) -> None:
    board, encoder = vision_board(tmp_path)
    add_librknnrt(board)
    failures = ("none", "raise", "shape", "fewer", "words")
    with board.serve() as server:
        for what in failures:
            encoder.write_text(json.dumps({"outputs": OUTPUTS, "runs": ["ok", what]}))
            error = refusal(server)
            assert (error.status_code, error.code) == (500, "backend_crashed"), what
            assert encoder.name in error.message
        encoder.write_text(json.dumps({"outputs": OUTPUTS}))
        assert chat(server, [user(image_part(saved(PICTURE)))]).choices[0].message.content == "OK."
    assert len({call["pid"] for call in board.calls("rkllm_init")}) == 1 + len(failures)


def test_numbers_that_are_none_blame_the_image(tmp_path: Path) -> None:
    board, _ = vision_board(tmp_path, runs=["ok", "nan"])
    add_librknnrt(board)
    with board.serve() as server:
        error = refusal(server)
        assert (error.status_code, error.code) == (400, "invalid_request")
        assert error.body["param"] == "messages.0.content.0"  # type: ignore[index]  # the error's JSON
        assert chat(server, [user(image_part(saved(PICTURE)))]).choices[0].message.content == "OK."
    assert len(board.calls("rkllm_init")) == 1


BAD_LOADS: list[tuple[dict[str, Any], str, str]] = [
    ({"load": -1}, "model_corrupt", "returned -1"),
    ({"init": -1}, "load_failed", "init_runtime returned -1"),
    ({"version": "API: 2.0.0 (x)"}, "runtime_version_mismatch", "has loaded 2.0.0"),
    ({"version": "raise"}, "load_failed", "RuntimeError"),
    ({"runs": ["none"]}, "load_failed", "returned nothing"),
    ({"runs": ["shape"]}, "model_corrupt", "does not hold 196 tokens"),
    ({"outputs": []}, "load_failed", "returned nothing"),
]


def test_an_encoder_that_does_not_load(tmp_path: Path) -> None:
    board, encoder = vision_board(tmp_path)
    add_librknnrt(board)
    with board.serve() as server:
        for script, code, words in BAD_LOADS:
            encoder.write_text(json.dumps({"outputs": OUTPUTS} | script))
            error = refusal(server)
            assert (error.status_code, error.code) == (503, code), script
            assert words in error.message
        encoder.write_text("<html>")  # which the vendor's package loads without complaint
        error = refusal(server)
        assert (error.status_code, error.code) == (503, "load_failed")
        assert "Check the file" in error.message
    # The language model, which had been loaded, was given back each time.
    assert len(board.calls("rkllm_destroy")) == 1 + len(BAD_LOADS)


def test_a_model_that_is_refused_after_its_encoder_was_loaded_gives_both_back(tmp_path: Path) -> None:
    board, encoder = vision_board(tmp_path)
    add_librknnrt(board)
    board.add_packaged(MODEL, **SCRIPT, toolkit="1.2.2")
    with board.serve() as server:
        assert refusal(server).code == "runtime_version_mismatch"
    assert log(encoder, "release")
    assert board.calls("rkllm_destroy")


def test_no_librknnrt_or_an_old_one_and_then_the_right_one(tmp_path: Path) -> None:
    board, encoder = vision_board(tmp_path)
    with board.serve() as server:
        assert "there is none in" in refusal(server).message
        add_librknnrt(board, "2.2.0")
        error = refusal(server)
        assert (error.status_code, error.code) == (503, "runtime_version_mismatch")
        assert "librknnrt.so: version 2.2.0, not >=2.3" in error.message
        assert encoder.name in error.message
        warnings = server.model(MODEL)["warnings"]
        assert ["librknnrt.so: version 2.2.0, not >=2.3" in warning for warning in warnings].count(True) == 1
        assert not board.calls()
        add_librknnrt(board, "2.3.0")
        assert chat(server, [user(image_part(saved(PICTURE)))]).choices[0].message.content == "OK."


def test_without_the_vendor_s_package(tmp_path: Path) -> None:
    board, encoder = vision_board(tmp_path, toolkit=False)
    hidden = tmp_path / "hidden" / "rknnlite.py"  # before the real one, where that is installed
    hidden.parent.mkdir()
    hidden.write_text("raise ModuleNotFoundError(\"No module named 'rknnlite'\")\n")
    board.python_path.append(hidden.parent)
    add_librknnrt(board)
    with board.serve() as server:
        error = refusal(server)
        assert (error.status_code, error.code) == (503, "load_failed")
        assert "extra rknn" in error.message
        encoder.unlink()
        assert server.says(MODEL) == "OK."  # as the message says, text still goes


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ImageEncoder]:
    monkeypatch.syspath_prepend(str(STANDIN))

    def load(**script: Any) -> ImageEncoder:
        path = tmp_path / "encoder.rknn"
        path.write_text(json.dumps({"outputs": OUTPUTS} | script))
        return ImageEncoder(VisionOptions(encoder=str(path), size=(SIDE, SIDE), runtime=">=2.3"), 1024)

    return load


@pytest.mark.parametrize("version", [None, 7, "", "API: unknown"])
def test_a_version_that_nobody_can_read_is_no_reason_to_refuse(
    load: Callable[..., ImageEncoder], version: Any
) -> None:
    assert load(version=version).runtime == "librknnrt of an unknown version"


def test_each_owner_s_images_are_encoded_for_them_alone(
    load: Callable[..., ImageEncoder], tmp_path: Path
) -> None:
    encoder = load(release="raise")
    image = Image(saved(PICTURE), "messages.0.content.0")
    first = encoder.embed(image, "anna")
    assert encoder.embed(image, "anna") is first
    assert np.array_equal(encoder.embed(image, "ben"), first)
    assert len(log(tmp_path / "encoder.rknn", "inference")) == 3
    assert (encoder.tokens, encoder.width) == (TOKENS, 6)
    encoder.close()
    encoder.close()  # twice does nothing
    assert len(log(tmp_path / "encoder.rknn", "release")) == 1


def test_the_cache_holds_a_context_full_of_images(load: Callable[..., ImageEncoder], tmp_path: Path) -> None:
    encoder = load()
    images = [Image(saved(quadrants(first=(n, 0, 0))), "x") for n in range(1024 // TOKENS)]
    for _ in range(3):
        for image in images:
            encoder.embed(image, "")
    assert len(log(tmp_path / "encoder.rknn", "inference")) == 1 + len(images)


def test_an_encoder_that_cannot_be_used_is_given_back(
    load: Callable[..., ImageEncoder], tmp_path: Path
) -> None:
    for script in ({"load": -1}, {"init": -1}, {"runs": ["raise"]}, {"version": "API: 2.0.0"}):
        with pytest.raises(BackendError):
            load(**script)
        assert log(tmp_path / "encoder.rknn", "release")
        (tmp_path / "encoder.rknn.log").unlink()


def test_a_request_nobody_wants_any_more_is_not_encoded_to_its_end(
    load: Callable[..., ImageEncoder], tmp_path: Path
) -> None:
    load()  # writes the file
    encoder = str(tmp_path / "encoder.rknn")
    images = Images(VisionOptions(encoder=encoder, size=(SIDE, SIDE)), 1024)
    cancelled = Cancellation()
    shown = [Image(saved(picture), "x") for picture in (PICTURE, OTHER)]
    params = GenerateParams(prompt=[], sampling=Sampling(), images=shown)
    sink = ListSink()
    encoded = Encoded("<image><image>", 400, 500, exact=False, images=(0, 1))
    before = len(log(tmp_path / "encoder.rknn", "inference"))
    prompt = images.prompt(encoded, params, sink, cancelled)
    assert prompt is not None
    assert prompt.embeddings.shape == (2, TOKENS, 6)
    assert sink.prefills == [(0, 400)] * 2  # a sign of life after each
    sink.prefill = lambda done, total: cancelled.set()  # type: ignore[method-assign]  # leaves after one
    assert images.prompt(encoded, msgspec.structs.replace(params, owner="b"), sink, cancelled) is None
    assert len(log(tmp_path / "encoder.rknn", "inference")) - before == 2 + 1


def test_memory_domains_that_are_shared_are_warned_of(
    load: Callable[..., ImageEncoder], tmp_path: Path
) -> None:
    load()
    images = Images(VisionOptions(encoder=str(tmp_path / "encoder.rknn"), size=(SIDE, SIDE)), 1024)
    assert images.warnings(RkllmOptions(base_domain_id=1)) == []
    (warning,) = images.warnings(RkllmOptions())
    assert "base_domain_id: 1" in warning


def test_what_runs_is_lost_when_it_fails(load: Callable[..., ImageEncoder]) -> None:
    encoder = load(runs=["ok", "raise"])
    with pytest.raises(EngineLost, match="failed to submit"):
        encoder.embed(Image(saved(PICTURE), "x"), "")
