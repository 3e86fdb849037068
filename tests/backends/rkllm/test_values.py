"""Sampling values and text in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.base import Sampling
from backends.rkllm.sampling import sampling_param
from backends.rkllm.structs import RKLLMSamplingParam
from backends.rkllm.utf8 import Utf8Pieces


def fields(param: RKLLMSamplingParam) -> dict[str, float]:
    return {name: getattr(param, name) for name, _ in RKLLMSamplingParam._fields_}


def test_every_value_reaches_its_field() -> None:
    sampling = Sampling(
        temperature=0.75,
        top_p=0.5,
        top_k=20,
        repeat_penalty=1.25,
        presence_penalty=0.5,
        frequency_penalty=-0.25,
    )
    assert fields(sampling_param(sampling, 50_000)) == {
        "top_k": 20,
        "top_p": 0.5,
        "temperature": 0.75,
        "repeat_penalty": 1.25,
        "frequency_penalty": -0.25,
        "presence_penalty": 0.5,
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": pytest.approx(0.1),
    }


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0, top_k=50), Sampling(temperature=1e-6), Sampling(top_p=0)]
)
def test_greedy_is_the_best_one_at_a_positive_temperature(sampling: Sampling) -> None:
    param = sampling_param(sampling, None)
    assert (param.top_k, param.temperature, param.top_p) == (1, 1.0, 1.0)


def test_all_tokens_is_a_number_the_library_can_use() -> None:
    assert sampling_param(Sampling(), 50_000).top_k == 1024
    assert sampling_param(Sampling(), 600).top_k == 600
    assert sampling_param(Sampling(top_k=40_000), 32_000).top_k == 32_000
    assert sampling_param(Sampling(top_k=2**40), None).top_k == 16_384


def pieces(text: str, cuts: list[int]) -> list[bytes]:
    data = text.encode()
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(st.text(), st.lists(st.integers(0, 400)))
def test_text_cut_anywhere_comes_out_whole(text: str, cuts: list[int]) -> None:
    decoder = Utf8Pieces()
    out = [decoder.push(piece) for piece in pieces(text, cuts)]
    assert "".join(out) + decoder.flush() == text


@pytest.mark.parametrize(
    "data",
    [[b"\xe4", b"\xe4\xbd", b"\xe4\xbd\xa0"], [b"\xe4", b"\xbd", b"\xa0"], [b"\xe4\xbd", b"\xe4\xbd\xa0"]],
)
def test_a_character_that_is_repeated_until_it_is_whole(data: list[bytes]) -> None:
    decoder = Utf8Pieces()
    assert [decoder.push(piece) for piece in data][-1] == "你"
    assert decoder.push(b"!") + decoder.flush() == "!"


def test_bytes_that_are_no_text() -> None:
    decoder = Utf8Pieces()
    assert decoder.push(b"a\xffb") == "a\ufffdb"
    assert decoder.push(b"\xf0\x9f") == ""
    assert decoder.flush() == "\ufffd"
