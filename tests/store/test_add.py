"""Entries for .rkllm files that nobody has described: what is learnt, asked, and written, and what stays."""

from __future__ import annotations

import json
import os
import random
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.store.draft import id_for
from server.store.models_yaml import CannotInsert, add_entry, with_entry
from tests.server.cli.command import COMMAND, environment, models_dir, rkserve
from tests.server.cli.terminal import on_a_terminal, read_to_the_end, read_until
from tests.store.hub_server import Hub, running_hub

REPO, BASE = "someone/Qwen3-1.7B-rk3588-rkllm", "Qwen/Qwen3-1.7B"
CONTENT = random.Random(9).randbytes(5000)
MINE = """\
# My models.
version: 1
models:

  first:   # the one I like
    backend: rkllm
    file: /a.rkllm
    template: chatml
    context_length: 64
    memory_mb: 1
    license: {id: MIT}
    # sampling: {temperature: 0}
"""
ENTRY = "new:\n  backend: rkllm\n  stop: [x]\n"


@pytest.fixture
def hub() -> Iterator[Hub]:
    """A hub with a model that rkserve does not know."""
    with running_hub() as running:
        running.repos = {
            REPO: {"Qwen3-1.7B_w8a8.rkllm": CONTENT},
            BASE: {
                "tokenizer.json": b'{"version": "1.0"}',
                "tokenizer_config.json": json.dumps(
                    {"chat_template": "{% if enable_thinking %}{% endif %}", "eos_token": "<|im_end|>"}
                ).encode(),
                "generation_config.json": json.dumps(
                    {"eos_token_id": [151645, 151643], "temperature": 0.6, "top_p": 0.95, "top_k": 20}
                ).encode(),
            },
        }
        running.cards[REPO] = {"license": "apache-2.0", "base_model": [BASE]}
        yield running


def own_file(home: Path) -> Path:
    return home / "config" / "rkserve" / "models.yaml"


def written(home: Path, model: str) -> dict[str, Any]:
    entry: dict[str, Any] = yaml.safe_load(own_file(home).read_text())["models"][model]
    return entry


