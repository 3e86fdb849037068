"""JSON for the data lines of events."""

from __future__ import annotations

import json

import pytest

from server.http.json_line import json_line


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a",
        "世界",
        "\u2028\u2029\u0085",
        {"é\u2028": ["\u0085", 1.5, None]},
        "\u20a8\u2027\u0185",
        "\\\u2028",
    ],
)
def test_it_says_the_same_on_one_line(value: object) -> None:
    text = json_line(value).decode()
    assert json.loads(text) == value
    assert len(text.splitlines()) == 1


def test_other_characters_stand_as_they_are() -> None:
    assert json_line("世界 é") == '"世界 é"'.encode()
