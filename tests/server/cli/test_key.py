"""Keys: made once, kept as hashes in a file of one's own, and accepted by the server's own reader."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest

from server.cli.keys_file import changing, read_lines
from server.http.keyring import KeyRing
from tests.server.cli.command import COMMAND, TIMEOUT_S, environment, rkserve


def test_a_key_is_shown_once_kept_as_a_hash_and_known_to_the_server(tmp_path: Path) -> None:
    done = rkserve("key", "add", "open webui", home=tmp_path)
    assert done.returncode == 0
    key = done.stdout.strip()
    assert re.fullmatch(r"rk-[A-Za-z0-9_-]{43}", key)
    file = tmp_path / "config" / "rkserve" / "keys"
    assert file.read_text() == f"open webui:{hashlib.sha256(key.encode()).hexdigest()}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(file.parent.iterdir()) == [file]
    assert KeyRing(file).name_of(key) == "open webui"


def test_keys_are_listed_and_revoked(tmp_path: Path) -> None:
    keys = {name: rkserve("key", "add", name, home=tmp_path).stdout.strip() for name in ("a", "b")}
    assert rkserve("key", "list", home=tmp_path).stdout == "a\nb\n"
    assert json.loads(rkserve("key", "list", "--json", home=tmp_path).stdout) == ["a", "b"]
    assert rkserve("key", "revoke", "a", home=tmp_path).returncode == 0
    assert rkserve("key", "list", home=tmp_path).stdout == "b\n"
    ring = KeyRing(tmp_path / "config" / "rkserve" / "keys")
    assert (ring.name_of(keys["a"]), ring.name_of(keys["b"])) == (None, "b")


def test_comments_and_rights_of_a_file_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the office\n\n")
    file.chmod(0o640)
    assert rkserve("key", "add", "a", "--file", "keys", home=tmp_path).returncode == 0
    assert file.read_text().startswith("# of the office\n\na:")
    assert file.stat().st_mode & 0o777 == 0o640


def test_the_file_of_the_service_is_used(tmp_path: Path) -> None:
    file = tmp_path / "service-keys"
    assert rkserve("key", "add", "a", home=tmp_path, RKSERVE_API_KEYS_FILE=str(file)).returncode == 0
    assert file.read_text().startswith("a:")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "a"), 'there is a key "a" already'),
        (("add", "a:b"), '"a:b" is no name for a key'),
        (("add", ""), '"" is no name for a key'),
        (("add", "a "), '"a " is no name for a key'),
        (("add", "a\nb"), "is no name for a key"),
        (("add", "#a"), '"#a" is no name for a key'),
        (("revoke", "b"), 'there is no key "b"'),
        (("add", "c", "--file", "/proc/none/keys"), "/proc/none/keys cannot be written: "),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    rkserve("key", "add", "a", home=tmp_path)
    file = tmp_path / "config" / "rkserve" / "keys"
    before = file.read_bytes()
    done = rkserve("key", *arguments, home=tmp_path)
    assert done.returncode == 1
    assert message in done.stderr
    assert (done.stdout, file.read_bytes()) == ("", before)


def test_the_last_key_revoked_says_what_happens_then_and_how_to_go_on(tmp_path: Path) -> None:
    for name in ("a", "b"):
        rkserve("key", "add", name, home=tmp_path)
    first = rkserve("key", "revoke", "a", home=tmp_path)
    assert "that was the last key" not in first.stderr
    last = rkserve("key", "revoke", "b", home=tmp_path)
    assert "a running server lets nobody in until `rkserve key add NAME` makes one" in last.stderr
    assert "started again, it is open to this machine" in last.stderr


def test_adding_says_what_a_running_server_does(tmp_path: Path) -> None:
    first = rkserve("key", "add", "a", home=tmp_path)
    assert "this is the first key: a server that uses this file asks for a key from now on\n" in first.stderr
    second = rkserve("key", "add", "b", home=tmp_path)
    assert "a server that uses this file accepts it from now on\n" in second.stderr
    named = rkserve("key", "add", "b", "--file", "other", home=tmp_path)
    assert "asks for a key from now on (rkserve serve --api-keys-file other)\n" in named.stderr


def test_a_misspelt_name_is_told_the_nearest(tmp_path: Path) -> None:
    rkserve("key", "add", "laptop", home=tmp_path)
    assert 'did you mean "laptop"?' in rkserve("key", "revoke", "lptop", home=tmp_path).stderr


CHANGING = """
import sys
from pathlib import Path
from server.cli.keys_file import changing

print("started", flush=True)
with changing(Path(sys.argv[1])) as lines:
    lines.append("late:" + "0" * 64)
"""


def test_a_change_waits_for_the_one_before_it_and_sees_what_that_wrote(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    with changing(file) as lines:
        other = subprocess.Popen(
            [COMMAND[0], "-c", CHANGING, str(file)],
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert other.stdout is not None and other.stdout.readline() == "started\n"
            with pytest.raises(subprocess.TimeoutExpired):
                other.wait(0.5)
            lines.append("early:" + "1" * 64)
        except BaseException:
            other.kill()
            other.communicate()
            raise
    other.communicate(timeout=TIMEOUT_S)
    assert read_lines(file) == ["early:" + "1" * 64, "late:" + "0" * 64]


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    rkserve("key", "add", "old", home=tmp_path)
    commands = [("revoke", "old"), *(("add", f"n{number}") for number in range(6))]
    running = [
        subprocess.Popen(
            [*COMMAND, "key", *command],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for command in commands
    ]
    assert [process.wait(TIMEOUT_S) for process in running] == [0] * len(commands)
    names = rkserve("key", "list", home=tmp_path).stdout.split()
    assert sorted(names) == [f"n{number}" for number in range(6)]
    assert [path.name for path in (tmp_path / "config" / "rkserve").iterdir()] == ["keys"]


def test_a_key_that_is_not_there_makes_no_directory(tmp_path: Path) -> None:
    assert rkserve("key", "revoke", "a", home=tmp_path).returncode == 1
    assert not (tmp_path / "config").exists()
