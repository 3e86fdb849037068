"""Data URLs as clients write them, and as they should not."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.images.data_url import BadDataUrl, decode_data_url, is_data_url

DATA = bytes(range(256)) + b"\xfb\xff\xfe"  # has +, / and padding in base64
TEXT = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;base64,{TEXT}",
        f"DATA:Image/PNG;Base64,{TEXT}",
        f"data:image/png;charset=utf-8;base64,{TEXT}",
        f"data:image/jpeg; base64,{TEXT}",
        f"data:image/png;base64,{TEXT.rstrip('=')}",
        f"data:image/png;base64,{TEXT.replace('+', '-').replace('/', '_')}",
        f"data:image/png;base64,{TEXT.replace('+', '%2B').replace('/', '%2F').replace('=', '%3D')}",
        "data:image/png;base64," + "\r\n".join(TEXT[i : i + 76] for i in range(0, len(TEXT), 76)) + "\n",
        f"data:image/png;base64, {TEXT} ",
    ],
)
def test_forms_that_leave_no_doubt(url: str) -> None:
    assert is_data_url(url)
    assert decode_data_url(url) == DATA


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:", "no data URL"),
        (f"data:image/png;base64;{TEXT}", "no data URL"),
        ("data:" + "image/png" * 100 + f";base64,{TEXT}", "no data URL"),
        (f"data:;base64,{TEXT}", "'text/plain', which is no image"),
        (f"data:application/pdf;base64,{TEXT}", "'application/pdf', which is no image"),
        (f"data:image/png,{TEXT}", "without ;base64"),
        ("data:image/png;base64,", "without content"),
        ("data:image/png;base64,====", "without content"),
        ("data:image/png;base64,A", "damaged or cut off"),
        ("data:image/png;base64,AA=A", "damaged or cut off"),
        ("data:image/png;base64,AAA@", "damaged or cut off"),
        ("data:image/png;base64,ÄÄÄÄ", "damaged or cut off"),
        ("data:image/png;base64,%GGAA", "damaged or cut off"),
    ],
)
def test_what_is_refused_and_why(url: str, words: str) -> None:
    with pytest.raises(BadDataUrl, match=words):
        decode_data_url(url)


@pytest.mark.parametrize("url", ["http://a/b.png", "data", "", "file:///a", "dat%61:image/png;base64,AA"])
def test_other_addresses_are_none(url: str) -> None:
    assert not is_data_url(url)


@given(st.binary(min_size=1))
def test_any_bytes_come_back(data: bytes) -> None:
    assert decode_data_url("data:image/gif;base64," + base64.b64encode(data).decode()) == data


@given(st.text())
def test_any_text_is_decoded_or_refused(text: str) -> None:
    with contextlib.suppress(BadDataUrl):
        decode_data_url("data:image/png;base64," + text)
