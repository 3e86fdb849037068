"""The vendor's lines, as seen on boards, and what is made of them."""

from __future__ import annotations

import pytest
from packaging.version import Version

from backends.base import BackendError
from backends.rkllm.agreement import check
from backends.rkllm.log import Fault, LoadLog, read_fault, read_faults, read_load_log

RUNTIME = "rkllm-runtime version: 1.3.1, rknpu driver version: 0.9.8, platform: RK3588"
MODEL = (
    "rkllm-toolkit version: 1.3.1, max_context_limit: 4096, npu_core_num: 3, target_platform: RK3588, "
    "model_dtype: W8A8"
)


@pytest.mark.parametrize("prefix", ["", "I rkllm: "])
def test_the_lines_of_a_load(prefix: str) -> None:
    lines = [
        prefix + RUNTIME,
        prefix + "loading rkllm model from /models/platform: x/rkllm-toolkit.rkllm",
        prefix + MODEL,
        prefix + "Enabled cpus: [4, 5, 6, 7]",
        prefix + "Enabled cpus num: 4",
    ]
    assert read_load_log(lines) == LoadLog(
        runtime="1.3.1",
        driver="0.9.8",
        platform="RK3588",
        toolkit="1.3.1",
        context_limit=4096,
        npu_cores=3,
        target="RK3588",
        dtype="W8A8",
        cpus=(4, 5, 6, 7),
    )


def test_what_a_line_lacks_is_unknown() -> None:
    log = read_load_log(["rkllm-toolkit version: unknown, max_context_limit: 4096, target_platform: RK3588"])
    assert (log.toolkit, log.toolkit_version, log.context_limit) == ("unknown", None, 4096)
    assert (log.dtype, log.npu_cores, log.runtime, log.cpus) == (None, None, None, None)
    assert read_load_log([]) == LoadLog()


def test_versions_and_dtypes_with_suffixes() -> None:
    log = read_load_log([MODEL.replace("1.3.1", "1.2.0b1").replace("W8A8", "W8A8_G256")])
    assert log.toolkit_version == Version("1.2.0b1")
    assert log.dtype == "W8A8_G256"


def test_details_for_people() -> None:
    log = read_load_log([RUNTIME, MODEL, "Enabled cpus: [4, 5]"])
    assert log.details() == {
        "runtime": "1.3.1",
        "npu_driver": "0.9.8",
        "platform": "RK3588",
        "toolkit": "1.3.1",
        "context_limit": "4096",
        "npu_cores": "3",
        "target_platform": "RK3588",
        "dtype": "W8A8",
        "cpus": "4 5",
    }


@pytest.mark.parametrize("prefix", ["", "E rkllm: ", "E RKNN: [10:11:12.013] "])
@pytest.mark.parametrize(
    ("line", "fault", "code", "says"),
    [
        ("rknpu driver version is too low", Fault.DRIVER_TOO_OLD, "runtime_version_mismatch", "kernel"),
        ("The model version is too old", Fault.MODEL_TOO_OLD, "runtime_version_mismatch", "convert"),
        ("target_platform does not match", Fault.WRONG_PLATFORM, "load_failed", "chip"),
        ("invalid rknn llm model magic", Fault.NO_MODEL, "model_corrupt", "pull it again"),
        (
            "max_context[16384] must be less than the model's max_context_limit[4096]",
            Fault.CONTEXT_OVER_LIMIT,
            "load_failed",
            "context_length: 4096",
        ),
        (
            "failed to allocate handle, ret: -1, errno: 14",
            Fault.NO_NPU_MEMORY,
            "insufficient_memory",
            "base_domain_id",
        ),
        ("failed to malloc npu memory", Fault.NO_NPU_MEMORY, "insufficient_memory", "base_domain_id"),
        ("rkllm_init failed", Fault.INIT_FAILED, "load_failed", "Verify"),
        ("matmul(w8a8) run failed", Fault.MATMUL_FAILED, "backend_crashed", "new one"),
        ("failed to submit!, op id: 3", Fault.SUBMIT_FAILED, "backend_crashed", "new one"),
        (
            "prompt gather than max context (prompt: 1299 tokens, max context: 1020)",
            Fault.PROMPT_TOO_LONG,
            "context_length_exceeded",
            "1299 tokens",
        ),
        (
            "Failed to set function tools, possibly because the chat_template is empty",
            Fault.NO_CHAT_TEMPLATE,
            "load_failed",
            "template",
        ),
    ],
)
def test_an_error_line_is_a_typed_error_with_a_remedy(
    prefix: str, line: str, fault: Fault, code: str, says: str
) -> None:
    logged = read_fault(prefix + line)
    assert logged is not None
    assert (logged.fault, logged.code) == (fault, code)
    assert says in logged.message
    assert logged.fatal == (fault in {Fault.SUBMIT_FAILED, Fault.MATMUL_FAILED})


def test_the_cause_comes_before_its_consequences() -> None:
    lines = [
        "rkllm_init failed",
        "failed to malloc npu memory",
        "failed to allocate handle, ret: -1, errno: 14",
    ]
    assert [logged.fault for logged in read_faults(lines)] == [Fault.NO_NPU_MEMORY, Fault.INIT_FAILED]


@pytest.mark.parametrize("line", [RUNTIME, MODEL, "Enabled cpus: [4, 5, 6, 7]", ""])
def test_other_lines_are_no_errors(line: str) -> None:
    assert read_fault(line) is None


FITTING = read_load_log([RUNTIME, MODEL])


def test_a_pair_that_fits() -> None:
    assert check("m", FITTING, Version("1.3.1"), "==1.3.1", strict=True) == []
    assert check("m", FITTING, Version("1.3.1"), None, strict=True) == []


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([RUNTIME.replace("1.3.1", "1.3.0"), MODEL], "says it is 1.3.0"),
        ([RUNTIME, MODEL.replace("1.3.1", "1.2.2")], "rkllm-toolkit 1.2.2"),
        ([RUNTIME, MODEL.replace("1.3.1", "1.3.1b1")], "rkllm-toolkit 1.3.1b1"),
    ],
)
def test_a_pair_that_does_not_fit_is_refused_or_warned_of(lines: list[str], says: str) -> None:
    log = read_load_log(lines)
    with pytest.raises(BackendError, match="runtime_check: warn") as caught:
        check("m", log, Version("1.3.1"), "==1.3.1", strict=True)
    assert caught.value.code == "runtime_version_mismatch"
    assert says in caught.value.message
    (warning,) = check("m", log, Version("1.3.1"), "==1.3.1", strict=False)
    assert says in warning


def test_a_runtime_of_another_layout_is_refused_in_any_case() -> None:
    log = read_load_log([RUNTIME.replace("1.3.1", "1.2.3"), MODEL])
    with pytest.raises(BackendError):
        check("m", log, Version("1.3.1"), None, strict=False)


def test_what_is_unknown_is_warned_of() -> None:
    log = read_load_log([MODEL.replace("1.3.1", "unknown")])
    assert len(check("m", log, Version("1.3.1"), "==1.3.1", strict=True)) == 2
