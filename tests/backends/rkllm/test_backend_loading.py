"""A model on a scripted library: how it is loaded, and what its log comes to."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer

from backends.base import BackendError
from backends.rkllm.structs import RKLLMParam
from backends.spec import ModelSpec
from tests.backends.rkllm.asking import Start, options
from tests.backends.rkllm.conftest import (
    LOG,
    Scripted,
)
from tests.tiny import tiny_tokenizer


def test_the_entry_s_keys_reach_the_library(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    backend = start(
        options(spec, base_domain_id=1, cpus=(4, 6), embed_flash=False, n_keep=5, skip_special_token=True)
    )
    param = scripted.struct("init_param", RKLLMParam)
    assert scripted.text("init_path", 4096) == spec.path
    assert (param.max_context_len, param.max_new_tokens, param.n_keep) == (512, 100, 5)
    assert (param.skip_special_token, param.ignore_eos_token, param.is_async) == (True, False, False)
    assert (param.repeat_penalty, param.temperature) == (1.0, 1.0)
    extend = param.extend_param
    assert (extend.base_domain_id, extend.embed_flash, extend.n_batch, extend.use_cross_attn) == (1, 0, 1, 0)
    assert (extend.enabled_cpus_num, extend.enabled_cpus_mask) == (2, 0b0101_0000)
    assert scripted.text("chat_template", 64) == "[][][]"
    assert backend.info.runtime == "librkllmrt 1.3.1"
    assert backend.info.context_length == 512
    assert backend.info.vocab_size == Tokenizer.from_str(tiny_tokenizer()).get_vocab_size()
    assert backend.info.warnings == []
    assert backend.info.details["npu_driver"] == "0.9.8"
    assert backend.info.details["dtype"] == "W8A8"


def test_a_model_is_given_back_once(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    backend = start(spec)
    backend.close()
    backend.close()
    assert (scripted.get("inits"), scripted.get("destroys")) == (1, 1)


@pytest.mark.parametrize(
    ("log", "status", "null", "code", "says"),
    [
        ("E rkllm: invalid rknn llm model magic\n", 0, 1, "model_corrupt", "pull it again"),
        ("E rkllm: invalid rknn llm model magic\n", 0, 0, "model_corrupt", "pull it again"),
        ("failed to malloc npu memory\nrkllm_init failed\n", -1, 1, "insufficient_memory", "base_domain_id"),
        ("rknpu driver version is too low\n", -1, 1, "runtime_version_mismatch", "kernel"),
        ("nobody knows this line\n", -1, 1, "load_failed", "nobody knows this line"),
        ("", 0, 1, "load_failed", "no handle"),
    ],
)
def test_a_load_that_fails(
    scripted: Scripted, spec: ModelSpec, start: Start, log: str, status: int, null: int, code: str, says: str
) -> None:
    scripted.log(LOG + log)
    scripted.set("init_status", status)
    scripted.set("null_handle", null)
    with pytest.raises(BackendError) as caught:
        start(spec)
    assert caught.value.code == code
    assert says in caught.value.message
    assert scripted.get("destroys") == (0 if null else 1)


def test_a_driver_that_is_only_complained_of_is_a_warning(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.log(LOG + "rknpu driver version is too low\n")
    (warning,) = start(spec).info.warnings
    assert "kernel" in warning


def test_a_toolkit_that_does_not_fit(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.log(LOG.replace("toolkit version: 1.3.1", "toolkit version: 1.2.2"))
    with pytest.raises(BackendError) as caught:
        start(spec)
    assert caught.value.code == "runtime_version_mismatch"
    assert scripted.get("destroys") == 1
    (warning,) = start(options(spec, runtime_check="warn")).info.warnings
    assert "1.2.2" in warning


def test_a_model_made_for_less_context(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.log(LOG.replace("max_context_limit: 4096", "max_context_limit: 256"))
    info = start(spec).info
    assert info.context_length == 256
    assert "256" in info.warnings[0]


def test_a_library_of_another_version_is_not_opened(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    data = scripted.path.read_bytes().replace(b"(version: 1.3.1", b"(version: 1.2.3")
    old = scripted.path.with_name("old.so")
    old.write_bytes(data)
    with pytest.raises(BackendError, match=r"1\.2\.3") as caught:
        start(options(spec, library=str(old)))
    assert caught.value.code == "runtime_version_mismatch"
    with pytest.raises(BackendError, match="rkserve runtime install"):
        start(options(spec, library=None))
