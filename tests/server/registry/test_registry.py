"""Looking models up by name, where their files are, and what a worker is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from pydantic import ValidationError

from backends.spec import HybridOptions, ModelSpec, RkllmOptions
from server.app import create_app
from server.errors import ModelNotFound
from server.registry import Registry, load_registry, model_spec
from server.registry.entry import satisfiable
from server.settings import Settings
from tests.server.examples import example_entry


def registry_of(models_dir: Path) -> Registry:
    entries = [
        example_entry(id="demo-small", aliases=["gpt-4o", "org/demo:small"]),
        example_entry(id="demo-large"),
        example_entry(id="other", backend="rkllm", folder=None, file="other.rkllm"),
    ]
    return Registry({entry.id: entry for entry in entries}, models_dir)


@pytest.mark.parametrize("name", ["demo-small", "gpt-4o", "org/demo:small"])
def test_ids_and_aliases_are_found(name: str, tmp_path: Path) -> None:
    assert registry_of(tmp_path).resolve(name).id == "demo-small"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("demo-smal", "Did you mean demo-small or demo-large?"),
        ("demo", "Did you mean demo-small or demo-large?"),
        ("Other", "Did you mean other?"),
        ("../etc", 'There is no model "../etc". Installed: other.'),
    ],
)
def test_unknown_names_are_told_near_ones_and_what_is_installed(name: str, hint: str, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "other.rkllm").touch()
    with pytest.raises(ModelNotFound) as caught:
        registry_of(tmp_path).resolve(name)
    assert hint in caught.value.message
    assert caught.value.message.endswith("Installed: other.")
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")


def test_a_long_unknown_name_is_cut_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound) as caught:
        registry_of(tmp_path).resolve("x" * 100_000)
    assert len(caught.value.message) < 500


def test_the_registry_cannot_be_changed(tmp_path: Path) -> None:
    registry = registry_of(tmp_path)
    with pytest.raises(TypeError):
        registry.entries["new"] = registry.entries["other"]  # type: ignore[index]  # what the test is about
    with pytest.raises(ValidationError, match="frozen"):
        registry.entries["other"].memory_mb = 1


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"folder": "."}, "/models/example"),
        ({"folder": "a/b"}, "/models/example/a/b"),
        ({"folder": "/srv/x"}, "/srv/x"),
        ({"backend": "rkllm", "folder": None, "file": "m.rkllm"}, "/models/example/m.rkllm"),
        ({"backend": "rkllm", "folder": None, "file": "/srv/m.rkllm"}, "/srv/m.rkllm"),
    ],
)
def test_paths(keys: dict[str, object], path: str) -> None:
    assert example_entry(**keys).path(Path("/models")) == Path(path)


def test_a_hybrid_model_is_installed_with_its_description(tmp_path: Path) -> None:
    entry = example_entry()
    assert not entry.installed(tmp_path)
    (tmp_path / "example").mkdir()
    assert not entry.installed(tmp_path)
    assert example_entry(hybrid={"meta": "over.json"}).installed(tmp_path)
    (tmp_path / "example" / "meta2.json").touch()
    assert entry.installed(tmp_path)


def test_an_rkllm_model_is_installed_with_its_file(tmp_path: Path) -> None:
    entry = example_entry(backend="rkllm", folder=None, file="m.rkllm")
    (tmp_path / "example" / "m.rkllm").mkdir(parents=True)
    assert not entry.installed(tmp_path)
    (tmp_path / "example" / "m.rkllm").rmdir()
    (tmp_path / "example" / "m.rkllm").touch()
    assert entry.installed(tmp_path)


def test_what_a_worker_is_told(tmp_path: Path) -> None:
    entry = example_entry(
        folder="f",
        eos=["</s>", 2],
        stop=["\n\n"],
        max_tokens=7,
        tokenizer="tok.json",
        hybrid={"threads": 3, "kv_dtype": "fp16", "cache_mb": 9, "meta": "over.json", "core_mask": "0_1"},
    )
    assert model_spec(entry, Settings(models_dir=tmp_path)) == ModelSpec(
        model_id="example",
        backend="hybrid",
        path=str(tmp_path / "example" / "f"),
        context_length=2048,
        max_tokens=7,
        eos=["</s>", 2],
        stop=["\n\n"],
        tokenizer=str(tmp_path / "example" / "tok.json"),
        hybrid=HybridOptions(
            threads=3,
            kv_dtype="fp16",
            cache_mb=9,
            core_mask="0_1",
            meta=str(tmp_path / "example" / "over.json"),
        ),
    )


def test_what_an_rkllm_worker_is_told(tmp_path: Path) -> None:
    entry = example_entry(
        backend="rkllm",
        folder=None,
        file="m.rkllm",
        runtime="==1.3.1",
        runtime_check="warn",
        rkllm={
            "base_domain_id": 1,
            "cpus": [6, 7],
            "embed_flash": False,
            "n_keep": 3,
            "skip_special_token": True,
        },
    )
    settings = Settings(models_dir=tmp_path, repeat_guard=False)
    assert model_spec(entry, settings, tmp_path / "librkllmrt.so") == ModelSpec(
        model_id="example",
        backend="rkllm",
        path=str(tmp_path / "example" / "m.rkllm"),
        context_length=2048,
        max_tokens=1024,
        eos=[],
        repeat_guard=False,
        rkllm=RkllmOptions(
            library=str(tmp_path / "librkllmrt.so"),
            runtime="==1.3.1",
            runtime_check="warn",
            base_domain_id=1,
            cpus=(6, 7),
            embed_flash=False,
            n_keep=3,
            skip_special_token=True,
        ),
    )


def test_a_tokenizer_of_the_hub_counts_once_it_was_pulled(tmp_path: Path) -> None:
    entry = example_entry(tokenizer={"repo": "org/base"})
    settings = Settings(models_dir=tmp_path)
    assert model_spec(entry, settings).tokenizer is None
    (tmp_path / "example").mkdir()
    (tmp_path / "example" / "tokenizer.json").touch()
    assert model_spec(entry, settings).tokenizer == str(tmp_path / "example" / "tokenizer.json")


@pytest.mark.parametrize(
    ("specifier", "fits"),
    [
        ("==1.3.1", True),
        ("==1.3.*", True),
        (">=1.2", True),
        ("~=1.3.1", True),
        (">1.3.1", True),
        ("==1.3.250", True),
        ("==1.3.2b1", True),
        ("!=1.3.1", True),
        ("==1.2.3", False),
        ("<1.3", False),
        (">=1.4", False),
        ("==2.*", False),
        (">=1.3.5,<1.3.5", False),
    ],
)
def test_specifiers_against_the_versions_we_can_drive(specifier: str, fits: bool) -> None:
    assert satisfiable(specifier, SpecifierSet(">=1.3,<1.4")) is fits


def own_file(directory: Path, **keys: object) -> Path:
    """Write a models.yaml of the user's with one entry, `mine`, whose keys stand from line 4 on."""
    known = {"backend": "hybrid", "folder": ".", "template": "chatml", "context_length": 64, "memory_mb": 1}
    lines = [f"    {key}: {value}" for key, value in (known | keys).items()]
    path = directory / "models.yaml"
    path.write_text("\n".join(["version: 1", "models:", "  mine:", *lines, "    license: {id: MIT}", ""]))
    return path


