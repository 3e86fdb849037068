"""Values in meta2.json that no model can have are refused, all of them at once, and nothing else happens."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from backends.base import BackendError
from backends.files import sha256_of
from backends.hybrid.folder import HybridFolder, read_folder
from backends.hybrid.forward import Forward
from backends.hybrid.ort import OrtExecutor
from backends.spec import META_FILE
from tests.tiny import tiny_folder

LLAMA3 = {
    "type": "llama3",
    "parameters": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose description uses every field with a number in it."""
    path = tiny_folder(tmp_path_factory.mktemp("original"), layers=1)
    norm = path / "norm.npy"
    np.save(norm, np.ones(8, np.float32))
    meta = read_meta(path)
    full = meta["attention"]["full"]
    full |= {"window": 64, "softcap": 30.0}
    full["rope"]["scaling"] = LLAMA3
    file = {"file": norm.name, "sha256": sha256_of(norm), "size_bytes": norm.stat().st_size}
    meta["layers"][0] |= {"q_norm": file, "k_norm": file}
    meta["logits_softcap"] = 50.0
    meta["segments"][0]["max_hidden"] = 3.0
    meta["segments"][0]["builds"][0]["cosine"] = 1.0
    write_meta(path, meta)
    return path


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "folder"))


def read_meta(folder: Path) -> dict[str, Any]:
    meta: dict[str, Any] = msgspec.json.decode((folder / META_FILE).read_bytes())
    return meta


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    (folder / META_FILE).write_bytes(msgspec.json.encode(meta))


