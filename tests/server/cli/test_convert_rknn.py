"""rkserve convert rknn: what it prints, and how it ends."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import psutil

from tests.convert.rknn.stand_in import StandIn
from tests.server.cli.command import COMMAND, environment, rkserve
from tests.tiny import tiny_folder


def test_a_table_of_all_segments_is_printed(tmp_path: Path) -> None:
    tiny_folder(tmp_path / "tiny", layers=1)
    StandIn(tmp_path / "env")
    done = rkserve("convert", "rknn", "tiny", "--env", "env", "--tokens", "4", home=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0][:3] == ["SEGMENT", "MB", "COSINE"]
    assert [row[0] for row in rows[1:4]] == ["0", "1", "all"]
    assert [row[2] for row in rows[1:4]] == 3 * ["1.0000000"]
    assert rows[4][-3:] == ["12", "of", "12"]
    assert done.stderr.splitlines()[-1] == f"rkserve: wrote {tmp_path / 'tiny'}"


def test_a_chip_that_cannot_be_built_for_is_wrong_usage(tmp_path: Path) -> None:
    done = rkserve("convert", "rknn", "tiny", "--target", "rk3399", home=tmp_path)
    assert (done.returncode, done.stderr) == (2, "rkserve: --target rk3399 is none of: rk3588\n")


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    done = rkserve("convert", "rknn", "tiny", home=tmp_path)
    assert done.returncode == 1
    assert "this is no hybrid folder" in done.stderr


def test_an_interrupt_ends_the_toolkit_and_keeps_what_is_finished(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny", layers=1)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    toolkit = StandIn(tmp_path / "env")
    toolkit.faults({"segment_001": "hang"})
    process = subprocess.Popen(
        [*COMMAND, "convert", "rknn", "tiny", "--env", "env"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = tmp_path / ".tiny.rknn" / "build.log"
    try:
        while not log.exists() or "building segment_001" not in log.read_text():
            assert process.poll() is None
            time.sleep(0.02)  # another process works: there is no event of it to wait for
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert psutil.wait_procs(children, timeout=60)[1] == []
    finally:
        process.kill()
        process.communicate()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    toolkit.built()
    toolkit.faults({})
    done = rkserve("convert", "rknn", "tiny", "--env", "env", home=tmp_path)
    assert "kept from before" in done.stdout
    assert [line.split()[0] for line in toolkit.built()] == ["segment_001"]
