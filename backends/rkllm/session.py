"""One handle of librkllmrt: loading a model, runs, and the one destroy.

Knows no tokens' meaning, no stop strings and no registry. The library's conventions end here: return codes,
null handles, userdata, callbacks from its threads.

Threads: `Session(...)`, `run` and `close` from the engine's thread. The library calls back while `run` waits
in it, from that thread or one of its own, one call at a time. A callback copies what it needs, never calls
the library and never raises into it: to end a run early it wakes a thread that calls rkllm_abort.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from backends.base import Adapter, BackendError, Cancellation, EngineLost
from backends.rkllm.capture import Capture
from backends.rkllm.enums import CallbackReturn, LLMCallState, RKLLMInferMode, RKLLMInputType
from backends.rkllm.library import Library
from backends.rkllm.log import Fault, LoadLog, LoggedFault, read_faults, read_load_log
from backends.rkllm.multimodal import CachedImages, ImagePrompt, multimodal_input
from backends.rkllm.structs import (
    LLMHandle,
    LLMResultCallback,
    RKLLMCallback,
    RKLLMInferParam,
    RKLLMInput,
    RKLLMLoraAdapter,
    RKLLMLoraParam,
    RKLLMParam,
    RKLLMPromptCacheParam,
    RKLLMSamplingParam,
    RKLLMTokenInput,
)

EOS_GRACE_S = 0.01  # the library mostly ends at the EOS itself; an abort after its end might hit the next run
ABORT_AGAIN_S = (
    2.0  # an abort that comes before the run has begun is lost; in prefill one takes over a second
)
SHOWN_LINES = 3

_HARMLESS = frozenset({Fault.DRIVER_TOO_OLD, Fault.MODEL_TOO_OLD, Fault.NO_CHAT_TEMPLATE})
_MOST_BATCHES = 256  # n_batch is a uint8_t


class Ended(Enum):
    """Why a run ended."""

    ITSELF = "itself"  # the library's own EOS, or the limit it was given
    EOS = "eos"
    STOP = "stop"
    REPEATS = "repeats"
    CANCELLED = "cancelled"


Prompt = Sequence[int] | str | ImagePrompt
OnToken = Callable[[int, bytes], Ended | None]
"""Takes a token's id and text, which may be none or part of a character; returns why to end, if so."""

OnRows = Callable[[int, int, int], None]
"""Takes the address of float32 rows, how many there are, and their width; valid only during the call."""


@dataclass(frozen=True)
class SessionOptions:
    """How a model is loaded. cpus: the cores for what is not done on the NPU."""

    model: Path
    context_length: int
    max_tokens: int
    base_domain_id: int = 0
    cpus: Sequence[int] = (4, 5, 6, 7)
    embed_flash: bool = True
    n_keep: int = -1
    skip_special_token: bool = False
    clear_after_abort: bool = False


@dataclass(frozen=True)
class Perf:
    """The library's own figures of a run. prefill_tokens: those really prefilled, cached ones excepted."""

    prefill_tokens: int
    generate_tokens: int


@dataclass(frozen=True)
class Outcome:
    """A run that has ended. tokens: those made, also any made while it was being ended. Times in seconds.

    perf is None where the library gave none, as may be after an abort.
    """

    ended: Ended
    tokens: int
    perf: Perf | None
    prefill_s: float
    decode_s: float


