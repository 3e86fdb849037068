"""The environment file is read as systemd reads it. Expected values worked out from systemd.exec(5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.envfile import EnvFileError, read_env_file


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=b\n", {"A": ("b", 1)}),
        ("A=b", {"A": ("b", 1)}),
        ("\n# A=1\n ; A=2\nA=3\n", {"A": ("3", 4)}),
        ("A=\n", {"A": ("", 1)}),
        ("A=b c\n", {"A": ("b c", 1)}),
        ("A=b \n", {"A": ("b", 1)}),
        ('A="b c"\n', {"A": ("b c", 1)}),
        ("A='b \"c\"'\n", {"A": ('b "c"', 1)}),
        ('A="b \\"c\\""\n', {"A": ('b "c"', 1)}),
        ("A=b#c\n", {"A": ("b#c", 1)}),
        ("A=$HOME\n", {"A": ("$HOME", 1)}),
        ("A=b=c\n", {"A": ("b=c", 1)}),
        ("A=b\\\nc\nB=d\n", {"A": ("bc", 1), "B": ("d", 3)}),
        ("A=1\nA=2\n", {"A": ("2", 2)}),
        ("A=é\n", {"A": ("é", 1)}),
        ("", {}),
    ],
)
def test_what_is_read(text: str, expected: dict[str, tuple[str, int]], tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text(text, encoding="utf-8")
    assert read_env_file(file) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"A=1\nB\n", ":2: must be KEY=value, not 'B'"),
        (b"1A=1\n", ":1: must be KEY=value"),
        (b'A="b\n', ":1: no closing quotation"),
        (b"A=\xff\n", ": not UTF-8 text (byte 2)"),
    ],
)
def test_what_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_bytes(content)
    with pytest.raises(EnvFileError) as caught:
        read_env_file(file)
    assert f"{file}{message}" in str(caught.value)
