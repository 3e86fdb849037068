"""Pulling from a hub that answers as the real one does, over connections that fail in every way."""

from __future__ import annotations

import hashlib
import json
import random
import resource
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.cli import convert
from tests.server.cli.command import COMMAND, environment, models_dir, rkserve
from tests.store.hub_server import Fault, Hub, running_hub

REPO, BASE = "maker/Little-rkllm", "maker/Little"
CONTENT = random.Random(1).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
TOKENIZER = b'{"version": "1.0"}' + b" " * 3000  # large enough for LFS
CONFIG = b'{"chat_template": "x"}'
FOLDER_FILES = {
    "layer_00.rknn": CONTENT,
    "sub/embedding.npy": CONTENT[:5000],
    "tokenizer.json": b"{}",
    "meta2.json": json.dumps(
        {"version": 2, "segments": [{"file": "layer_00.rknn", "sha256": SHA256}]}
    ).encode(),
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with a model, and the model it was made of."""
    with running_hub() as running:
        running.repos = {
            REPO: {"Little_w8a8.rkllm": CONTENT, "LICENSE": b"Do good.\n", "README.md": b"# Little"},
            BASE: {"tokenizer.json": TOKENIZER, "tokenizer_config.json": CONFIG, "NOTICE": b"By us.\n"},
        }
        yield running


def entry(home: Path, **keys: Any) -> None:
    """Write the models.yaml of an entry called little."""
    own: dict[str, Any] = {
        "backend": "rkllm",
        "source": {"repo": REPO},
        "file": "Little_w8a8.rkllm",
        "template": "chatml",
        "tokenizer": {"repo": BASE},
        "context_length": 64,
        "memory_mb": 10,
        "license": {"id": "MIT", "notice": "weights modified", "attribution": "Powered by Little"},
    }
    own = {key: value for key, value in (own | keys).items() if value is not None}
    config = home / "config" / "rkserve"
    config.mkdir(parents=True, exist_ok=True)
    (config / "models.yaml").write_text(yaml.safe_dump({"version": 1, "models": {"little": own}}))


def pull(home: Path, hub: Hub, *more: str) -> subprocess.CompletedProcess[str]:
    done = rkserve("pull", "little", *more, home=home, **hub.environment())
    assert "Traceback" not in done.stderr
    return done


def files(home: Path, hidden: bool = False) -> dict[str, bytes]:
    """What lies in the model's directory, by name."""
    directory = models_dir(home) / "little"
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and (hidden or not path.name.startswith("."))
    }


WHOLE = {
    "Little_w8a8.rkllm": CONTENT,
    "tokenizer.json": TOKENIZER,
    "tokenizer_config.json": CONFIG,
    "licenses/maker--Little-rkllm/LICENSE": b"Do good.\n",
    "licenses/maker--Little/NOTICE": b"By us.\n",
}


def kill_when_stalled(home: Path, hub: Hub) -> None:
    """Run a pull and kill it when the storage has stopped sending."""
    process = subprocess.Popen(
        [*COMMAND, "pull", "little"],
        cwd=home,
        env=environment(home, **hub.environment() | {"HF_HUB_DOWNLOAD_TIMEOUT": "60"}),
        stderr=subprocess.DEVNULL,
    )
    try:
        assert hub.stalled.wait(60)
        partials = models_dir(home) / "little"
        while not any(path.stat().st_size for path in partials.glob("*/.*.partial")) and not any(
            path.stat().st_size for path in partials.glob(".*.partial")
        ):
            assert process.poll() is None  # what was sent is on its way through the loopback
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()


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


def test_a_connection_that_is_cut_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, tokenizer=None)
    hub.faults = [Fault(cut=70_000), Fault(status=503), Fault(cut=1), Fault(cut=0)]
    done = pull(tmp_path, hub)
    assert done.returncode == 0, done.stderr
    assert hub.ranges == [None, "bytes=70000-", "bytes=70000-", "bytes=70001-", "bytes=70001-"]
    assert hub.sent_bytes == len(CONTENT)
    assert files(tmp_path)["Little_w8a8.rkllm"] == CONTENT


def test_a_server_that_falls_silent_is_asked_again(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, tokenizer=None)
    hub.faults = [Fault(cut=50_000, stall=True)]
    assert pull(tmp_path, hub).returncode == 0
    assert hub.ranges == [None, "bytes=50000-"]
    assert files(tmp_path)["Little_w8a8.rkllm"] == CONTENT


def test_a_server_without_ranges_is_begun_with_anew(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, tokenizer=None)
    hub.faults = [Fault(cut=50_000), Fault(no_ranges=True)]
    assert pull(tmp_path, hub).returncode == 0
    assert hub.sent_bytes == 50_000 + len(CONTENT)
    assert files(tmp_path)["Little_w8a8.rkllm"] == CONTENT


