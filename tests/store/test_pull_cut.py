"""Pulls that are cut off, killed or lied to, and disks that are full."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

from tests.server.cli.command import COMMAND, environment
from tests.store.hub_server import Fault, Hub
from tests.store.little import CONTENT, REPO, SHA256, entry, files, kill_when_stalled, pull


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


def test_a_file_that_changes_in_mid_transfer_is_not_mixed(hub: Hub, tmp_path: Path) -> None:
    url = f"{hub.storage_url}/{REPO}/Little_w8a8.rkllm"
    entry(tmp_path, tokenizer=None, source={"url": url})
    newer = bytes(reversed(CONTENT))
    hub.faults = [Fault(), Fault(cut=70_000, then=(REPO, "Little_w8a8.rkllm", newer))]
    done = pull(tmp_path, hub)
    assert done.returncode == 0, done.stderr
    assert files(tmp_path)["Little_w8a8.rkllm"] == newer
