"""What is odd in a tree that should be a machine's costs a value, never the program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from server.sysroot import Sysroot


@pytest.mark.timeout(30)
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text(" 12\0\n")
    machine = Sysroot(tmp_path)
    assert not machine.text("/pipe")
    assert not machine.denied("/pipe")
    assert machine.number("/file") == 12
    assert machine.text("/none") is None
