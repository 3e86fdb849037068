"""Pulling from a hub that answers as the real one does: what is fetched, recorded, shown and refused."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest

from server.cli import convert
from tests.server.cli.command import COMMAND, models_dir, rkserve
from tests.store.hub_server import Fault, Hub
from tests.store.little import (
    BASE,
    CONTENT,
    FOLDER_FILES,
    REPO,
    SHA256,
    WHOLE,
    entry,
    files,
    kill_when_stalled,
    pull,
)


def test_model_tokenizer_and_licence_are_fetched_and_recorded(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path)
    done = pull(tmp_path, hub)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == WHOLE
    directory = models_dir(tmp_path) / "little"
    record = json.loads((directory / ".record.json").read_text())
    assert record["source"]["repo"] == REPO
    assert record["source"]["commit"] == hub.commit(REPO)
    assert record["source"]["base"] == {"repo": BASE, "commit": hub.commit(BASE)}
    assert record["source"]["files"]["Little_w8a8.rkllm"] == SHA256
    listed = json.loads((directory / ".manifest.json").read_text())["files"]
    manifest = {file["name"]: file for file in listed}
    assert manifest["Little_w8a8.rkllm"] == {
        "name": "Little_w8a8.rkllm",
        "size_bytes": 300_000,
        "sha256": SHA256,
        "piece_bytes": 16 * 2**20,
        "pieces": [SHA256],
        "origin": "hub",
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.rglob("*") if path.is_file()} == {0o644}
    # The login is for the hub alone.
    assert hub.tokens_seen == {"hub": {"Bearer hf_secret"}, "storage": {None}}
    for said in ("licence of little: MIT", "Powered by Little", "weights modified", hub.commit(REPO)[:12]):
        assert said in done.stderr
    (row,) = [
        row for row in json.loads(rkserve("models", "--json", home=tmp_path).stdout) if row["id"] == "little"
    ]
    assert (row["installed"], row["verified"], row["attribution"]) == (True, True, "Powered by Little")
    # Once more without a network: there is nothing to ask.
    hub.asked.clear()
    again = pull(tmp_path, hub)
    assert (again.returncode, hub.asked) == (0, [])
    assert "installed already" in again.stderr


def test_a_newer_file_than_the_entry_was_written_for_is_not_fetched(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, tokenizer=None, sha256="2" * 64)
    done = pull(tmp_path, hub)
    assert done.returncode == 1
    assert f"has the sha256 {SHA256} at commit {hub.commit(REPO)}" in done.stderr
    assert hub.ranges == []


def test_a_restricted_licence_is_shown_whole_and_accepted_once(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, license={"id": "Strict 1.0", "url": "https://example.org/strict", "accept": True})
    hub.repos[REPO]["LICENSE"] = b"You must not \x1b[31m...\nEND"
    done = pull(tmp_path, hub)
    assert done.returncode == 1
    assert "You must not [31m...\nEND" in done.stdout  # what would steer the terminal is taken out
    assert "under the Strict 1.0" in done.stderr and "--accept-license" in done.stderr
    assert hub.ranges == [] and "Little_w8a8.rkllm" not in files(tmp_path)
    assert pull(tmp_path, hub, "--accept-license").returncode == 0
    directory = models_dir(tmp_path) / "little"
    accepted = json.loads((directory / ".record.json").read_text())["license"]
    assert accepted["id"] == "Strict 1.0" and accepted["accepted"].startswith("20")
    (directory / "Little_w8a8.rkllm").unlink()
    assert pull(tmp_path, hub).returncode == 0


def test_of_an_original_model_the_lines_for_its_conversion_are_printed(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, backend="hybrid", file=None, folder=".", tokenizer=None)
    hub.repos[REPO] = {"model.safetensors": CONTENT, "config.json": b"{}"}
    done = pull(tmp_path, hub)
    assert done.returncode == 1
    assert done.stdout == (
        f"hf download {REPO} --local-dir little-original\n"
        "rkserve convert hf little-original --out little\n"
        "rkserve convert rknn little\n"
    )
    assert "made on a PC" in done.stderr and "RKSERVE_MODELS_DIR/little on the board" in done.stderr
    assert {"hf", "rknn"} <= {command.name for command in convert.app.registered_commands}
    hf = Path(COMMAND[0]).with_name("hf")  # the lines say that it comes with rkserve
    assert "--local-dir" in subprocess.run([hf, "download", "--help"], capture_output=True, text=True).stdout
    assert hub.ranges == []
    assert not (models_dir(tmp_path) / "little").exists()


def test_a_hybrid_folder_is_fetched_whole_its_description_last(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, backend="hybrid", file=None, folder=".", tokenizer=None)
    hub.repos[REPO] = FOLDER_FILES | {".gitattributes": b"x"}
    hub.faults = [Fault(cut=100_000, stall=True)]
    kill_when_stalled(tmp_path, hub)
    assert "meta2.json" not in files(tmp_path)
    done = pull(tmp_path, hub)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path) == FOLDER_FILES
    done = rkserve("verify", "little", "--json", home=tmp_path)
    rows = {Path(row["file"]).name: row for row in json.loads(done.stdout)}
    assert {row["state"] for row in rows.values()} == {"whole"}
    assert rows["layer_00.rknn"]["expected"] == SHA256


def test_a_folder_in_another_form_is_refused(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, backend="hybrid", file=None, folder=".", tokenizer=None)
    hub.repos[REPO] = FOLDER_FILES | {"meta2.json": b'{"n_layers": 24}'}
    done = pull(tmp_path, hub)
    assert done.returncode == 1
    assert "meta2.json is not in rkserve's form" in done.stderr
    assert hub.ranges == [] and "meta2.json" not in files(tmp_path)


def test_the_only_rkllm_file_is_taken_whatever_it_is_called(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, tokenizer=None, file="as-we-call-it.rkllm")
    assert pull(tmp_path, hub).returncode == 0
    assert files(tmp_path)["as-we-call-it.rkllm"] == CONTENT


def test_of_several_files_one_has_to_be_named(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, tokenizer=None, file="x.rkllm")
    hub.repos[REPO]["Little_w4a16.rkllm"] = CONTENT
    done = pull(tmp_path, hub)
    assert done.returncode == 1
    assert (
        "no file x.rkllm, but Little_w8a8.rkllm, Little_w4a16.rkllm: write the right one under file"
        in done.stderr
    )


def test_the_image_encoder_comes_too(hub: Hub, tmp_path: Path) -> None:
    vision = {"file": "eye.rknn", "size": [28, 28]}
    entry(tmp_path, tokenizer=None, vision=vision, capabilities=["chat", "vision"])
    hub.repos[REPO]["vision_rk3588.rknn"] = CONTENT[:9000]
    assert pull(tmp_path, hub).returncode == 0
    assert files(tmp_path)["eye.rknn"] == CONTENT[:9000]


@pytest.mark.parametrize(
    ("trouble", "said"),
    [("gated", "HF_TOKEN"), ("absent", "has no maker/Little"), ("no file", "has no tokenizer.json")],
)
def test_without_the_base_model_the_model_comes_all_the_same(
    trouble: str, said: str, hub: Hub, tmp_path: Path
) -> None:
    entry(tmp_path)
    if trouble == "gated":
        hub.gated = {BASE}
    elif trouble == "absent":
        del hub.repos[BASE]
    else:
        hub.repos[BASE] = {"vocab.txt": b"a"}
    done = pull(tmp_path, hub)
    assert done.returncode == 0
    assert said in done.stderr
    assert files(tmp_path)["Little_w8a8.rkllm"] == CONTENT


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("gated", "accept its terms at"),
        ("absent", "has no maker/Little-rkllm"),
        ("revision", "revision nowhere"),
    ],
)
def test_what_the_hub_refuses_is_told_with_what_to_do(
    trouble: str, said: str, hub: Hub, tmp_path: Path
) -> None:
    entry(tmp_path, tokenizer=None)
    hub.gated = {REPO} if trouble == "gated" else set()
    if trouble == "absent":
        del hub.repos[REPO]
    done = pull(tmp_path, hub, *(("--revision", "nowhere") if trouble == "revision" else ()))
    assert done.returncode == 1
    assert said in done.stderr
    assert not (models_dir(tmp_path) / "little").exists()


def test_a_hub_that_cannot_be_reached(tmp_path: Path) -> None:
    entry(tmp_path)
    done = rkserve("pull", "little", home=tmp_path, HF_ENDPOINT="http://127.0.0.1:1")
    assert done.returncode == 1
    assert "http://127.0.0.1:1 cannot be reached" in done.stderr and "HF_ENDPOINT" in done.stderr


def test_a_file_that_was_put_there_by_hand_is_compared_not_fetched(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, tokenizer=None)
    path = models_dir(tmp_path) / "little" / "Little_w8a8.rkllm"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert pull(tmp_path, hub).returncode == 0
    assert hub.ranges == []
    changed = bytearray(CONTENT)
    changed[-1] ^= 1
    path.write_bytes(changed)
    (path.parent / ".record.json").unlink()
    done = pull(tmp_path, hub)
    assert done.returncode == 1
    assert f"the source's {SHA256}" in done.stderr
    assert path.read_bytes() == changed  # it may be somebody's own
    (row,) = [
        row for row in json.loads(rkserve("models", "--json", home=tmp_path).stdout) if row["id"] == "little"
    ]
    assert row["verified"] is False
    done = pull(tmp_path, hub)
    assert done.returncode == 1
    assert f"little is installed, but {path} is damaged" in done.stderr


def test_a_file_at_an_address_is_fetched_and_its_hash_taken_down(hub: Hub, tmp_path: Path) -> None:
    url = f"{hub.storage_url}/{REPO}/Little_w8a8.rkllm"
    entry(tmp_path, tokenizer=None, source={"url": url})
    hub.faults = [Fault(), Fault(cut=70_000)]  # the first is asked by HEAD
    done = pull(tmp_path, hub)
    assert done.returncode == 0, done.stderr
    assert "names no sha256 to compare with" in done.stderr
    assert hub.ranges == [None, None, "bytes=70000-"]
    assert files(tmp_path)["Little_w8a8.rkllm"] == CONTENT
    assert hub.asked == []


def test_the_hash_of_the_entry_counts_for_an_address(hub: Hub, tmp_path: Path) -> None:
    url = f"{hub.storage_url}/{REPO}/Little_w8a8.rkllm"
    entry(tmp_path, tokenizer=None, source={"url": url}, sha256="1" * 64)
    done = pull(tmp_path, hub)
    assert done.returncode == 1
    assert f"should have {'1' * 64}" in done.stderr
    assert "Little_w8a8.rkllm" not in files(tmp_path)
