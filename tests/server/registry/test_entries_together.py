"""What entries say of each other: names, side models, adapters; and files over files."""

from __future__ import annotations

from pathlib import Path

import pytest

from backends.spec import ModelInfo
from server.registry import load_registry, packaged_file
from server.registry.last_load import keep_last_load, read_last_load
from server.settings import Settings
from tests.server.registry.written import HYBRID, problems


def test_an_alias_of_two_entries_is_refused_at_the_second(tmp_path: Path) -> None:
    second = HYBRID.split("models:\n")[1].replace("  m:", "  n:")
    text = HYBRID + "    aliases: [chat]\n" + second + "    aliases: [other, chat]\n"
    assert problems(text, tmp_path) == ['18: models.n.aliases[1]: "chat" is already an alias of m']


def test_an_entry_that_is_itself_at_fault_is_not_called_missing_as_well(tmp_path: Path) -> None:
    second = HYBRID.split("models:\n")[1].replace("  m:", "  n:").replace("4096", "0")
    found = problems(HYBRID + "    side_model: n\n" + second, tmp_path)
    assert found == ["15: models.n.context_length: must be greater than 0, not 0"]


def test_a_side_model_chats(tmp_path: Path) -> None:
    second = HYBRID.split("models:\n")[1].replace("  m:", "  n:").replace("hybrid", "rkllm")
    second = second.replace("folder: .", "file: f") + "    capabilities: [embeddings]\n    embeddings: {}\n"
    found = problems(HYBRID + "    side_model: n\n" + second, tmp_path)
    assert found == ['10: models.m.side_model: "n" does not chat']


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("other", '"other" does not run on rkllm'),
        ("third", '"third" is an adapter itself'),
        ("firs", 'no entry "firs"; did you mean "first"?'),
        ("long", '"long" has a context_length of 2, and so has its adapter: say 2'),
        ("file", '"file" has another file than the one under file:; leave that out'),
    ],
)
def test_an_adapter_needs_a_base_on_rkllm(base: str, message: str, tmp_path: Path) -> None:
    keys = "context_length: 1, memory_mb: 1, template: chatml, license: {id: MIT}"
    text = f"""\
version: 1
models:
  first: {{backend: rkllm, file: f, {keys}}}
  other: {{backend: hybrid, folder: f, {keys}}}
  long: {{backend: rkllm, file: f, {keys.replace("context_length: 1", "context_length: 2")}}}
  file: {{backend: rkllm, file: g, {keys}}}
  third: {{backend: rkllm, {keys}, rkllm: {{lora: {{base: first, file: l}}}}}}
  fourth: {{backend: rkllm, file: f, {keys}, rkllm: {{lora: {{base: {base}, file: l}}}}}}
"""
    assert problems(text, tmp_path) == [f"8: models.fourth.rkllm.lora.base: {message}"]


@pytest.mark.parametrize("key", ["eos: [x]", "runtime: ==1.3.1", "tokenizer: t.json", "runtime_check: warn"])
def test_an_adapter_cannot_say_what_its_base_says(key: str, tmp_path: Path) -> None:
    keys = "context_length: 1, memory_mb: 1, template: chatml, license: {id: MIT}"
    text = f"""\
version: 1
models:
  first: {{backend: rkllm, file: f, {keys}}}
  second: {{backend: rkllm, {keys}, rkllm: {{lora: {{base: first, file: l}}}}, {key}}}
"""
    name = key.partition(":")[0]
    message = "an adapter has this from its base; remove it"
    assert problems(text, tmp_path) == [f"4: models.second.{name}: {message}"]


