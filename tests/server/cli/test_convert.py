"""rkserve convert: what it prints makes the model served, pasted as it stands."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import httpx2
import pytest
import yaml

from tests.convert.checkpoints import write_checkpoint
from tests.convert.gguf_files import gguf_config, write_gguf
from tests.oracle.architectures import models
from tests.server.cli.command import COMMAND, ROOT, environment, models_dir, rkserve
from tests.serving import running_server


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_conversion_which_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    write_gguf(tmp_path / "deep.gguf", gguf_config(num_layers=120))
    process = subprocess.Popen(
        [*COMMAND, "convert", "gguf", "deep.gguf", "--out", "deep"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert "reading deep.gguf" in process.stderr.readline()
        while not (tmp_path / ".deep.partial").exists():
            assert process.poll() is None
            time.sleep(0.01)  # another process works: there is no event of it to wait for
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        assert process.stderr.read().splitlines()[-1] == "rkserve: interrupted"
    finally:
        process.kill()
        process.communicate()
    assert [path.name for path in tmp_path.iterdir()] == ["deep.gguf"]


def test_onnxruntime_reports_nothing_while_a_file_is_converted(tmp_path: Path) -> None:
    """It keeps what it would send to its maker, and a number for this machine, in ~/.cache."""
    write_gguf(tmp_path / "little.gguf")
    own = environment(tmp_path, HOME=str(tmp_path))
    del own["ORT_DISABLE_TELEMETRY"]  # the tests' own
    own.pop("XDG_CACHE_HOME", None)
    command = [*COMMAND, "convert", "gguf", "little.gguf", "--out", "little"]
    subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, check=True, timeout=90)
    assert not (tmp_path / ".cache" / "Microsoft").exists()


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


def test_the_printed_entry_may_go_straight_into_a_new_file(tmp_path: Path) -> None:
    """The shell makes the file before the command runs, and finds it empty."""
    write_gguf(tmp_path / "little.gguf")
    file = tmp_path / "config" / "rkserve" / "models.yaml"
    file.parent.mkdir(parents=True)
    with file.open("w") as output:
        subprocess.run(
            [*COMMAND, "convert", "gguf", "little.gguf", "--out", "little"],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=output,
            check=True,
            timeout=90,
        )
    done = rkserve("models", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "little" in [line.split()[0] for line in done.stdout.splitlines()]


SUGGESTED = {
    "general.sampling.temp": 0.6,
    "general.sampling.top_k": 20,
    "general.sampling.top_p": 1.5,  # out of bounds
    "general.sampling.penalty_repeat": 1.05,
}


@pytest.mark.parametrize(
    ("keys", "sampling"),
    [
        ({}, {"temperature": 0.2, "top_p": 0.9}),
        (SUGGESTED, {"temperature": 0.6, "top_k": 20, "repeat_penalty": 1.05}),
        ({"general.sampling.top_k": 2**32 - 1}, {"temperature": 0.2, "top_p": 0.9}),
        ({"general.sampling.min_p": 0.00001}, {"temperature": 0.2, "top_p": 0.9, "min_p": 0.00001}),
    ],
    ids=[
        "a moderate one",
        "what the file suggests",
        "more than models.yaml takes",
        "a moderate temperature with it",
    ],
)
def test_the_printed_entry_names_its_sampling(
    keys: dict[str, float], sampling: dict[str, float], tmp_path: Path
) -> None:
    write_gguf(tmp_path / "little.gguf", keys=keys)
    done = rkserve("convert", "gguf", "little.gguf", "--out", "little", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["models"]["little"]["sampling"] == sampling
    assert ("model card" in done.stdout) == (sampling["temperature"] == 0.2)
    (tmp_path / "models.yaml").write_text(done.stdout)
    assert rkserve("models", "--models-file", "models.yaml", home=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("file", "out", "message"),
    [
        ("little.gguf", "old", "old already exists. Remove it or choose another name. --overwrite replaces"),
        ("little.gguf", "mine", "mine already exists. Remove it or choose another name."),
        ("absent.gguf", "new", "absent.gguf cannot be read: No such file or directory."),
        ("mine/text", "new", "mine/text is not a GGUF file"),
    ],
)
def test_what_cannot_be_converted_is_one_line(file: str, out: str, message: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "little.gguf")
    for name in ("old/meta2.json", "mine/text"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("text")
    done = rkserve("convert", "gguf", file, "--out", out, home=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"rkserve: {message}")
    assert ("--overwrite" in done.stderr) == (out == "old")


def test_a_file_with_an_unknown_vocabulary_is_converted_with_the_model_s_tokenizer(tmp_path: Path) -> None:
    write_gguf(tmp_path / "little.gguf")
    assert rkserve("convert", "gguf", "little.gguf", "--out", "known", home=tmp_path).returncode == 0
    write_gguf(tmp_path / "little.gguf", keys={"tokenizer.ggml.pre": "tekken"})
    done = rkserve("convert", "gguf", "little.gguf", "--out", "other", home=tmp_path)
    message = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert "'tekken'" in message and "--tokenizer FILE" in message
    given = ("--tokenizer", "known/tokenizer.json")
    done = rkserve("convert", "gguf", "little.gguf", "--out", "other", *given, home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "other/tokenizer.json").read_text() == (tmp_path / "known/tokenizer.json").read_text()


@pytest.mark.parametrize("name", ["no", "123", "..", "模型", "a b", "x" * 200])
def test_any_folder_gets_an_id_that_models_yaml_takes(name: str, tmp_path: Path) -> None:
    from convert.entry import entry_id
    from server.names import MODEL_ID

    assert MODEL_ID.fullmatch(entry_id(name))


def test_a_checkpoint_is_converted_and_its_entry_taken_as_it_stands(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", models()["lfm3"])
    done = rkserve("convert", "hf", "checkpoint", "--out", "little-lfm", home=tmp_path)
    assert done.returncode == 0, done.stderr
    entry = yaml.safe_load(done.stdout)["models"]["little-lfm"]
    assert (entry["template"], entry["license"]) == ("model", {"id": "Apache-2.0"})
    (tmp_path / "models.yaml").write_text(done.stdout)
    listed = rkserve("models", "--models-file", "models.yaml", home=tmp_path)
    assert listed.returncode == 0 and "little-lfm" in listed.stdout
    again = rkserve("convert", "hf", "checkpoint", "--out", "little-lfm", home=tmp_path)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)
    assert "--overwrite replaces it." in again.stderr
    whole = rkserve("convert", "hf", "checkpoint", "--out", "little-lfm", "--overwrite", home=tmp_path)
    assert whole.returncode == 0, whole.stderr


def test_the_directory_one_stands_in_has_a_name(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "little", models()["llama"])
    done = rkserve("convert", "hf", ".", "--out", "../out", home=checkpoint)
    assert done.returncode == 0 and "rkserve: converting little: " in done.stderr


def test_a_config_that_is_not_understood_is_one_line(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint", models()["llama"], logits_scaling=8.0)
    done = rkserve("convert", "hf", "checkpoint", "--out", "out", home=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "logits_scaling (8.0)" in done.stderr
