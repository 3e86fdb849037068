"""What an entry says reaches the worker: each key, none under another's name."""

from __future__ import annotations

from pathlib import Path

from backends.base import Span
from backends.spec import (
    EmbeddingOptions,
    HybridOptions,
    ImageMarks,
    PromptCacheOptions,
    RkllmOptions,
    VisionOptions,
)
from server.registry import Entry, model_spec
from server.settings import Settings
from tests.server.examples import example_entry

RKLLM = {"backend": "rkllm", "folder": None, "file": "m.rkllm"}


def entry(**keys: object) -> Entry:
    return example_entry(**keys)


def test_every_key_under_hybrid(tmp_path: Path) -> None:
    keys = {
        "executor": "rknn",
        "core_mask": "0_1",
        "threads": 3,
        "kv_dtype": "fp16",
        "cache_mb": 7,
        "variant": "int4",
    }
    spec = model_spec(entry(hybrid={**keys, "meta": "over.json"}), Settings(models_dir=tmp_path))
    assert spec.hybrid == HybridOptions(
        executor="rknn",
        core_mask="0_1",
        threads=3,
        kv_dtype="fp16",
        cache_mb=7,
        variant="int4",
        meta=str(tmp_path / "example" / "over.json"),
    )


def test_every_key_under_rkllm(tmp_path: Path) -> None:
    keys = {
        "base_domain_id": 2,
        "cpus": [1, 3],
        "embed_flash": False,
        "n_keep": 5,
        "skip_special_token": True,
        "input": "text",
        "runtime_bos": "<s>",
        "last_token_cached": True,
        "clear_after_abort": True,
        "context_reserve": 9,
        "measure_prompts": False,
        "prompt_cache": True,
    }
    model = entry(**RKLLM, rkllm=keys, runtime=">=1.3.1", runtime_check="warn")
    prefix = [Span("Be brief.", True)]
    spec = model_spec(model, Settings(models_dir=tmp_path), tmp_path / "lib.so", fixed_prompt=prefix)
    assert spec.rkllm == RkllmOptions(
        library=str(tmp_path / "lib.so"),
        runtime=">=1.3.1",
        runtime_check="warn",
        base_domain_id=2,
        cpus=(1, 3),
        embed_flash=False,
        n_keep=5,
        skip_special_token=True,
        input="text",
        runtime_bos="<s>",
        last_token_cached=True,
        clear_after_abort=True,
        context_reserve=9,
        measure_prompts=False,
        prompt_cache=PromptCacheOptions(directory=str(tmp_path / "example" / "prompt-cache"), prefix=prefix),
    )


def test_every_key_under_vision(tmp_path: Path) -> None:
    keys = {
        "file": "v.onnx",
        "runtime": ">=2.3",
        "size": [392, 448],
        "layout": "nchw",
        "dtype": "float32",
        "mean": [1.0, 2.0, 3.0],
        "std": [4.0, 5.0, 6.0],
        "resize": "stretch",
        "marks": {"image": "<i>", "start": "<s>", "end": "<e>", "content": "<c>"},
    }
    model = entry(**RKLLM, vision=keys, capabilities=["chat", "vision"])
    settings = Settings(models_dir=tmp_path, max_image_mp=2)
    assert model_spec(model, settings).vision is None  # the encoder is not there
    (tmp_path / "example").mkdir()
    (tmp_path / "example" / "v.onnx").touch()
    assert model_spec(model, settings).vision == VisionOptions(
        encoder=str(tmp_path / "example" / "v.onnx"),
        runtime=">=2.3",
        size=(392, 448),
        layout="nchw",
        dtype="float32",
        mean=(1.0, 2.0, 3.0),
        std=(4.0, 5.0, 6.0),
        resize="stretch",
        marks=ImageMarks(image="<i>", start="<s>", end="<e>", content="<c>"),
        max_pixels=2_000_000,
    )


def test_every_key_under_embeddings(tmp_path: Path) -> None:
    keys = {
        "pooling": "mean",
        "normalize": False,
        "instruction": "Query:",
        "append": "<end>",
        "matryoshka": True,
    }
    model = entry(**RKLLM, embeddings=keys, capabilities=["embeddings"])
    assert model_spec(model, Settings(models_dir=tmp_path)).embeddings == EmbeddingOptions(
        pooling="mean", normalize=False, append="<end>", matryoshka=True
    )