def numbers(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield where each number of a document stands."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        if isinstance(value, int | float):
            yield (*path, key)
        else:
            yield from numbers(value, (*path, key))


def put(document: Any, path: tuple[str | int, ...], value: bytes) -> bytes:
    """Return the document as JSON with these bytes as the value at `path`."""
    document = copy.deepcopy(document)
    node = document
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = msgspec.Raw(value)
    return msgspec.json.encode(document)


def runs(folder: HybridFolder) -> bool:
    """Load a folder that was accepted and compute one token with it."""
    executor = OrtExecutor(folder, 1, lambda done, what: None)
    forward = Forward(folder, executor)
    logits = forward.run(np.array([5], np.int32), forward.new_cache(), want_logits=True)
    executor.close()
    return logits is not None and bool(np.isfinite(logits).all())


WRONG = (
    "0",
    "-1",
    "1e308",
    "-1e308",
    "1e400",
    "NaN",
    "Infinity",
    "9223372036854775808",
    '"7"',
    "null",
    "[]",
    "{}",
)


@pytest.mark.parametrize("value", WRONG)
def test_any_number_may_be_wrong(folder: Path, value: str) -> None:
    meta = read_meta(folder)
    places = list(numbers(meta))
    assert len(places) > 40
    for place in places:
        (folder / META_FILE).write_bytes(put(meta, place, value.encode()))
        try:
            accepted = read_folder(folder)
        except BackendError as error:
            assert error.code == "model_corrupt", (place, error.message)
        else:
            assert runs(accepted), place


def refusal(folder: Path) -> list[str]:
    with pytest.raises(BackendError) as caught:
        read_folder(folder)
    assert caught.value.code == "model_corrupt"
    return [line.removeprefix("- ") for line in caught.value.message.splitlines() if line.startswith("- ")]


def rope(meta: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = meta["attention"]["full"]["rope"]
    return found


def scaling(meta: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = rope(meta)["scaling"]["parameters"]
    return found


def outputs(meta: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = meta["segments"][0]["outputs"]
    return found


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda m: m.update(logits_softcap=0), "logits_softcap is 0.0"),
        (lambda m: m.update(logits_softcap=-5), "logits_softcap is -5.0"),
        (lambda m: m.update(logits_scale=0), "logits_scale is 0.0"),
        (lambda m: m.update(logits_scale=1e38), "logits_scale is 1e+38"),
        (lambda m: m.update(residual_scale=-1), "residual_scale is -1.0"),
        (lambda m: m.update(norm_eps=2), "norm_eps is 2.0"),
        (lambda m: m["embedding"].update(scale=0), "embedding.scale is 0.0"),
        (lambda m: m["embedding"].update(scale=-1), "embedding.scale is -1.0"),
        (lambda m: m["embedding"].update(scale=1e30), "embedding.scale is 1e+30"),
        (lambda m: m["attention"]["full"].update(softcap=0), "attention.full.softcap is 0.0"),
        (lambda m: m["attention"]["full"].update(scale=1e300), "attention.full.scale is 1e+300"),
        (lambda m: m["attention"]["full"].update(window=2**31), "attention.full.window is 2147483648"),
        (lambda m: rope(m).update(theta=0), "attention.full.rope.theta is 0.0"),
        (lambda m: rope(m).update(theta=1e300), "attention.full.rope.theta is 1e+300"),
        (lambda m: scaling(m).update(factor=0), "attention.full.rope.scaling.parameters.factor is 0.0"),
        (
            lambda m: scaling(m).update(high_freq_factor=1.0),
            "attention.full.rope.scaling.parameters.low_freq_factor is 1.0, but must be below high",
        ),
        (lambda m: m.update(context_length=2**31), "context_length is 2147483648"),
        (lambda m: m.update(lengths=[1, 2**31]), "lengths goes up to 2147483648"),
        (lambda m: m.update(lengths=[]), "lengths is []"),
        (lambda m: m.update(eos_token_ids=[-1]), "eos_token_ids holds -1"),
        (lambda m: m.update(eos_token_ids=[0, m["vocab_size"]]), "eos_token_ids holds "),
        (lambda m: m["tokenizer"].update(file="a/tokenizer.json"), "'a/tokenizer.json' is no name of a file"),
        (lambda m: m["tokenizer"].update(file="nul\0"), "'nul\\x00' is no name of a file"),
        (lambda m: m["tokenizer"].update(file=".."), "'..' is no name of a file"),
        (lambda m: m["tokenizer"].update(file="a\n- b"), "'a\\n- b' is no name of a file"),
        (lambda m: m["tokenizer"].update(file="x" * 256), "'" + 40 * "x" + "' and more is no name of a file"),
        (lambda m: m["tokenizer"].update(file="漢" * 86), "'" + 86 * "漢" + "' is no name of a file"),
        (
            lambda m: m["tokenizer"].update(m["embedding"]["file"] | {"sha256": "0" * 64}),
            "embedding.npy is named twice, with different sizes or hashes",
        ),
        (
            lambda m: m["segments"][0]["builds"].append(m["segments"][0]["builds"][0]),
            "segments[0].builds has more than one for onnx of variant 'fp32'",
        ),
        (
            lambda m: m["segments"][0]["outputs"][0].update(name="hidden"),
            "segments[0] has two tensors of the name 'hidden'",
        ),
        (
            lambda m: outputs(m).append(outputs(m)[0] | {"name": "x", "layer": 9}),
            "segments[0].outputs has q more than once",
        ),
        (
            lambda m: outputs(m).append(outputs(m)[0] | {"name": "x", "role": "attn"}),
            "segments[0].outputs has attn, which does not belong there",
        ),
        (lambda m: m["layers"][0]["q_norm"].update(sha256="0" * 64), "norm.npy is named twice"),
        (
            lambda m: m["layers"][0].update(
                q_norm=None, k_norm=m["layers"][0]["k_norm"] | {"sha256": "0" * 64}
            ),
            "norm.npy has the right size and wrong bytes",
        ),
        (lambda m: m["layers"][0].update(q_norm="norm.npy"), "layers[0].q_norm: Expected `object`, got"),
    ],
)
def test_what_no_model_has(folder: Path, edit: Callable[[dict[str, Any]], object], problem: str) -> None:
    meta = read_meta(folder)
    edit(meta)
    write_meta(folder, meta)
    assert [line for line in refusal(folder) if line.startswith(problem)], refusal(folder)


def test_everything_that_is_wrong_is_told_at_once(folder: Path) -> None:
    meta = read_meta(folder)
    meta |= {"logits_softcap": 0, "context_length": 2**40, "lengths": [2]}
    rope(meta)["theta"] = -1
    meta["tokenizer"]["file"] = "x" * 300
    write_meta(folder, meta)
    assert len(refusal(folder)) == 5


def test_a_description_without_end_is_not_read(folder: Path) -> None:
    with (folder / META_FILE).open("r+b") as file:
        file.truncate(2**40)  # a hole: it takes no room on the disk
    with pytest.raises(BackendError, match=r"meta2\.json is over \d+ bytes long"):
        read_folder(folder)


def test_a_description_without_bottom_is_no_json(folder: Path) -> None:
    (folder / META_FILE).write_bytes(b"[" * 1_000_000)
    with pytest.raises(BackendError) as caught:
        read_folder(folder)
    assert caught.value.code == "model_corrupt"


def test_the_last_token_of_the_vocabulary_may_end_an_answer(folder: Path) -> None:
    meta = read_meta(folder)
    meta["eos_token_ids"] = [0, meta["vocab_size"] - 1]
    write_meta(folder, meta)
    assert read_folder(folder).meta.eos_token_ids == meta["eos_token_ids"]