class Session:
    """A loaded model. Owns the handle until `close`."""

    def __init__(self, library: Library, options: SessionOptions, capture: Capture) -> None:
        """Load a model; takes a minute from an SD card. Raises BackendError, LayoutMismatch."""
        self._functions: Any = library.functions
        self._missing = library.missing
        self._clear_after_abort = options.clear_after_abort
        self._adapters: set[Adapter] = set()
        self._capture = capture
        self._runs: dict[int, _Run] = {}
        self._ids = itertools.count(1)  # userdata; 0 would be NULL
        self._callback = LLMResultCallback(self._on_result)
        self._cached_images = CachedImages()
        self._handle: Any = None
        mark = capture.mark()
        handle = LLMHandle()
        param = _init_param(library.default_param(), options)
        callbacks = RKLLMCallback(result_callback=self._callback)
        status = self._functions.rkllm_init(
            ctypes.byref(handle), ctypes.byref(param), ctypes.byref(callbacks)
        )
        lines = capture.since(mark)
        self.log: LoadLog = read_load_log(lines)
        faults = read_faults(lines)
        if status != 0 or not handle.value:
            raise _load_failed(options.model, status, faults, lines)
        self._handle = handle
        if grave := [fault for fault in faults if fault.fault not in _HARMLESS]:
            self.close()
            raise _load_failed(options.model, status, grave, lines)
        self.warnings = [fault.message for fault in faults]
        self.template_off = self._functions.rkllm_set_chat_template(handle, b"", b"", b"") == 0

    def run(
        self,
        prompt: Prompt,
        sampling: RKLLMSamplingParam,
        max_new_tokens: int,
        on_token: OnToken,
        cancelled: Cancellation,
        adapter: Adapter | None = None,
    ) -> Outcome:
        """Make one answer to token ids, a text or a text with images; returns when the library has returned.

        An adapter that has not run before is loaded first, which may take some seconds.

        `on_token` is called for each token until it says to end. Raises what it raises, BackendError for what
        the library complains of, EngineLost.
        """
        lora = None if adapter is None else self._lora(adapter)
        infer = RKLLMInferParam(
            mode=RKLLMInferMode.GENERATE,
            sampling_params=ctypes.pointer(sampling),
            lora_params=None if lora is None else ctypes.pointer(lora),
            keep_history=0,
            max_new_tokens=max_new_tokens,
        )
        return self._execute(_Run(on_token, cancelled), prompt, infer, cancelled)

    def hidden_states(self, prompt: Sequence[int] | str, on_rows: OnRows, cancelled: Cancellation) -> Outcome:
        """Compute the last hidden states of token ids or a text; returns when the library has returned.

        `on_rows` is called for each piece of them; an empty one is left out. Raises as `run` does.
        """

        def take(result: Any) -> None:
            layer = result.last_hidden_layer
            if layer.hidden_states and layer.num_tokens > 0 and layer.embd_size > 0:
                on_rows(ctypes.addressof(layer.hidden_states.contents), layer.num_tokens, layer.embd_size)

        return self.states(prompt, RKLLMInferMode.GET_LAST_HIDDEN_LAYER, take, cancelled)

    def states(
        self,
        prompt: Sequence[int] | str,
        mode: RKLLMInferMode,
        take: Callable[[Any], None],
        cancelled: Cancellation,
    ) -> Outcome:
        """Run a prompt for its logits or hidden states. Raises as `run` does.

        `take` is called with each RKLLMResult that is no end, from within a callback, outside of which its
        pointers are not valid; what it raises is raised here.
        """
        neutral = _neutral_sampling()
        infer = RKLLMInferParam(
            mode=mode, sampling_params=ctypes.pointer(neutral), keep_history=0, max_new_tokens=1
        )
        return self._execute(_StatesRun(take, cancelled), prompt, infer, cancelled)

    @property
    def has_prompt_cache(self) -> bool:
        """Whether the library has prompt caches at all."""
        return not self._missing & {"rkllm_load_prompt_cache", "rkllm_release_prompt_cache"}

    def save_prompt_cache(self, prompt: Sequence[int] | str, path: Path) -> bool:
        """Compute a prompt and have the library write its KV cache to a file; returns whether it says it did.

        Raises EngineLost where the library is of no more use.
        """
        cache = RKLLMPromptCacheParam(save_prompt_cache=1, prompt_cache_path=str(path).encode())
        neutral = _neutral_sampling()
        infer = RKLLMInferParam(
            mode=RKLLMInferMode.GENERATE,
            prompt_cache_params=ctypes.pointer(cache),
            sampling_params=ctypes.pointer(neutral),
            keep_history=0,
            max_new_tokens=1,
        )
        run = _Run(_no_token, Cancellation())
        status, lines = self._launch(run, prompt, infer, Cancellation())
        _raise_fatal(read_faults(lines))
        return status == 0 and not run.error

    def load_prompt_cache(self, path: Path) -> bool:
        """Fill the KV cache from a file; returns whether it worked. What the cache held is lost either way.

        Raises EngineLost where the library is of no more use.
        """
        mark = self._capture.mark()
        status = self._functions.rkllm_load_prompt_cache(self._handle, str(path).encode())
        _raise_fatal(read_faults(self._capture.since(mark)))
        if status != 0:
            self._functions.rkllm_release_prompt_cache(self._handle)  # whatever it has read of it
        return bool(status == 0)

    def _execute(
        self,
        run: _Run,
        prompt: Prompt,
        infer: RKLLMInferParam,
        cancelled: Cancellation,
    ) -> Outcome:
        images = prompt.digests if isinstance(prompt, ImagePrompt) else ()
        if self._cached_images.contradict(images):
            self._forget_images()
        self._cached_images.run_begins()
        status, lines = self._launch(run, prompt, infer, cancelled)
        if run.aborted and self._clear_after_abort:
            self.clear_kv_cache()
        self._check(run, status, lines)
        outcome = run.outcome()
        if outcome.tokens:  # else it may have ended before the library turned to this prompt
            self._cached_images.run_ended(images)
        return outcome

    def _launch(
        self, run: _Run, prompt: Prompt, infer: RKLLMInferParam, cancelled: Cancellation
    ) -> tuple[int, list[str]]:
        """Run until the library has returned; returns what it returned, and the lines it wrote meanwhile."""
        mark = self._capture.mark()
        userdata = next(self._ids)
        self._runs[userdata] = run
        run_input, _keep = _input(prompt)
        ender = threading.Thread(target=self._end_early, args=(run,), name="abort", daemon=True)
        ender.start()
        cancelled.listen(run.cancel)
        try:
            status = self._functions.rkllm_run(
                self._handle, ctypes.byref(run_input), ctypes.byref(infer), userdata
            )
        finally:
            run.end()
            cancelled.listen(None)
            ender.join()
            del self._runs[userdata]
        return status, self._capture.since(mark)

    def clear_kv_cache(self) -> bool:
        """Empty the KV cache; returns whether the library says it has. Not in a run."""
        if "rkllm_clear_kv_cache" in self._missing:
            return False
        return int(self._functions.rkllm_clear_kv_cache(self._handle, 0, None, None)) == 0

    def abort(self) -> int:
        """Call rkllm_abort while nothing runs, which probes do; return what it returns."""
        return int(self._functions.rkllm_abort(self._handle))

    def kv_cache_size(self) -> int | None:
        """Return how many tokens the KV cache holds, None where the library does not say; not in a run."""
        if "rkllm_get_kv_cache_size" in self._missing:
            return None
        sizes = (ctypes.c_int * _MOST_BATCHES)()
        if self._functions.rkllm_get_kv_cache_size(self._handle, sizes) != 0:
            return None
        return int(sizes[0])

    def close(self) -> None:
        """Give the handle back. Once; further calls do nothing. Not during a run."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._functions.rkllm_destroy(handle)

    def _lora(self, adapter: Adapter) -> RKLLMLoraParam:
        """Return the struct that names a loaded adapter. Raises BackendError, EngineLost."""
        name = adapter.name.encode()
        if adapter not in self._adapters:
            self._load_adapter(adapter, name)
            self._adapters.add(adapter)
        return RKLLMLoraParam(lora_adapter_name=name)

    def _load_adapter(self, adapter: Adapter, name: bytes) -> None:
        file = Path(adapter.path).name
        if "rkllm_load_lora" in self._missing:
            raise BackendError("load_failed", f"The adapter {file} cannot be used: this runtime knows none.")
        mark = self._capture.mark()
        lora = RKLLMLoraAdapter(adapter.path.encode(), name, adapter.scale)
        status = self._functions.rkllm_load_lora(self._handle, ctypes.byref(lora))
        lines = self._capture.since(mark)
        faults = read_faults(lines)
        if fatal := [fault for fault in faults if fault.fatal]:
            raise EngineLost(f"{fatal[0].message} (It said: {fatal[0].line})")
        if status != 0:
            raise BackendError(
                "load_failed",
                f"The adapter {file} cannot be loaded: the runtime returned {status}.{_quoted(lines)} Was it "
                "made for this base model, and by the same toolkit?",
                "model",
            )

    def _forget_images(self) -> None:
        if not self.clear_kv_cache():
            raise EngineLost("The runtime does not clear its KV cache, which may hold another image.")

    def _on_result(self, result: Any, userdata: int | None, state: int) -> int:
        run = self._runs.get(userdata or 0)
        if run is not None:
            run.take(result, state)
        return CallbackReturn.GO_ON

    def _end_early(self, run: _Run) -> None:
        """Abort a run once that is asked for; returns when the run has returned."""
        run.asked.wait()
        if run.ended is Ended.EOS and run.returned.wait(EOS_GRACE_S):
            return
        while True:
            run.again.clear()
            if run.returned.is_set():
                return
            run.aborted = True
            self._functions.rkllm_abort(self._handle)
            run.again.wait(ABORT_AGAIN_S)

    def _check(self, run: _Run, status: int, lines: list[str]) -> None:
        """Raise what went wrong in a run that has returned."""
        faults = read_faults(lines)
        _raise_fatal(faults)
        if run.failure is not None:
            raise run.failure
        if run.ended is Ended.ITSELF and (status != 0 or run.error):
            if faults:
                param = "messages" if faults[0].fault is Fault.PROMPT_TOO_LONG else None
                raise BackendError(faults[0].code, faults[0].message, param)
            raise EngineLost(f"The runtime gave up on a run and returned {status}.{_quoted(lines)}")


class _Run:
    """What a run and its callbacks share."""

    def __init__(self, on_token: OnToken, cancelled: Cancellation) -> None:
        self._on_token = on_token
        self._cancelled = cancelled
        self._began = time.perf_counter()
        self._first: float | None = None
        self._end = self._began
        self._tokens = 0
        self._perf: Perf | None = None
        self._decided = threading.Lock()
        self.ended = Ended.ITSELF
        self.asked = threading.Event()  # to end early, or no more to be waited for
        self.again = threading.Event()  # to abort once more, or no more
        self.returned = threading.Event()  # by the library
        self.error = False
        self.aborted = False
        self.failure: BaseException | None = None

    def take(self, result: Any, state: int) -> None:
        """Take one callback. Never raises; what `on_token` raises is kept."""
        try:
            self._take(result, state)
        except BaseException as error:
            self.failure = error
            self._ask(Ended.STOP)

    def cancel(self) -> None:
        """End the run because nobody wants it any more."""
        self._ask(Ended.CANCELLED)

    def end(self) -> None:
        """Note that the library has returned."""
        self._end = time.perf_counter()
        self.returned.set()
        self.again.set()
        self.asked.set()

    def outcome(self) -> Outcome:
        """Return what the run came to."""
        first = self._end if self._first is None else self._first
        return Outcome(self.ended, self._tokens, self._perf, first - self._began, self._end - first)

    def _take(self, result: Any, state: int) -> None:
        if state == LLMCallState.ERROR:
            self.error = True
        elif not result:
            return  # NULL
        elif state == LLMCallState.FINISH:
            perf = result.contents.perf
            self._perf = Perf(perf.prefill_tokens, perf.generate_tokens)
        else:
            self._take_token(result.contents)

    def _take_token(self, result: Any) -> None:
        self._tokens += 1
        if self._first is None:
            self._first = time.perf_counter()
            if self.asked.is_set():
                self.again.set()  # it was asked to end before it had begun, and has not heard of it
        if self.asked.is_set():
            return  # the library has not noticed yet
        if self._cancelled.is_set():
            self._ask(Ended.CANCELLED)
        elif (why := self._on_token(result.token_id, result.text or b"")) is not None:
            self._ask(why)

    def _ask(self, why: Ended) -> None:
        with self._decided:
            if not self.asked.is_set():
                self.ended = why
                self.asked.set()


class _StatesRun(_Run):
    """A run that makes states instead of tokens, each result of it for `take_result`."""

    def __init__(self, take_result: Callable[[Any], None], cancelled: Cancellation) -> None:
        super().__init__(_no_token, cancelled)
        self._take_result = take_result

    def _take_token(self, result: Any) -> None:
        if self.asked.is_set():
            self.again.set()
        else:
            self._take_result(result)


def _no_token(token_id: int, text: bytes) -> None:
    return None


def _init_param(param: RKLLMParam, options: SessionOptions) -> RKLLMParam:
    """Set every field we know in the library's defaults; what is set per run is neutral here."""
    param.model_path = str(options.model).encode()
    param.max_context_len = options.context_length
    param.max_new_tokens = options.max_tokens
    param.top_k = 1
    param.n_keep = options.n_keep
    param.top_p = 1.0
    param.temperature = 1.0
    param.repeat_penalty = 1.0
    param.frequency_penalty = 0.0
    param.presence_penalty = 0.0
    param.mirostat = 0
    param.skip_special_token = options.skip_special_token
    param.ignore_eos_token = False
    param.is_async = False
    extend = param.extend_param
    extend.base_domain_id = options.base_domain_id
    extend.embed_flash = options.embed_flash
    extend.enabled_cpus_num = len(set(options.cpus))
    extend.enabled_cpus_mask = sum(1 << core for core in set(options.cpus))
    extend.n_batch = 1
    extend.use_cross_attn = 0
    return param