def test_entries_of_one_s_own_without_files_are_named_with_their_line(tmp_path: Path) -> None:
    file = own_file(tmp_path)
    settings = Settings(models_dir=tmp_path / "models", models_file=file)
    registry = load_registry(settings)
    assert registry.missing() == [
        f"{file}:5: models.mine.folder: nothing usable is at {tmp_path}/models/mine. "
        f"Its entry names no source to pull from: put its files at {tmp_path}/models/mine"
    ]
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "models" / "mine" / "meta2.json").touch()
    assert load_registry(settings).missing() == []


def test_an_adapter_without_its_file_or_its_base_s_is_named_with_the_key(tmp_path: Path) -> None:
    lora = "{lora: {base: minicpm5-2b, file: a.rkllm}}"
    file = own_file(tmp_path, backend="rkllm", folder="null", context_length=4096, rkllm=lora)
    settings = Settings(models_dir=tmp_path / "models", models_file=file)
    of_file, of_base = load_registry(settings).missing()
    assert ": models.mine.rkllm.lora.file: nothing usable" in of_file
    assert f"{tmp_path}/models/mine/a.rkllm" in of_file
    assert ": models.mine.rkllm.lora.base: of minicpm5-2b nothing usable" in of_base
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "models" / "mine" / "a.rkllm").touch()
    assert load_registry(settings).missing() == [of_base]


def test_a_message_about_an_entry_says_where_it_stands_if_it_is_one_s_own(tmp_path: Path) -> None:
    file = own_file(tmp_path)
    registry = load_registry(Settings(models_dir=tmp_path, models_file=file))
    mine, packaged = registry.resolve("mine"), registry.resolve("smollm2-135m")
    assert registry.located(mine, "template", "odd") == f"{file}:6: models.mine.template: odd"
    assert registry.located(packaged, "template", "odd") == "odd"
    assert Registry({"mine": mine}).located(mine, "template", "odd") == "odd"


def test_the_server_says_at_its_start_what_is_wrong_with_models_of_one_s_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = own_file(tmp_path, template="gone.jinja")
    settings = Settings(models_dir=tmp_path / "models", models_file=file)
    with caplog.at_level("WARNING", "server.app"):
        create_app(settings, load_registry(settings))
    (record,) = caplog.records
    assert (record.levelname, record.getMessage()) == ("WARNING", load_registry(settings).missing()[0])
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "models" / "mine" / "meta2.json").touch()
    caplog.clear()
    with caplog.at_level("WARNING", "server.app"):
        create_app(settings, load_registry(settings))
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage().startswith(f"{file}:6: models.mine.template: mine is not served. ")
