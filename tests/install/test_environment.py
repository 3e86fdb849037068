"""make setup, on a copy of what it needs and with few packages: what it mends by itself, and what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.install.test_installed_wheel import interpreter
from tests.serving import clean_environment
from tools.environment import LOCKED_UV, digest

ROOT = Path(__file__).resolve().parents[2]
FILES = ("Makefile", "pyproject.toml", "README.md", "LICENSE", "models.yaml")
FOLDERS = ("tools", "convert", "server", "backends", "requirements", "systemd", "docs")
# What building an editable install takes.
PACKAGES = ("editables", "hatchling", "packaging", "pathspec", "pluggy", "trove-classifiers")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A tree to set up, whose locked file names the fewest packages, with the installer in place."""
    tree = tmp_path / "one"
    tree.mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, tree / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    locked = (tree / "requirements" / "all.txt").read_text()
    blocks = re.split(r"\n(?=\S)", locked)
    few = [block for block in blocks if re.split("[=; ]", block)[0] in PACKAGES]
    assert len(few) == len(PACKAGES)
    (tree / "requirements" / "all.txt").write_text("\n".join(few) + "\n")
    (tree / ".uv" / "bin").mkdir(parents=True)
    (tree / ".uv" / "bin" / "uv").symlink_to(find_uv_bin())
    (tree / ".uv" / "bin" / "uv.locked").write_text(digest(LOCKED_UV))
    return tree


def make(
    tree: Path, *arguments: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "-s", "setup", *arguments],
        cwd=tree,
        env=clean_environment() if environment is None else environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def is_whole(tree: Path) -> bool:
    """Whether the environment's Python runs and its command names it."""
    script = (tree / ".venv" / "bin" / "rkserve").read_text().splitlines()[0]
    code = "import server, hatchling; print(server.__file__)"
    ran = subprocess.run(
        [tree / ".venv" / "bin" / "python", "-P", "-c", code], capture_output=True, text=True, check=True
    )
    return script == f"#!{tree}/.venv/bin/python" and ran.stdout.strip() == f"{tree}/server/__init__.py"


def test_it_sets_up_once_and_mends_what_no_longer_works(clone: Path) -> None:
    first = make(clone)
    assert first.returncode == 0, first.stderr
    assert is_whole(clone)
    assert make(clone).stderr == ""

    moved = clone.rename(clone.with_name("two"))
    again = make(moved)
    assert "making it anew" in again.stderr
    assert is_whole(moved)

    python = moved / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/gone/python3")
    assert make(moved).returncode == 0
    assert is_whole(moved)

    lines = (moved / "requirements" / "all.txt").read_text()
    (moved / "requirements" / "all.txt").write_text(lines + "# changed\n")
    assert "installing what is needed" in make(moved).stderr
    assert make(moved).stderr == ""


def test_another_python_that_is_named_makes_it_anew(clone: Path) -> None:
    other = interpreter("3.12" if sys.version_info[:2] != (3, 12) else "3.13")
    assert make(clone).returncode == 0
    assert make(clone, f"PYTHON={other}").returncode == 0
    version = subprocess.run([clone / ".venv/bin/python", "--version"], capture_output=True, check=True)
    assert version.stdout == subprocess.run([other, "--version"], capture_output=True, check=True).stdout
    assert make(clone).stderr == ""  # python3, which nobody named, takes it as it is


class Index:
    """A package index that has nothing, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        index = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                index.asked.append(self.path)
                self.send_error(404)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/simple"


@pytest.fixture
def index() -> Iterator[Index]:
    made = Index()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def test_the_index_of_pips_file_is_asked_and_a_failure_says_what_is_needed(
    clone: Path, index: Index, tmp_path: Path
) -> None:
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nindex-url = {index.url}\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    own = {
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_CONFIG_DIRS": str(tmp_path),
        "HOME": str(tmp_path),
        "PIP_CONFIG_FILE": str(config),
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "NO_PROXY": "127.0.0.1",
    }
    done = make(clone, f"PYTHON={sys.executable}", environment=kept | own)
    assert done.returncode != 0
    assert any(path.startswith("/simple/") for path in index.asked)
    assert "it needs the internet, or a package index that pip knows" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_older_python_is_told_which_ones_will_do(clone: Path) -> None:
    """Run as the newest Python that is too old would: the check must come before anything it cannot do."""
    script = clone / "tools" / "environment.py"
    script.write_text(script.read_text().replace("(3, 13)", "(3, 10)"))
    done = make(clone)
    assert done.returncode != 0
    assert done.stderr.startswith("rkserve: this needs Python 3.11, 3.12 or 3.13, and ")


def test_clean_leaves_nothing_that_git_ignores_and_everything_else(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    lines = (ROOT / ".gitignore").read_text().splitlines()
    # What people put beside the container's file is theirs.
    ignored = [line.strip("/") for line in lines if "docker/runtimes" not in line]
    made = [re.sub(r"^[*]", "x", name).replace("*", "-x") for name in ignored if name != "node_modules"]
    for name in [*made, "tests/sdk/node/node_modules", "server/cli/__pycache__", ".git/__pycache__", "docs"]:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").touch()
    subprocess.run(["make", "-s", "clean"], cwd=tmp_path, env=clean_environment(), check=True, timeout=60)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == [".git/__pycache__/file", "Makefile", "docs/file"]
    subprocess.run(["make", "-s", "clean"], cwd=tmp_path, env=clean_environment(), check=True, timeout=60)