def _neutral_sampling() -> RKLLMSamplingParam:
    """Return the values of a run whose tokens do not matter; the library may look at them all the same."""
    return RKLLMSamplingParam(
        top_k=1, top_p=1.0, temperature=1.0, repeat_penalty=1.0, mirostat_tau=5.0, mirostat_eta=0.1
    )


def _raise_fatal(faults: Sequence[LoggedFault]) -> None:
    if fatal := [fault for fault in faults if fault.fatal]:
        raise EngineLost(f"{fatal[0].message} (It said: {fatal[0].line})")


def _input(prompt: Prompt) -> tuple[RKLLMInput, Any]:
    """Return the struct for a prompt, and what must live as long as it."""
    if isinstance(prompt, ImagePrompt):
        return multimodal_input(prompt)
    if isinstance(prompt, str):
        text = prompt.encode("utf-8", "replace")
        return RKLLMInput(role=b"user", input_type=RKLLMInputType.PROMPT, prompt_input=text), text
    ids = (ctypes.c_int32 * len(prompt))(*prompt)
    tokens = RKLLMTokenInput(ctypes.cast(ids, ctypes.POINTER(ctypes.c_int32)), len(prompt))
    return RKLLMInput(role=b"user", input_type=RKLLMInputType.TOKEN, token_input=tokens), ids


def _load_failed(
    model: Path, status: int, faults: Sequence[LoggedFault], lines: Sequence[str]
) -> BackendError:
    if faults:
        return BackendError(faults[0].code, f"{model.name} cannot be loaded. {faults[0].message}")
    what = f"returned {status}" if status != 0 else "returned no handle"
    return BackendError(
        "load_failed",
        f"{model.name} cannot be loaded: the runtime {what} and gave no reason that is known."
        f"{_quoted(lines)} Verify the file, and check the free memory and the NPU driver.",
    )


def _quoted(lines: Sequence[str]) -> str:
    return f" Its last output: {' / '.join(lines[-SHOWN_LINES:])}." if lines else ""