def test_a_storage_that_gives_nothing_is_an_error_that_keeps_what_came(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, tokenizer=None)
    hub.faults = [Fault(cut=50_000), *[Fault(status=404)]]
    done = pull(tmp_path, hub)
    assert done.returncode == 1
    assert "Little_w8a8.rkllm could not be fetched: localhost says 404, it has no such file" in done.stderr
    assert "Little_w8a8.rkllm" not in files(tmp_path)
    assert pull(tmp_path, hub).returncode == 0
    assert hub.ranges[-1] == "bytes=50000-"


def test_a_killed_pull_leaves_nothing_under_the_name_and_is_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, tokenizer=None)
    hub.faults = [Fault(cut=120_000, stall=True)]
    kill_when_stalled(tmp_path, hub)
    there = files(tmp_path, hidden=True)
    assert "Little_w8a8.rkllm" not in there
    (begun,) = [content for name, content in there.items() if name.endswith(".partial")]
    assert begun and CONTENT.startswith(begun)
    assert pull(tmp_path, hub).returncode == 0
    assert hub.ranges == [None, f"bytes={len(begun)}-"]
    assert files(tmp_path)["Little_w8a8.rkllm"] == CONTENT
    assert not [name for name in files(tmp_path, hidden=True) if name.endswith(".partial")]


def test_right_size_and_wrong_bytes_are_refused_and_not_kept(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, tokenizer=None)
    hub.faults = [Fault(flip=123_456)]
    done = pull(tmp_path, hub)
    assert done.returncode == 1
    assert f"should have {SHA256}" in done.stderr
    assert [name for name in files(tmp_path, hidden=True) if "rkllm" in name and "licenses" not in name] == []
    assert pull(tmp_path, hub).returncode == 0


def test_damage_in_what_was_gone_on_with_is_mended_by_itself(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, tokenizer=None)
    hub.faults = [Fault(flip=10, cut=120_000, stall=True)]
    kill_when_stalled(tmp_path, hub)
    done = pull(tmp_path, hub)
    assert done.returncode == 0, done.stderr
    assert hub.ranges[0] is None and hub.ranges[1] is not None and hub.ranges[2] is None
    assert files(tmp_path)["Little_w8a8.rkllm"] == CONTENT


def test_a_hub_that_lists_another_hash_than_it_sends(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, tokenizer=None)
    hub.listed_sha256["Little_w8a8.rkllm"] = "0" * 64
    done = pull(tmp_path, hub)
    assert done.returncode == 1
    assert f"has come with the sha256 {SHA256}" in done.stderr
    assert "Little_w8a8.rkllm" not in files(tmp_path)


def test_a_newer_file_than_the_entry_was_written_for_is_not_fetched(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, tokenizer=None, sha256="2" * 64)
    done = pull(tmp_path, hub)
    assert done.returncode == 1
    assert f"has the sha256 {SHA256} at commit {hub.commit(REPO)}" in done.stderr
    assert hub.ranges == []


def test_a_full_disk_is_said_and_what_came_is_kept(hub: Hub, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the write fails in the middle, as on a full one."""
    entry(tmp_path, tokenizer=None)
    done = subprocess.run(
        [*COMMAND, "pull", "little"],
        cwd=tmp_path,
        env=environment(tmp_path, **hub.environment()),
        capture_output=True,
        text=True,
        timeout=90,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "is full; what has been fetched is kept in .Little_w8a8.rkllm." in done.stderr
    assert "Little_w8a8.rkllm" not in files(tmp_path)
    assert pull(tmp_path, hub).returncode == 0
    assert hub.ranges == [None, "bytes=100000-"]


def test_too_small_a_disk_is_known_before_anything_large_is_fetched(hub: Hub, tmp_path: Path) -> None:
    entry(tmp_path, tokenizer=None)
    hub.listed_sizes["Little_w8a8.rkllm"] = 10**15
    done = pull(tmp_path, hub)
    assert done.returncode == 1
    assert "not enough room for little" in done.stderr and "1,000,000,000 MB are needed" in done.stderr
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


def test_a_file_that_changes_in_mid_transfer_is_not_mixed(hub: Hub, tmp_path: Path) -> None:
    url = f"{hub.storage_url}/{REPO}/Little_w8a8.rkllm"
    entry(tmp_path, tokenizer=None, source={"url": url})
    newer = bytes(reversed(CONTENT))
    hub.faults = [Fault(), Fault(cut=70_000, then=(REPO, "Little_w8a8.rkllm", newer))]
    done = pull(tmp_path, hub)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path)["Little_w8a8.rkllm"] == newer


def test_the_hash_of_the_entry_counts_for_an_address(hub: Hub, tmp_path: Path) -> None:
    url = f"{hub.storage_url}/{REPO}/Little_w8a8.rkllm"
    entry(tmp_path, tokenizer=None, source={"url": url}, sha256="1" * 64)
    done = pull(tmp_path, hub)
    assert done.returncode == 1
    assert f"should have {'1' * 64}" in done.stderr
    assert "Little_w8a8.rkllm" not in files(tmp_path)
