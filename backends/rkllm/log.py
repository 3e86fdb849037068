"""What librkllmrt prints, read. The only place that knows the vendor's wording; pure.

The library has no other way to tell its version or why it failed: its calls return 0 or -1. Lines come with
a prefix ("I rkllm: ") or without. Written after what the runtime versions 1.1 to 1.3 were seen to print.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from packaging.version import Version

from backends.base import ErrorCode
from backends.discovery import parse_version

_RUNTIME_LINE = "rkllm-runtime version:"
_MODEL_LINE = "rkllm-toolkit version:"
_CPUS = re.compile(r"Enabled cpus: \[([\d, ]*)\]")


@dataclass(frozen=True)
class LoadLog:
    """What the library printed while it loaded a model. None: it did not say. Versions as it wrote them."""

    runtime: str | None = None
    driver: str | None = None
    platform: str | None = None
    toolkit: str | None = None
    context_limit: int | None = None
    npu_cores: int | None = None
    target: str | None = None
    dtype: str | None = None
    cpus: tuple[int, ...] | None = None

    @property
    def runtime_version(self) -> Version | None:
        """The runtime's version, None for an unknown one."""
        return None if self.runtime is None else parse_version(self.runtime)

    @property
    def toolkit_version(self) -> Version | None:
        """The version of the toolkit that made the model, None for an unknown one."""
        return None if self.toolkit is None else parse_version(self.toolkit)

    def details(self) -> dict[str, str]:
        """Return what is known, for people, in words of ours."""
        known = {
            "runtime": self.runtime,
            "npu_driver": self.driver,
            "platform": self.platform,
            "toolkit": self.toolkit,
            "context_limit": self.context_limit,
            "npu_cores": self.npu_cores,
            "target_platform": self.target,
            "dtype": self.dtype,
            "cpus": None if self.cpus is None else " ".join(map(str, self.cpus)),
        }
        return {key: str(value) for key, value in known.items() if value is not None}


def read_load_log(lines: Iterable[str]) -> LoadLog:
    """Read the lines of a load. Of a line that comes twice the last counts."""
    runtime_line = model_line = ""
    cpus = None
    for line in lines:
        if _RUNTIME_LINE in line:
            runtime_line = line
        elif _MODEL_LINE in line:
            model_line = line
        elif match := _CPUS.search(line):
            cpus = tuple(int(number) for number in re.findall(r"\d+", match[1]))
    return LoadLog(
        runtime=_value(runtime_line, "rkllm-runtime version"),
        driver=_value(runtime_line, "rknpu driver version"),
        platform=_value(runtime_line, "platform"),
        toolkit=_value(model_line, "rkllm-toolkit version"),
        context_limit=_number(model_line, "max_context_limit"),
        npu_cores=_number(model_line, "npu_core_num"),
        target=_value(model_line, "target_platform"),
        dtype=_value(model_line, "model_dtype"),
        cpus=cpus,
    )


class Fault(Enum):
    """What an error line means. In the order of how much each explains: the first of several is the cause."""

    DRIVER_TOO_OLD = "driver_too_old"
    MODEL_TOO_OLD = "model_too_old"
    WRONG_PLATFORM = "wrong_platform"
    NO_MODEL = "no_model"
    CONTEXT_OVER_LIMIT = "context_over_limit"
    NO_NPU_MEMORY = "no_npu_memory"
    PROMPT_TOO_LONG = "prompt_too_long"
    NO_CHAT_TEMPLATE = "no_chat_template"
    SUBMIT_FAILED = "submit_failed"
    MATMUL_FAILED = "matmul_failed"
    INIT_FAILED = "init_failed"


FATAL = frozenset({Fault.SUBMIT_FAILED, Fault.MATMUL_FAILED})  # the process is of no use afterwards


@dataclass(frozen=True)
class LoggedFault:
    """An error line: what it means, the code for the client, and what is wrong and what to do."""

    fault: Fault
    code: ErrorCode
    message: str
    line: str

    @property
    def fatal(self) -> bool:
        """Whether only a new process helps."""
        return self.fault in FATAL


