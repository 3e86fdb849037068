"""Reading the GGUF container: what a whole file holds, and that a damaged one is refused with a reason."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from convert.errors import ConvertError
from convert.gguf_file import GgufFile
from tests.convert.gguf_files import pack_q4_1, write_gguf


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def container(
    keys: bytes = b"", key_count: int = 0, tensors: bytes = b"", tensor_count: int = 0, version: int = 3
) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensor_count, key_count) + keys + tensors


def tensor(name: str, axes: list[int], kind: int, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, kind, offset)


def padded(data: bytes, alignment: int = 32) -> bytes:
    return data + bytes(-len(data) % alignment)


def test_every_kind_of_value_is_read(tmp_path: Path) -> None:
    scalars = [
        (0, "<B", 200),
        (1, "<b", -5),
        (2, "<H", 60_000),
        (3, "<h", -300),
        (4, "<I", 2**31),
        (5, "<i", -7),
        (6, "<f", 0.5),
        (7, "<?", True),
        (10, "<Q", 2**40),
        (11, "<q", -(2**40)),
        (12, "<d", 0.1),
    ]
    keys = b"".join(text(f"k{kind}") + struct.pack("<I", kind) + struct.pack(f, v) for kind, f, v in scalars)
    keys += text("word") + struct.pack("<I", 8) + text("été")
    keys += text("words") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc")
    keys += text("numbers") + struct.pack("<IIQ3i", 9, 5, 3, 1, -2, 3)
    keys += text("nested") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ2B", 0, 2, 4, 5)
    path = tmp_path / "a.gguf"
    path.write_bytes(container(keys, len(scalars) + 4))
    with GgufFile(path) as file:
        assert file.metadata == {f"k{kind}": value for kind, _, value in scalars} | {
            "word": "été",
            "words": ["a", "bc"],
            "numbers": [1, -2, 3],
            "nested": [[4, 5]],
        }


def test_tensors_are_dequantized(tmp_path: Path) -> None:
    quants = np.arange(32, dtype=np.uint8)[None] % 16
    block = pack_q4_1(np.array([0.5], np.float16), np.array([-1.0], np.float16), quants).tobytes()
    upper_halves = np.array([1.5, -2.0, 3.0e38, 0.0], np.float32).view(np.uint32) >> 16
    bfloat = upper_halves.astype("<u2").tobytes()
    half = np.array([[1, 2, 3], [4, 5, 6]], np.float16).tobytes()
    infos = tensor("q", [32, 1], 3) + tensor("b", [2, 2], 30, 32) + tensor("h", [3, 2], 1, 64)
    path = tmp_path / "a.gguf"
    path.write_bytes(
        padded(container(tensors=infos, tensor_count=3)) + padded(block) + padded(bfloat) + padded(half)
    )
    with GgufFile(path) as file:
        assert file.read("q").tolist() == [[0.5 * (index % 16) - 1 for index in range(32)]]
        assert file.read("h").tolist() == [[1, 2, 3], [4, 5, 6]]
        found = file.read("b")
        assert found.shape == (2, 2) and found.dtype == np.float32
        assert found[0].tolist() == [1.5, -2.0] and abs(found[1, 0] / 3.0e38 - 1) < 0.01


def test_the_alignment_of_the_file_counts(tmp_path: Path) -> None:
    keys = text("general.alignment") + struct.pack("<II", 4, 256)
    head = container(keys, 1, tensor("x", [2], 0), 1)
    path = tmp_path / "a.gguf"
    path.write_bytes(padded(head, 256) + struct.pack("<2f", 3.0, 4.0))
    with GgufFile(path) as file:
        assert file.read("x").tolist() == [3.0, 4.0]


@pytest.mark.parametrize("content", [b"", b"GG", b"<html>not a model</html>", b"PK\x03\x04"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(ConvertError, match="is not a GGUF file"):
        GgufFile(path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(ConvertError, match="is no file, but a pipe or a device"):
            GgufFile(path)


def test_arrays_in_arrays_without_end(tmp_path: Path) -> None:
    nested = struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 9, 1) * 5000
    (tmp_path / "deep.gguf").write_bytes(container(text("deep") + nested, 1) + bytes(64))
    with pytest.raises(ConvertError, match="has arrays in arrays without end"):
        GgufFile(tmp_path / "deep.gguf")


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    write_gguf(whole)
    content = whole.read_bytes()
    with GgufFile(whole) as file:
        last = max(info.offset + info.size_bytes for info in file.tensors.values())
    cut = tmp_path / "cut.gguf"
    for length in [*range(4, 2000, 7), *range(2000, last, 4999), last - 1]:
        cut.write_bytes(content[:length])
        with pytest.raises(ConvertError, match=r"cut off"):
            GgufFile(cut)
    cut.write_bytes(content[:last])
    with GgufFile(cut) as file:
        assert file.tensors


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (container(version=1), "version 1"),
        (container(version=3 << 24), "version 50331648"),  # big endian
        (container(key_count=2**60), "cut off or damaged"),
        (container(text("a") + struct.pack("<IIQ", 9, 0, 2**62), 1), "cut off or damaged"),
        (container(text("a") + struct.pack("<I", 99), 1), "unknown type 99"),
        (container((text("a") + struct.pack("<IB", 0, 1)) * 2, 2), "the key a twice"),
        (container(struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<IB", 0, 1), 1), "not UTF-8"),
        (padded(container(tensors=tensor("x", [2], 0) * 2, tensor_count=2)) + bytes(8), "tensor x twice"),
        (padded(container(tensors=tensor("x", [0], 0), tensor_count=1)), r"the shape \(0,\)"),
        (padded(container(tensors=tensor("x", [4], 0, 2**63), tensor_count=1)), "cut off"),
        (padded(container(tensors=tensor("x", [32], 250), tensor_count=1)) + bytes(99), "ggml type 250"),
        (padded(container(tensors=tensor("x", [33], 8), tensor_count=1)) + bytes(99), "multiple of 32"),
        (container(text("general.alignment") + struct.pack("<II", 4, 0), 1), "alignment as 0"),
    ],
)
def test_damaged_files_are_refused_with_the_reason(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(ConvertError, match=message):
        GgufFile(path)
