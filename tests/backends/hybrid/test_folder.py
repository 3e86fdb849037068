"""A folder that misses something is refused with the list of all it misses."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from backends.base import BackendError
from backends.hybrid.folder import read_folder, verify_files
from backends.hybrid.meta import META_FILE
from backends.hybrid.schema import departures
from tests.tiny import tiny_folder


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("original"))


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "folder"))


def change(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    meta = msgspec.json.decode((folder / META_FILE).read_bytes())
    edit(meta)
    (folder / META_FILE).write_bytes(msgspec.json.encode(meta))


def refusal(folder: Path, code: str, **options: Any) -> str:
    with pytest.raises(BackendError) as caught:
        read_folder(folder, **options)
    assert caught.value.code == code
    assert str(folder) in caught.value.message
    return caught.value.message


def listed(message: str) -> list[str]:
    return [line.removeprefix("- ") for line in message.splitlines() if line.startswith("- ")]


def test_a_whole_folder(folder: Path) -> None:
    read = read_folder(folder)
    assert read.variant == "fp32"
    assert [build.file for build in read.builds] == [f"segment_{index:03d}.onnx" for index in range(4)]
    assert read.meta.hidden_size == 48
    assert verify_files(folder) == []


def test_no_folder_and_no_json(folder: Path, tmp_path: Path) -> None:
    assert "is no hybrid folder" in refusal(tmp_path / "nothing", "load_failed")
    (folder / META_FILE).write_bytes(b'{"version": 2, "half')
    assert "is no JSON" in refusal(folder, "model_corrupt")
    (folder / META_FILE).write_bytes(b"[]")
    assert listed(refusal(folder, "model_corrupt")) == ["the whole: Expected `object`, got `array`"]


def test_every_field_that_is_missing_is_named(folder: Path) -> None:
    def edit(meta: dict[str, Any]) -> None:
        del (
            meta["head_dim"],
            meta["attention"]["full"]["rope"]["theta"],
            meta["segments"][1]["outputs"][0]["role"],
        )
        meta["hidden_sise"] = meta.pop("hidden_size")
        meta["num_heads"] = "six"
        meta["layers"][2]["type"] = None

    change(folder, edit)
    assert sorted(listed(refusal(folder, "model_corrupt"))) == [
        "attention.full.rope.theta is missing",
        "head_dim is missing",
        "hidden_sise is no field of this schema",
        "hidden_size is missing",
        "layers[2].type: Expected `str`, got `null`",
        "num_heads: Expected `int`, got `str`",
        "segments[1].outputs[0].role is missing",
    ]


def test_a_foreign_description_is_answered_field_by_field(folder: Path) -> None:
    (folder / META_FILE).write_bytes(b'{"n_layer": 24, "version": 1}')
    message = listed(refusal(folder, "model_corrupt"))
    assert "n_layer is no field of this schema" in message
    assert "segments is missing" in message
    assert any(line.startswith("version: ") for line in message)
    assert len(message) > 15


def test_an_overlay_supplies_what_is_missing(folder: Path, tmp_path: Path) -> None:
    def edit(meta: dict[str, Any]) -> None:
        del meta["norm_eps"], meta["attention"]["full"]["rope"]["theta"]

    change(folder, edit)
    overlay = tmp_path / "overlay.json"
    overlay.write_bytes(b'{"norm_eps": 1e-6, "attention": {"full": {"rope": {"theta": 777}}}}')
    meta = read_folder(folder, overlay=overlay).meta
    assert meta.norm_eps == 1e-6
    rope = meta.attention["full"].rope
    assert rope is not None
    assert (rope.theta, rope.rotary_dim) == (777, 8)


def test_every_damaged_file_is_named(folder: Path) -> None:
    (folder / "segment_000.onnx").unlink()
    data = folder / "segment_001.data"
    data.write_bytes(data.read_bytes()[:-1])
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "more")
    tokenizer = bytearray((folder / "tokenizer.json").read_bytes())
    tokenizer[100] ^= 1
    (folder / "tokenizer.json").write_bytes(tokenizer)
    embedding = (folder / "embedding.npy").stat().st_size
    (folder / "embedding.npy").write_bytes(b"")
    problems = listed(refusal(folder, "model_corrupt"))
    assert len(problems) == 5
    assert problems[0] == f"embedding.npy is cut off: 0 bytes where {embedding} are right"
    assert problems[1].startswith("tokenizer.json has the right size and wrong bytes")
    assert problems[2].startswith("chat_template.jinja is too long")
    assert problems[3] == "segment_000.onnx is missing"
    assert problems[4].startswith("segment_001.data is cut off")


def test_wrong_bytes_in_a_large_file_are_found_by_verify_and_not_at_load(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray((folder / "segment_002.data").read_bytes())
    data[5000] ^= 1
    (folder / "segment_002.data").write_bytes(data)
    assert [problem.split(" ")[0] for problem in verify_files(folder)] == ["segment_002.data"]
    monkeypatch.setattr("backends.hybrid.folder.HASHED_AT_LOAD_BYTES", len(data) - 1)
    read_folder(folder)


@pytest.mark.parametrize("name", ["../segment_000.onnx", "/etc/passwd", ""])
def test_no_file_outside_the_folder_is_touched(folder: Path, name: str) -> None:
    change(folder, lambda meta: meta["segments"][0]["builds"][0].update(file=name))
    assert listed(refusal(folder, "model_corrupt")) == [f"{name!r} is no name of a file inside the folder"]


def swap_outputs(meta: dict[str, Any]) -> None:
    outputs = meta["segments"][1]["outputs"]
    outputs[1]["role"], outputs[1]["layer"] = "k", 2


def absent(name: str) -> dict[str, str | int]:
    return {"file": name, "sha256": "0" * 64, "size_bytes": 160}


@pytest.mark.parametrize(
    ("edit", "problems"),
    [
        (
            lambda m: m.update(num_kv_heads=4),
            [
                "num_heads 6 is no multiple of num_kv_heads 4",
                *[f"segments[{index}].outputs: {role} has" for index in range(3) for role in "kv"],
            ],
        ),
        (
            lambda m: m.update(vocab_size=0),
            [
                "vocab_size is 0, but must be from 1 to 2147483647",
                "eos_token_ids holds 2",
                "segments[3].outputs: logits has",
            ],
        ),
        (lambda m: m.update(norm_eps=0), ["norm_eps is 0.0, but must be from 1e-12 to 1"]),
        (lambda m: m.update(lengths=[8, 1]), ["lengths is [8, 1], but must rise from 1"]),
        (lambda m: m.update(eos_token_ids=[5000]), ["eos_token_ids holds 5000"]),
        (lambda m: m["layers"][1].update(type="sliding"), ["layers[1].type is 'sliding'"]),
        (lambda m: m["attention"]["full"].update(window=0), ["attention.full.window is 0"]),
        (lambda m: m["attention"]["full"].update(scale=-1), ["attention.full.scale is -1.0"]),
        (
            lambda m: m["attention"]["full"]["rope"].update(rotary_dim=7),
            ["attention.full.rope.rotary_dim is 7"],
        ),
        (
            lambda m: m["attention"]["full"]["rope"].update(
                scaling={"type": "llama3", "parameters": {"factor": 8}}
            ),
            [
                f"attention.full.rope.scaling.parameters.{name} is missing"
                for name in ("low", "high", "original")
            ],
        ),
        (lambda m: m["layers"].pop(), ["there are 4 segments, but 2 attention layers need one more"]),
        (lambda m: m["segments"].pop(), ["there are 3 segments, but 3 attention layers need one more"]),
        (
            swap_outputs,
            [
                "segments[1].outputs lacks q of layer 1",
                "segments[1].outputs has k more than once",
                "segments[1].outputs: q has shape",
            ],
        ),
        (
            lambda m: m["segments"].insert(1, m["segments"].pop(2)),
            [
                "segments[1].inputs lacks attn of layer 0",
                *[f"segments[1].outputs lacks {role} of layer 1" for role in "qkv"],
                "segments[2].inputs lacks attn of layer 1",
                *[f"segments[2].outputs lacks {role} of layer 2" for role in "qkv"],
            ],
        ),
        (lambda m: m["segments"][3]["inputs"].pop(1), ["segments[3].inputs lacks attn of layer 2"]),
        (
            lambda m: m["segments"][2]["outputs"].append(m["segments"][2]["outputs"][0]),
            ["segments[2].outputs has hidden more than once", "segments[2] has two tensors of the name"],
        ),
        (
            lambda m: m["segments"][1]["outputs"][2].update(shape=["T", 17]),
            ["segments[1].outputs: k has shape ['T', 17], but k needs ['T', 16]"],
        ),
        (lambda m: m["segments"][0].update(builds=[]), ["segments[0].builds is empty"]),
        (
            lambda m: m["segments"][2]["builds"][0].update(data_size_bytes=None),
            ["segments[2].builds[0] has some of data_file, data_sha256, data_size_bytes and not all"],
        ),
        (lambda m: m["layers"][1].update(q_norm=absent("q.npy"), k_norm=absent("k.npy")), ["q.npy", "k.npy"]),
    ],
)
def test_what_does_not_fit_together(
    folder: Path, edit: Callable[[dict[str, Any]], object], problems: list[str]
) -> None:
    change(folder, edit)
    found = listed(refusal(folder, "model_corrupt"))
    assert len(found) == len(problems)
    for line, beginning in zip(found, problems, strict=True):
        assert line.startswith(beginning.removesuffix(" is missing"))


def test_what_the_engine_cannot_do_yet_is_listed(folder: Path) -> None:
    def edit(meta: dict[str, Any]) -> None:
        for segment in meta["segments"][:2]:
            segment["outputs"].append({"name": "f", "role": "final_hidden", "shape": ["T", 48]})

    change(folder, edit)
    assert listed(refusal(folder, "load_failed")) == [
        "segments[0]: a tensor of role final_hidden",
        "segments[1]: a tensor of role final_hidden",
    ]


def test_a_variant_or_executor_that_is_not_whole(folder: Path) -> None:
    def edit(meta: dict[str, Any]) -> None:
        for segment in meta["segments"][:2]:
            segment["builds"].append(segment["builds"][0] | {"variant": "int4"})

    change(folder, edit)
    assert read_folder(folder).variant == "fp32"
    assert listed(refusal(folder, "load_failed", variant="int4")) == [
        "onnx files of variant int4 for segments 2, 3 (whole ones: fp32)"
    ]
    assert listed(refusal(folder, "load_failed", executor="rknn")) == [
        "rknn files of variant fp32 for any segment (whole ones: none)"
    ]
    message = refusal(folder, "load_failed", variant="int8")
    assert listed(message) == ["onnx files of variant int8 for any segment (whole ones: fp32)"]
    assert "does not have what is asked for" in message  # and not what nobody could run


def test_another_variant_is_taken_where_there_is_no_fp32(folder: Path) -> None:
    change(folder, lambda meta: [segment["builds"][0].update(variant="int4") for segment in meta["segments"]])
    assert read_folder(folder).variant == "int4"


def test_a_truncated_file_beside_an_unsupported_field_is_damage_first(folder: Path) -> None:
    final = {"name": "f", "role": "final_hidden", "shape": ["T", 48]}
    change(folder, lambda meta: meta["segments"][0]["outputs"].append(final))
    (folder / "segment_001.data").write_bytes(b"")
    assert listed(refusal(folder, "model_corrupt"))[0].startswith("segment_001.data is cut off")


class Inner(msgspec.Struct):
    number: int | None


class Outer(msgspec.Struct):
    inner: Inner | None
    many: dict[str, list[Inner]]
    text: str = ""


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        ({"inner": None, "many": {}}, []),
        ({"inner": {"number": None}, "many": {"a": [{"number": 1}]}, "text": "t"}, []),
        ({"inner": {}, "many": {"a": [{}, {"number": "x"}]}}, 3),
        ({"inner": 5, "many": []}, 2),
        ({}, ["inner is missing", "many is missing"]),
        (7, 1),
    ],
)
def test_departures_are_none_exactly_when_the_data_converts(data: Any, lines: list[str] | int) -> None:
    found = departures(data, Outer)
    assert found == lines or len(found) == lines
    if found:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(data, Outer)
    else:
        msgspec.convert(data, Outer)


def test_a_graph_that_is_not_the_described_one(folder: Path) -> None:
    from backends.hybrid.ort import OrtExecutor

    def load() -> str:
        with pytest.raises(BackendError) as caught:
            OrtExecutor(read_folder(folder), 1, lambda done, what: None)
        assert caught.value.code == "model_corrupt"
        return caught.value.message

    graph = b"not a graph"
    (folder / "segment_002.onnx").write_bytes(graph)
    digest = hashlib.sha256(graph).hexdigest()
    change(
        folder,
        lambda meta: meta["segments"][2]["builds"][0].update(sha256=digest, size_bytes=len(graph)),
    )
    assert "onnxruntime cannot load" in load()
    first = (folder / "segment_001.onnx").read_bytes()
    (folder / "segment_002.onnx").write_bytes(first)
    digest = hashlib.sha256(first).hexdigest()

    def other(meta: dict[str, Any]) -> None:
        meta["segments"][2]["builds"][0].update(sha256=digest, size_bytes=len(first))
        meta["segments"][2]["outputs"][1]["name"] = "query"

    change(folder, other)
    assert "is not the graph" in load()


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"PK\x03\x04" + bytes(60),
        *(
            b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(100)
            for text in (
                b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 48), }",
                b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 48), }",
                b"{'descr': '<04', 'fortran_order': False, 'shape': (428, 48), }",
                b"{'descr': '<f4', 'fortran_order': False, 'shape': ((((",
                b"{[]: 1}",
                b"{'descr': 'O', 'fortran_order': False, 'shape': (1,), }",
            )
        ),
    ],
)
def test_a_damaged_header_of_a_table_is_damage(folder: Path, header: bytes) -> None:
    from backends.hybrid.weights import open_embedding

    read = read_folder(folder)
    (folder / "embedding.npy").write_bytes(header)
    with pytest.raises(BackendError, match=r"embedding\.npy") as caught:
        open_embedding(read)
    assert caught.value.code == "model_corrupt"


def test_an_embedding_of_another_shape(folder: Path) -> None:
    from backends.hybrid.forward import Forward
    from backends.hybrid.ort import OrtExecutor

    read = read_folder(folder)
    executor = OrtExecutor(read, 1, lambda done, what: None)
    np.save(folder / "embedding.npy", np.zeros((428, 47), np.float32))
    with pytest.raises(BackendError, match=r"shape \(428, 47\) where float32 of shape \(428, 48\)"):
        Forward(read, executor)
    (folder / "embedding.npy").write_bytes(b"\x93NUMPY\x01\x00junk")
    with pytest.raises(BackendError, match=r"embedding\.npy cannot be read"):
        Forward(read, executor)
