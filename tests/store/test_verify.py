"""Damage is found wherever it is, named by its pieces, remembered, and not loaded."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from server.store.errors import StoreError, WrongBytes
from server.store.manifest import decode_manifest, hash_file
from tests.rkllm.board import Board
from tests.server.cli.command import environment as environment_of
from tests.server.cli.command import models_dir, rkserve

PIECE = 16 * 2**20
RECORD, MANIFEST = ".record.json", ".manifest.json"


def own_model(home: Path, size_bytes: int, **keys: Any) -> Path:
    """Write an entry called mine, and its file, sparse but for some bytes; return the file's path."""
    config = home / "config" / "rkserve"
    config.mkdir(parents=True)
    more = "".join(f"    {key}: {value}\n" for key, value in keys.items())
    (config / "models.yaml").write_text(
        "version: 1\nmodels:\n  mine:\n    backend: rkllm\n    file: m.rkllm\n    template: chatml\n"
        f"    context_length: 64\n    memory_mb: 1\n    license: {{id: MIT}}\n{more}"
    )
    path = models_dir(home) / "mine" / "m.rkllm"
    path.parent.mkdir(parents=True)
    path.touch()
    os.truncate(path, size_bytes)
    write(path, 5, b"beginning")
    return path


def write(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def row(home: Path) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = json.loads(rkserve("verify", "mine", "--json", home=home).stdout)
    return found


def test_a_file_is_hashed_in_pieces(tmp_path: Path) -> None:
    content = random.Random(2).randbytes(10_000)
    path = tmp_path / "file"
    path.write_bytes(content)
    read: list[int] = []
    found = hash_file(path, "file", "hub", piece_bytes=4096, advance=read.append)
    assert found.sha256 == hashlib.sha256(content).hexdigest()
    assert found.pieces == [
        hashlib.sha256(content[start : start + 4096]).hexdigest() for start in (0, 4096, 8192)
    ]
    assert (found.size_bytes, read) == (10_000, [4096, 4096, 1808])
    assert [found.piece(number) for number in (0, 2)] == [(0, 4096), (8192, 1808)]
    path.write_bytes(b"")
    assert hash_file(path, "file").pieces == []


def test_a_file_that_changes_while_it_is_read_has_no_hash(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(9000))
    with pytest.raises(WrongBytes, match="changed while it was read"):
        hash_file(path, "file", piece_bytes=4096, advance=lambda _: os.truncate(path, 4096))


@pytest.mark.parametrize(
    "change",
    [
        {"pieces": []},
        {"size_bytes": -1},
        {"sha256": "x"},
        {"piece_bytes": 2**40},
        {"piece_bytes": 1},
        {"pieces": ["../../etc"]},
    ],
)
def test_a_manifest_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    file = {"name": "m", "size_bytes": 5, "sha256": "0" * 64, "piece_bytes": PIECE, "pieces": ["0" * 64]}
    assert decode_manifest(json.dumps({"files": [file]}).encode(), "x").files[0].size_bytes == 5
    with pytest.raises(StoreError, match="the manifest of x cannot be used"):
        decode_manifest(json.dumps({"files": [file | change]}).encode(), "x")


def test_damaged_pieces_are_named(tmp_path: Path) -> None:
    path = own_model(tmp_path, 3 * PIECE + 1000)
    first = rkserve("verify", home=tmp_path)
    assert first.returncode == 0
    assert "nobody has told the hash of m.rkllm, so it was taken down" in first.stderr
    assert rkserve("verify", home=tmp_path).returncode == 0
    before = path.stat()
    write(path, PIECE, b"x")
    write(path, 3 * PIECE + 999, b"x")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as bits that flip by themselves
    done = rkserve("verify", home=tmp_path)
    assert done.returncode == 1
    assert f"{path} is damaged in pieces 1, 3 (of 16 MiB each, counted from 0)" in done.stderr
    assert "rkserve repair mine --from" in done.stderr
    found = row(tmp_path)
    assert (found["state"], found["damaged_pieces"], found["size_bytes"]) == (
        "damaged",
        [1, 3],
        3 * PIECE + 1000,
    )
    assert found["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    (listed,) = [
        one for one in json.loads(rkserve("models", "--json", home=tmp_path).stdout) if one["id"] == "mine"
    ]
    assert listed["verified"] is False and "(2 damaged pieces)" in listed["warnings"][0]
    # Shorter is damage, too; and what is put right is right again.
    os.truncate(path, PIECE)
    assert row(tmp_path)["damaged_pieces"] == [1, 2, 3]
    os.truncate(path, 3 * PIECE + 1000)
    assert row(tmp_path)["state"] == "whole"


def test_the_hash_of_the_entry_is_what_counts(tmp_path: Path) -> None:
    own_model(tmp_path, 10, sha256='"' + "ab" * 32 + '"')
    found = row(tmp_path)
    assert (found["state"], found["expected"], found["expected_by"]) == ("damaged", "ab" * 32, "entry")
    assert found["damaged_pieces"] == []  # no manifest tells which


def test_a_hybrid_folder_is_compared_with_its_description(tmp_path: Path) -> None:
    config = tmp_path / "config" / "rkserve"
    config.mkdir(parents=True)
    (config / "models.yaml").write_text(
        "version: 1\nmodels:\n  mine: {backend: hybrid, folder: ., template: chatml, context_length: 64,\n"
        "    memory_mb: 1, license: {id: MIT}}\n"
    )
    folder = models_dir(tmp_path) / "mine"
    folder.mkdir(parents=True)
    (folder / "a.onnx").write_bytes(b"graph")
    (folder / "a.bin").write_bytes(b"weights")
    sha256 = [hashlib.sha256(content).hexdigest() for content in (b"graph", b"weights")]
    build = {"file": "a.onnx", "sha256": sha256[0], "data_file": "a.bin", "data_sha256": sha256[1]}
    source = {"format": "gguf", "file": "m.gguf", "sha256": "ab" * 32}  # as a conversion writes it
    (folder / "meta2.json").write_text(json.dumps({"source": source, "segments": [{"builds": [build]}]}))

    def verified() -> object:
        rows = json.loads(rkserve("models", "--json", home=tmp_path).stdout)
        return next(one["verified"] for one in rows if one["id"] == "mine")

    assert verified() is None
    assert rkserve("verify", "mine", home=tmp_path).returncode == 0
    assert verified() is True  # though what it was converted from is not there
    (folder / "a.bin").write_bytes(b"weighty")
    done = rkserve("verify", "mine", "--json", home=tmp_path)
    assert done.returncode == 1
    states = {Path(one["file"]).name: one["state"] for one in json.loads(done.stdout)}
    assert states == {"a.bin": "damaged", "a.onnx": "whole", "meta2.json": "whole"}


def test_a_folder_of_two_entries_is_read_once(tmp_path: Path) -> None:
    config = tmp_path / "config" / "rkserve"
    config.mkdir(parents=True)
    keys = "template: chatml, context_length: 64, memory_mb: 1, license: {id: MIT}"
    (config / "models.yaml").write_text(
        f"version: 1\nmodels:\n  variant: {{backend: hybrid, folder: ../mine, {keys}}}\n"
        f"  mine: {{backend: hybrid, folder: ., {keys}}}\n"
    )
    folder = models_dir(tmp_path) / "mine"
    folder.mkdir(parents=True)
    (folder / "a.onnx").write_bytes(b"damaged")
    build = {"file": "a.onnx", "sha256": hashlib.sha256(b"graph").hexdigest()}
    (folder / "meta2.json").write_text(json.dumps({"segments": [{"builds": [build]}]}))
    done = rkserve("verify", "--json", home=tmp_path)
    assert done.returncode == 1
    found = [(one["id"], one["state"]) for one in json.loads(done.stdout) if one["file"].endswith("onnx")]
    assert found == [("variant", "damaged"), ("mine", "damaged")]
    assert "verifying variant" in done.stderr and "verifying mine" not in done.stderr


def test_with_nothing_installed_there_is_nothing_to_verify(tmp_path: Path) -> None:
    assert rkserve("verify", home=tmp_path).returncode == 0
    done = rkserve("verify", "minicpm5-2b", home=tmp_path)
    assert done.returncode == 1 and "rkserve pull minicpm5-2b" in done.stderr


def test_what_is_known_to_be_damaged_is_not_loaded(tmp_path: Path) -> None:
    board = Board(tmp_path)
    board.add_runtime()
    board.add("mine")
    board.add("other")
    path = board.models / "mine" / "m.rkllm"

    def verify() -> int:
        return rkserve("verify", "mine", home=tmp_path, **environment).returncode

    environment = board.environment() | {"RKSERVE_MODELS_DIR": str(board.models)}
    assert verify() == 0
    content = path.read_bytes()
    path.write_bytes(content + b" ")
    assert verify() == 1
    with board.serve() as server:
        body = {"model": "mine", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
        refused = httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
        assert (refused.status_code, refused.headers["x-should-retry"]) == (503, "false")
        error = refused.json()["error"]
        assert error["code"] == "model_corrupt"
        assert "m.rkllm is damaged" in error["message"] and str(tmp_path) not in error["message"]
        model = server.model("mine")
        assert model["verified"] is False and "m.rkllm is damaged" in model["warnings"][0]
        assert server.ask("other")
        assert board.calls("rkllm_init") and len(board.calls("rkllm_init")) == 1
        # Another file in its place is another matter, without a restart.
        path.write_bytes(content)
        assert server.ask("mine")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_hides_no_damage(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]).returncode:
        pytest.skip("no disk can be mounted here")
    try:
        home = tmp_path / "home"
        own_model(home, 10, sha256='"' + "a" * 64 + '"')
        (disk / "mine").mkdir()
        (disk / "mine" / "m.rkllm").write_bytes(bytes(2**20))
        done = rkserve("verify", "--models-dir", str(disk), home=home)
        assert done.returncode == 1
        assert "m.rkllm is damaged" in done.stderr
        assert f"could not be written down in {disk / 'mine'}: No space left on device" in done.stderr
        assert os.listdir(disk / "mine") == ["m.rkllm"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


_WRITE = """
import sys
from pathlib import Path
from server.registry.entry import Entry
from server.registry.record import read_record, write_section
entry = Entry.model_construct(id="mine", backend="rkllm")
for count in range(300):
    write_section(entry, Path(sys.argv[1]), sys.argv[2], count)
    assert read_record(entry, Path(sys.argv[1]))[sys.argv[2]] == count
"""


def test_sections_of_a_record_that_two_write_at_once_are_all_kept(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", _WRITE, str(tmp_path)]
    writers = [subprocess.Popen([*command, name], env=environment_of(tmp_path)) for name in ("a", "b")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
