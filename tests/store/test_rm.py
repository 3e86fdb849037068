"""Removing a model: what goes, what stays, and what is said beforehand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.server.cli.command import COMMAND, environment, models_dir, rkserve
from tests.server.cli.terminal import on_a_terminal, read_to_the_end, read_until


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A machine with a model whose directory holds what pulls and loads leave, and one elsewhere."""
    config = tmp_path / "config" / "rkserve"
    config.mkdir(parents=True)
    rest = "template: chatml, context_length: 64, memory_mb: 1, license: {id: MIT}}\n"
    (config / "models.yaml").write_text(
        f"version: 1\nmodels:\n  mine: {{backend: rkllm, file: m.rkllm, {rest}"
        f"  nas: {{backend: rkllm, file: {tmp_path}/nas.rkllm, {rest}"
        f"  poet: {{backend: rkllm, rkllm: {{lora: {{base: mine, file: p.rkllm}}}}, {rest}"
    )
    (tmp_path / "nas.rkllm").touch()
    for name in ("mine/m.rkllm", "mine/.m.rkllm.0123.partial", "mine/prompt-cache/x", "poet/p.rkllm"):
        path = models_dir(tmp_path) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(range(256)) * 4000)
    return tmp_path


def test_everything_of_the_model_goes_and_nothing_else(home: Path) -> None:
    done = rkserve("rm", "mine", "--yes", home=home)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in models_dir(home).iterdir()] == ["poet"]
    assert "3 MB are free again" in done.stderr
    assert "poet is an adapter of mine and does not run without it" in done.stderr
    again = rkserve("rm", "mine", "--yes", home=home)
    assert again.returncode == 1 and "of mine nothing is there" in again.stderr


def test_without_a_terminal_it_wants_to_be_told(home: Path) -> None:
    done = rkserve("rm", "mine", home=home)
    assert done.returncode == 2
    assert "say --yes" in done.stderr
    assert (models_dir(home) / "mine" / "m.rkllm").exists()


@pytest.mark.parametrize(("typed", "code"), [(b"y\n", 0), (b"n\n", 1), (b"\n", 1)])
def test_on_a_terminal_it_asks(typed: bytes, code: int, home: Path) -> None:
    process, ours = on_a_terminal([*COMMAND, "rm", "mine"], home, environment(home))
    shown = read_until(ours, b"[y/N]")
    assert b"remove" in shown and b"3 MB" in shown
    os.write(ours, typed)
    read_to_the_end(ours)
    assert process.wait(60) == code
    assert (models_dir(home) / "mine").exists() == (code != 0)


def test_a_folder_of_two_entries_is_removed_by_its_owner_only(home: Path) -> None:
    (models_dir(home) / "little").mkdir()
    (models_dir(home) / "little" / "meta2.json").touch()
    rest = "template: chatml, context_length: 64, memory_mb: 1, license: {id: MIT}}\n"
    (home / "config" / "rkserve" / "models.yaml").write_text(
        f"version: 1\nmodels:\n  little: {{backend: hybrid, folder: ., {rest}"
        f"  little-fp32: {{backend: hybrid, folder: ../little, {rest}"
    )
    done = rkserve("rm", "little-fp32", "--yes", home=home)
    assert done.returncode == 1 and "those of little: rkserve rm little removes both" in done.stderr
    assert (models_dir(home) / "little" / "meta2.json").exists()
    done = rkserve("rm", "little", "--yes", home=home)
    assert "little-fp32 has its files there, too, and goes with it" in done.stderr
    assert done.returncode == 0 and not (models_dir(home) / "little").exists()


def test_what_lies_elsewhere_stays(home: Path) -> None:
    done = rkserve("rm", "nas", "--yes", home=home)
    assert done.returncode == 1
    assert f"nas lies at {home}/nas.rkllm" in done.stderr
    (models_dir(home) / "nas").mkdir()
    (models_dir(home) / "nas" / "tokenizer.json").touch()
    done = rkserve("rm", "nas", "--yes", home=home)
    assert done.returncode == 0 and f"{home}/nas.rkllm stays" in done.stderr
    assert (home / "nas.rkllm").exists() and not (models_dir(home) / "nas").exists()


def test_a_link_is_taken_away_and_not_what_it_leads_to(home: Path) -> None:
    there = home / "there"
    (models_dir(home) / "mine").rename(there)
    (models_dir(home) / "mine").symlink_to(there)
    assert rkserve("rm", "mine", "--yes", home=home).returncode == 0
    assert (there / "m.rkllm").exists() and not os.path.lexists(models_dir(home) / "mine")


def test_what_is_loaded_is_said(home: Path) -> None:
    with (models_dir(home) / "mine" / "m.rkllm").open("rb"):
        done = rkserve("rm", "mine", "--yes", home=home)
    assert done.returncode == 0
    assert f"the files are in use now (process {os.getpid()})" in done.stderr


def test_two_commands_do_not_mix(home: Path) -> None:
    import fcntl

    descriptor = os.open(models_dir(home) / "mine", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # as a pull that runs holds it
        for command in (("rm", "mine", "--yes"), ("verify", "mine")):
            done = rkserve(*command, home=home)
            assert done.returncode == 1
            assert "another rkserve command is at work on mine" in done.stderr
    finally:
        os.close(descriptor)
    assert (models_dir(home) / "mine" / "m.rkllm").exists()
