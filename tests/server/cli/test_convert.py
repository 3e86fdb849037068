"""rkserve convert gguf: what it prints makes the model served, pasted as it stands."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.convert.gguf_files import write_gguf
from tests.server.cli.command import COMMAND, ROOT, models_dir, rkserve
from tests.serving import running_server


@pytest.mark.parametrize("has_file", [False, True], ids=["a new models.yaml", "added to one"])
def test_the_printed_entry_is_served_as_it_stands(has_file: bool, tmp_path: Path) -> None:
    write_gguf(tmp_path / "little.gguf")
    file = tmp_path / "config" / "rkserve" / "models.yaml"
    file.parent.mkdir(parents=True)
    if has_file:
        file.write_text("version: 1\nmodels:\n")
    done = rkserve("convert", "gguf", "little.gguf", "--out", "my little: model", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(file) in done.stderr.splitlines()[-1]
    with file.open("a") as yaml:
        yaml.write(done.stdout)
    with running_server(
        [*COMMAND, "serve"],
        models_dir=models_dir(tmp_path),
        cwd=tmp_path,
        environment={"PYTHONPATH": str(ROOT)},
    ) as url:
        answer = httpx2.post(
            f"{url}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "temperature": 0},
            timeout=60,
            trust_env=False,
        )
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "my-little-model"
    assert answer.json()["usage"]["completion_tokens"] >= 1


@pytest.mark.parametrize("name", ["no", "123", "..", "模型", "a b", "x" * 200])
def test_any_folder_gets_an_id_that_models_yaml_takes(name: str, tmp_path: Path) -> None:
    from convert.entry import entry_id
    from server.names import MODEL_ID

    assert MODEL_ID.fullmatch(entry_id(name))