def test_the_users_file_adds_entries_and_replaces_whole_ones(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    demo = HYBRID.replace("  m:", "  smollm2-135m:").replace("4096", "1000")
    own.write_text(demo + HYBRID.split("models:\n")[1])
    registry = load_registry(Settings(models_file=own, models_dir=tmp_path))
    packaged = load_registry(Settings(models_dir=tmp_path))
    assert set(registry.entries) == {*packaged.entries, "m"}
    demo_entry = registry.entries["smollm2-135m"]
    assert demo_entry.context_length == 1000
    assert demo_entry.source is None and demo_entry.eos == ()
    assert registry.entries["minicpm5-2b"] == packaged.entries["minicpm5-2b"]


def test_an_entry_of_the_users_may_name_a_packaged_one(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(HYBRID + "    side_model: smollm2-135m\n")
    registry = load_registry(Settings(models_file=own, models_dir=tmp_path))
    assert registry.entries["m"].side_model == "smollm2-135m"


def test_the_packaged_file_named_as_the_users_is_read_once(tmp_path: Path) -> None:
    registry = load_registry(Settings(models_file=packaged_file(), models_dir=tmp_path))
    assert len(registry.entries) == 10


def test_entries_on_one_folder(tmp_path: Path) -> None:
    """`../ID` is the folder of that entry: both are there at once, and the owner is still the only model."""
    own = tmp_path / "own.yaml"
    variant = HYBRID.split("models:\n")[1].replace("  m:", "  m-fp32:").replace("folder: .", "folder: ../m")
    own.write_text(HYBRID + variant)
    models = tmp_path / "models"
    registry = load_registry(Settings(models_file=own, models_dir=models))
    one, other = registry.entries["m"], registry.entries["m-fp32"]
    assert other.shares_with == "m" and one.shares_with is None
    assert one.path(models) == other.path(models) == other.directory(models) == models / "m"
    assert registry.only() is None
    (models / "m").mkdir(parents=True)
    (models / "m" / "meta2.json").touch()
    assert registry.installed() == [one, other]
    assert registry.only() is one
    for entry in (one, other):
        info = ModelInfo(runtime=f"of {entry.id}", context_length=1, vocab_size=1, memory_mb=1)
        keep_last_load(entry, models, info)
    for entry in (one, other):
        kept = read_last_load(entry, models)
        assert kept is not None and kept.runtime == f"of {entry.id}"


@pytest.mark.parametrize(
    ("owner", "message"),
    [
        ("frist", 'no entry "frist"; did you mean "first"?'),
        ("eighth", "names itself; its own folder is folder: ."),
        ("second", '"second" does not run on the hybrid engine'),
        ("third", '"third" is itself on the folder of another: say ../first'),
        ("fourth", '"fourth" has its folder elsewhere, under /srv/m: say where, as an absolute path'),
        ("fifth", '"fifth" has its folder elsewhere, under inner: say where, as an absolute path'),
    ],
)
def test_an_entry_on_the_folder_of_another_that_has_none(owner: str, message: str, tmp_path: Path) -> None:
    keys = "context_length: 1, memory_mb: 1, template: chatml, license: {id: MIT}"
    text = f"""\
version: 1
models:
  first: {{backend: hybrid, folder: ./, {keys}}}
  second: {{backend: rkllm, file: f, {keys}}}
  third: {{backend: hybrid, folder: ../first, {keys}}}
  fourth: {{backend: hybrid, folder: /srv/m, {keys}}}
  fifth: {{backend: hybrid, folder: inner, {keys}}}
  eighth: {{backend: hybrid, folder: ../{owner}, {keys}}}
"""
    assert problems(text, tmp_path) == [f"8: models.eighth.folder: {message}"]


def test_a_packaged_entry_whose_folders_owner_was_replaced(tmp_path: Path) -> None:
    """Nobody could mend it: what matters is whether there is a folder."""
    own = tmp_path / "own.yaml"
    own.write_text(HYBRID.replace("  m:", "  smollm2-135m:").replace("folder: .", "folder: /srv/m"))
    registry = load_registry(Settings(models_file=own, models_dir=tmp_path))
    assert registry.entries["smollm2-135m-fp32"].path(tmp_path) == tmp_path / "smollm2-135m"


@pytest.mark.parametrize("folder", ["../../m", "../m/x", "..", "../", "../.m", "../m/../.."])
def test_other_ways_out_of_the_models_directory(folder: str, tmp_path: Path) -> None:
    found = problems(HYBRID.replace("folder: .", f"folder: {folder}"), tmp_path)
    said = (
        'must stay in the model\'s directory (no ".."), or be absolute; ../ID is the folder of another entry'
    )
    assert any(line.endswith(said) for line in found), found