def test_a_repository_tells_all_of_it(hub: Hub, tmp_path: Path) -> None:
    done = rkserve("add", REPO, home=tmp_path, **hub.environment())
    assert done.returncode == 0, done.stderr
    assert written(tmp_path, "qwen3-1.7b") == {
        "backend": "rkllm",
        "source": {"repo": REPO},
        "file": "Qwen3-1.7B_w8a8.rkllm",
        "template": "model",
        "tokenizer": {"repo": BASE},
        "eos": [151645, 151643],
        "thinking": {"default": True, "switch": "enable_thinking"},
        "context_length": 4096,
        "memory_mb": 400,
        "capabilities": ["chat", "thinking"],
        "sampling": {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
        "license": {"id": "apache-2.0"},
    }
    assert yaml.safe_load(done.stdout) == {"qwen3-1.7b": written(tmp_path, "qwen3-1.7b")}
    assert "next: rkserve pull qwen3-1.7b" in done.stderr
    pulled = rkserve("pull", "qwen3-1.7b", home=tmp_path, **hub.environment())
    assert pulled.returncode == 0, pulled.stderr
    (row,) = [
        one
        for one in json.loads(rkserve("models", "--json", home=tmp_path).stdout)
        if one["id"] == "qwen3-1.7b"
    ]
    assert (row["installed"], row["verified"]) == (True, True)
    again = rkserve("add", REPO, home=tmp_path, **hub.environment())
    assert again.returncode == 1 and "there is a model qwen3-1.7b already" in again.stderr


def test_a_file_gets_the_tokenizer_of_the_model_it_was_made_of(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "mine.rkllm").write_bytes(CONTENT)
    own_file(tmp_path).parent.mkdir(parents=True)
    own_file(tmp_path).write_text(MINE)
    own_file(tmp_path).chmod(0o640)
    done = rkserve(
        *("add", "mine.rkllm", "--tokenizer", BASE, "--license", "Apache-2.0", "--context-length", "2048"),
        home=tmp_path,
        **hub.environment(),
    )
    assert done.returncode == 0, done.stderr
    text = own_file(tmp_path).read_text()
    assert text.startswith(MINE)  # every comment and blank is where it was
    assert stat.S_IMODE(own_file(tmp_path).stat().st_mode) == 0o640
    entry = written(tmp_path, "mine")
    assert entry["file"] == str(tmp_path / "mine.rkllm")
    assert (entry["template"], entry["context_length"]) == ("model", 2048)
    assert sorted(path.name for path in (models_dir(tmp_path) / "mine").iterdir()) == [
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    rows = {row["id"]: row for row in json.loads(rkserve("models", "--json", home=tmp_path).stdout)}
    assert rows["mine"]["installed"] is True


def test_what_is_not_known_has_to_be_said(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "mine.rkllm").write_bytes(CONTENT)
    done = rkserve("add", "mine.rkllm", home=tmp_path, **hub.environment())
    assert done.returncode == 2
    for said in ("template and license", "--template", "--license", "--tokenizer"):
        assert said in done.stderr
    assert not own_file(tmp_path).exists()
    done = rkserve("add", "mine.rkllm", "--template", "chatmll", "--license", "MIT", home=tmp_path)
    assert done.returncode == 2
    assert 'template: "chatmll": must be' in done.stderr and 'did you mean "chatml"?' in done.stderr
    assert not own_file(tmp_path).exists()
    arguments = ("--template", "chatml", "--license", "yes", "--eos", "<|im_end|>", "--eos", "2")
    assert rkserve("add", "mine.rkllm", *arguments, home=tmp_path).returncode == 0
    entry = written(tmp_path, "mine")
    assert (entry["eos"], entry["license"]) == (["<|im_end|>", 2], {"id": "yes"})


def test_on_a_terminal_it_asks(tmp_path: Path) -> None:
    (tmp_path / "mine.rkllm").write_bytes(CONTENT)
    process, ours = on_a_terminal([*COMMAND, "add", "mine.rkllm"], tmp_path, environment(tmp_path))
    for wanted, typed in ((b"prompt's form", b"chatml\n"), (b"licence of the weights", b"MIT\n")):
        read_until(ours, wanted)
        os.write(ours, typed)
    read_to_the_end(ours)
    assert process.wait(60) == 0
    assert written(tmp_path, "mine")["license"] == {"id": "MIT"}


@pytest.mark.parametrize("what", ["nothing.rkllm", "a/b/c", "model.gguf"])
def test_what_is_no_model_is_refused(what: str, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    done = rkserve("add", what, home=tmp_path)
    assert done.returncode == 1
    assert ("rkserve convert gguf" in done.stderr) == (what == "model.gguf")


def test_the_line_ends_of_a_file_stay(tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    before = MINE.rstrip("\n").replace("\n", "\r\n").encode()
    file.write_bytes(before)
    add_entry(file, "new", "new:\n  backend: rkllm\n")
    assert file.read_bytes() == before + b"\r\n  new:\r\n    backend: rkllm\r\n"


@pytest.mark.parametrize("arguments", [(b"bad\xff.rkllm",), (b"good.rkllm", b"--license", b"X\xff")])
def test_what_is_no_text_cannot_stand_in_models_yaml(arguments: tuple[bytes, ...], tmp_path: Path) -> None:
    for name in (b"bad\xff.rkllm", b"good.rkllm"):
        (tmp_path / os.fsdecode(name)).touch()
    done = rkserve("add", *map(os.fsdecode, arguments), "--template", "chatml", home=tmp_path)
    assert done.returncode == 2
    assert "\\xff" in done.stderr
    assert "is no UTF-8 text" in done.stderr
    assert not (tmp_path / "config" / "rkserve" / "models.yaml").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "version: 1\nmodels:\n  new:\n    backend: rkllm\n    stop: [x]\n"),
        (MINE, MINE + "  new:\n    backend: rkllm\n    stop: [x]\n"),
        ("version: 1\nmodels:", "version: 1\nmodels:\n  new:\n    backend: rkllm\n    stop: [x]\n"),
        (
            "models:\n    a: {x: 1}  # mine\n# about the version\nversion: 1",
            "models:\n    a: {x: 1}  # mine\n    new:\n      backend: rkllm\n      stop: [x]\n"
            "# about the version\nversion: 1\n",
        ),
        (
            "models:\n  a:\n    x: |\n      text\n\nversion: 1\n",
            "models:\n  a:\n    x: |\n      text\n\n  new:\n    backend: rkllm\n    stop: [x]\nversion: 1\n",
        ),
    ],
    ids=["new", "at the end", "no models yet", "in the middle", "behind a text"],
)
def test_an_entry_is_put_in_and_nothing_else_changes(before: str, after: str) -> None:
    assert with_entry(before, "new", ENTRY) == after


@pytest.mark.parametrize(
    "text",
    [
        "{version: 1, models: {}}",
        "version: 1\nmodels: {a: {}}",
        "- a\n",
        "version: 1\n",
        MINE + "...\n",
        "a: [",
        "x",
    ],
)
def test_a_file_in_another_form_is_left_alone(text: str) -> None:
    with pytest.raises(CannotInsert):
        with_entry(text, "new", ENTRY)


def test_what_cannot_be_put_in_is_printed_to_be_put_in_by_hand(tmp_path: Path) -> None:
    (tmp_path / "mine.rkllm").write_bytes(CONTENT)
    own_file(tmp_path).parent.mkdir(parents=True)
    own_file(tmp_path).write_text("{version: 1, models: {}}\n")
    done = rkserve("add", "mine.rkllm", "--template", "chatml", "--license", "MIT", home=tmp_path)
    assert done.returncode == 1
    assert "is left as it is, since" in done.stderr
    assert yaml.safe_load(done.stdout)["mine"]["template"] == "chatml"
    assert own_file(tmp_path).read_text() == "{version: 1, models: {}}\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen3-1.7B_w8a8_RK3588.rkllm", "qwen3-1.7b"),
        ("Qwen3-4B-Instruct-2507-rk3588-w8a8-rkllm", "qwen3-4b-instruct-2507"),
        ("\u5343\u554f.rkllm", "model"),
    ],
)
def test_ids_are_short(name: str, expected: str) -> None:
    assert id_for(name) == expected
