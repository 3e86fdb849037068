"""The small pure parts: time-outs, errors of workers, memory, who uses the NPU."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import psutil
import pytest

from backends.base import EmbedInput, EmbedParams, ErrorCode, GenerateParams, Image, Sampling, Span
from server.errors import InvalidRequest, LoadFailed, ModelCorrupt
from server.settings import Settings
from server.workers.failure import error_of, load_error_of, with_output
from server.workers.memory import available_mb
from server.workers.npu import must_use_npu, npu_present
from server.workers.timeouts import Timeouts, most_tokens
from tests.server.examples import example_entry


def test_a_load_may_take_a_minute_and_half_a_minute_more_per_gigabyte() -> None:
    entry = example_entry(memory_mb=2560)
    assert Timeouts.of(Settings(), entry).load_s == 60 + 30 * 2.5
    assert Timeouts.of(Settings(load_timeout_s=7), entry).load_s == 7


def test_prefill_may_take_a_minute_and_two_more_per_thousand_tokens() -> None:
    timeouts = Timeouts.of(Settings(), example_entry())
    assert timeouts.prefill(0) == 60
    assert timeouts.prefill(8192) == pytest.approx(60 + 120 * 8.192)


def test_a_prompt_has_no_more_tokens_than_bytes_or_context() -> None:
    def bound(text: str, images: list[Image] | None = None) -> int:
        spans = [Span(text, False), Span("ab", True)]
        return most_tokens(GenerateParams(prompt=spans, sampling=Sampling(), images=images or []), 2048)

    assert bound("中文") == 3 + 3 + 2
    assert bound("\ud800") == 1 + 2
    assert bound("x" * 9999) == 2048
    assert bound("x", [Image(b"image", "messages.0.content.0")]) == 2048


def test_of_inputs_to_embed_only_the_longest_counts() -> None:
    inputs = [EmbedInput(prompt=[Span("x" * 100, False)]), EmbedInput(token_ids=[1] * 300)]
    assert most_tokens(EmbedParams(inputs=inputs), 2048) == 300
    assert most_tokens(EmbedParams(inputs=inputs * 500), 128) == 128


@pytest.mark.parametrize("code", get_args(ErrorCode))
def test_every_code_of_a_worker_has_its_error(code: ErrorCode) -> None:
    error = error_of(code, "text", "field")
    assert (error.code, error.message, error.param) == (code, "text", "field")


@pytest.mark.parametrize("code", get_args(ErrorCode))
def test_of_the_paths_a_worker_names_clients_see_the_last_name(code: ErrorCode) -> None:
    error = error_of(code, "the adapter /srv/models/a/x.rkllm, line '/srv/b.so'")
    assert error.body()["error"]["message"] == "the adapter x.rkllm, line 'b.so'"


def test_a_failed_load_never_blames_the_request() -> None:
    assert isinstance(error_of("invalid_request", "x"), InvalidRequest)
    assert type(load_error_of("invalid_request", "x")) is LoadFailed
    assert type(load_error_of("model_corrupt", "x")) is ModelCorrupt


def test_the_last_lines_go_with_the_message() -> None:
    assert with_output("It died.", []) == "It died."
    lines = [f"line {number}" for number in range(9)]
    assert with_output("It died.", lines) == "It died. Its last output: line 5 / line 6 / line 7 / line 8"


def test_memory_of_this_machine() -> None:
    assert available_mb() == pytest.approx(psutil.virtual_memory().available / 2**20, rel=0.2)


def test_memory_under_another_root(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:  8000000 kB\nMemAvailable:    3145728 kB\n")
    assert available_mb(tmp_path) == 3072


def test_without_a_meminfo_under_it_this_machine_s_counts(tmp_path: Path) -> None:
    assert available_mb(tmp_path) == pytest.approx(available_mb(), rel=0.2)


@pytest.mark.parametrize("mark", ["sys/module/rknpu", "sys/class/devfreq/fdab0000.npu", "dev/rknpu"])
def test_an_npu_is_seen(tmp_path: Path, mark: str) -> None:
    assert not npu_present(tmp_path)
    (tmp_path / mark).mkdir(parents=True)
    assert npu_present(tmp_path)


@pytest.mark.parametrize(
    ("keys", "takes"),
    [
        ({"backend": "rkllm", "file": "m.rkllm", "folder": None}, True),
        ({"hybrid": {"executor": "rknn"}}, True),
        ({"hybrid": {"executor": "rknnlite"}}, True),
        ({"hybrid": {"executor": "onnxruntime"}}, False),
        ({}, None),
    ],
)
def test_who_takes_the_npu(keys: dict[str, object], takes: bool | None) -> None:
    assert must_use_npu(example_entry(**keys)) is takes