def read_faults(lines: Iterable[str]) -> list[LoggedFault]:
    """Return the errors that lines tell of, the most telling first, each kind once."""
    found: dict[Fault, LoggedFault] = {}
    for line in lines:
        logged = read_fault(line)
        if logged is not None:
            found.setdefault(logged.fault, logged)
    return [found[fault] for fault in Fault if fault in found]


def read_fault(line: str) -> LoggedFault | None:
    """Return the error a line tells of, if it does."""
    for fault, pattern, code, message in _FAULTS:
        if match := pattern.search(line):
            text = message if isinstance(message, str) else message(match.groups())
            return LoggedFault(fault, code, text, line.strip())
    return None


def _value(line: str, key: str) -> str | None:
    match = re.search(rf"(?<![\w-]){re.escape(key)}:\s*([^\s,]+)", line)
    return match[1] if match else None


def _number(line: str, key: str) -> int | None:
    value = _value(line, key)
    return int(value) if value is not None and value.isdecimal() else None


def _context_over_limit(numbers: Sequence[str]) -> str:
    wanted, limit = numbers
    return (
        f"The entry's context_length is {wanted}, but the model was converted for {limit} at most. "
        f"Set context_length: {limit} or less in models.yaml."
    )


def _prompt_too_long(numbers: Sequence[str]) -> str:
    tokens, limit = numbers
    return (
        f"The prompt has {tokens} tokens, and the runtime takes at most {limit} in this context. "
        "Shorten the conversation."
    )


_NO_NPU_MEMORY = (
    "The NPU has no memory left for this model. Unload other models, choose a smaller context_length or "
    "model, or, if another model is loaded, give this one another rkllm.base_domain_id (about 4 GB of "
    "address space belong to each domain)."
)
_RESTART = "The NPU gave up on the run, and this process cannot use it any more; a new one is started."

_FAULTS: Sequence[tuple[Fault, re.Pattern[str], ErrorCode, str | Callable[[Sequence[str]], str]]] = (
    (
        Fault.DRIVER_TOO_OLD,
        re.compile("rknpu driver version is too low"),
        "runtime_version_mismatch",
        "The NPU driver of this system's kernel is too old for the runtime. Update the kernel "
        "(driver 0.9.8 is known to work; rkserve doctor shows which there is).",
    ),
    (
        Fault.MODEL_TOO_OLD,
        re.compile("The model version is too old"),
        "runtime_version_mismatch",
        "The model was converted by a toolkit too old for this runtime. Pull or convert it again with "
        "rkllm-toolkit 1.3.",
    ),
    (
        Fault.WRONG_PLATFORM,
        re.compile("target_platform does not match"),
        "load_failed",
        "The model was converted for another chip. Pull or convert it for this one.",
    ),
    (
        Fault.NO_MODEL,
        re.compile("invalid rknn llm model magic"),
        "model_corrupt",
        "The file is no .rkllm model, or a damaged one. Verify it and pull it again.",
    ),
    (
        Fault.CONTEXT_OVER_LIMIT,
        re.compile(r"max_context\[(\d+)\] must be less than the model's max_context_limit\[(\d+)\]"),
        "load_failed",
        _context_over_limit,
    ),
    (
        Fault.NO_NPU_MEMORY,
        re.compile("failed to malloc npu memory|failed to allocate handle"),
        "insufficient_memory",
        _NO_NPU_MEMORY,
    ),
    (
        Fault.PROMPT_TOO_LONG,
        re.compile(r"prompt gather than max context \(prompt: (\d+) tokens, max context: (\d+)\)"),
        "context_length_exceeded",
        _prompt_too_long,
    ),
    (
        Fault.NO_CHAT_TEMPLATE,
        re.compile("Failed to set function tools"),
        "load_failed",
        "The runtime has no chat template of its own for this model, so it cannot be given tools. Let the "
        "entry's template write them.",
    ),
    (Fault.SUBMIT_FAILED, re.compile("failed to submit!"), "backend_crashed", _RESTART),
    (Fault.MATMUL_FAILED, re.compile(r"matmul\([^)]*\) run failed"), "backend_crashed", _RESTART),
    (
        Fault.INIT_FAILED,
        re.compile("rkllm_init failed"),
        "load_failed",
        "The runtime could not load the model. Verify the file, and check the free memory and the NPU "
        "driver: rkserve doctor.",
    ),
)
