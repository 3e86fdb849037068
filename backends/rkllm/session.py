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
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from backends.base import Adapter, BackendError, EngineLost
from backends.engine import Cancellation
from backends.rkllm.capture import Capture
from backends.rkllm.enums import CallbackReturn, RKLLMInferMode
from backends.rkllm.failures import load_failed, quoted, raise_fatal
from backends.rkllm.library import Library
from backends.rkllm.log import Fault, LoadLog, read_faults, read_load_log
from backends.rkllm.multimodal import CachedImages, ImagePrompt
from backends.rkllm.parameters import Prompt, SessionOptions, init_param, neutral_sampling, run_input
from backends.rkllm.run import Ended, OnToken, Outcome, Run, StatesRun, no_token
from backends.rkllm.structs import (
    LLMHandle,
    LLMResultCallback,
    RKLLMCallback,
    RKLLMInferParam,
    RKLLMLoraAdapter,
    RKLLMLoraParam,
    RKLLMPromptCacheParam,
    RKLLMSamplingParam,
)

EOS_GRACE_S = 0.01  # the library mostly ends at the EOS itself; an abort after its end might hit the next run
ABORT_AGAIN_S = (
    2.0  # an abort that comes before the run has begun is lost; in prefill one takes over a second
)

_HARMLESS = frozenset({Fault.DRIVER_TOO_OLD, Fault.MODEL_TOO_OLD, Fault.NO_CHAT_TEMPLATE})
_MOST_BATCHES = 256  # n_batch is a uint8_t
# Who filled the KV cache, where it was no client: nobody, or a run for states, whosever text that was.
_NOBODY, _SOMEBODY = "", "\0"


OnRows = Callable[[int, int, int], None]
"""Takes the address of float32 rows, how many there are, and their width; valid only during the call."""


class Session:
    """A loaded model. Owns the handle until `close`."""

    def __init__(self, library: Library, options: SessionOptions, capture: Capture) -> None:
        """Load a model; takes a minute from an SD card. Raises BackendError, LayoutMismatch."""
        self._functions: Any = library.functions
        self._missing = library.missing
        self._clear_after_abort = options.clear_after_abort
        self._adapters: set[Adapter] = set()
        self._filled_by: tuple[str, Adapter | None] = (_NOBODY, None)
        self._fixed_prompt: Path | None = None
        self._capture = capture
        self._runs: dict[int, Run] = {}
        self._ids = itertools.count(1)  # userdata; 0 would be NULL
        self._callback = LLMResultCallback(self._on_result)
        self._cached_images = CachedImages()
        self._handle: Any = None
        self._keep: list[Any] = []  # what the library was given to read, in case it keeps a pointer
        mark = capture.mark()
        handle = LLMHandle()
        param = init_param(library.default_param(), options)
        callbacks = RKLLMCallback(result_callback=self._callback)
        self._keep += (param, callbacks)
        status = self._functions.rkllm_init(
            ctypes.byref(handle), ctypes.byref(param), ctypes.byref(callbacks)
        )
        lines = capture.since(mark)
        self.log: LoadLog = read_load_log(lines)
        faults = read_faults(lines)
        if status != 0 or not handle.value:
            raise load_failed(options.model, status, faults, lines)
        self._handle = handle
        if grave := [fault for fault in faults if fault.fault not in _HARMLESS]:
            self.close()
            raise load_failed(options.model, status, grave, lines)
        self.warnings = [fault.message for fault in faults]
        self.template_off = self._functions.rkllm_set_chat_template(handle, b"", b"", b"") == 0

    def add_adapter(self, adapter: Adapter) -> None:
        """Load an adapter if it is not loaded; takes some seconds. Raises BackendError, EngineLost."""
        if adapter not in self._adapters:
            self._load_adapter(adapter)
            self._adapters.add(adapter)

    def run(
        self,
        prompt: Prompt,
        sampling: RKLLMSamplingParam,
        max_new_tokens: int,
        on_token: OnToken,
        cancelled: Cancellation,
        adapter: Adapter | None = None,
        owner: str = "",
    ) -> Outcome:
        """Make one answer to token ids, a text or a text with images; returns when the library has returned.

        adapter: one that was added. owner: whose prompt it is: what another's has left in the KV cache is
        not used for it.

        `on_token` is called for each token until it says to end. Raises what it raises, BackendError for what
        the library complains of, EngineLost.
        """
        lora = None if adapter is None else RKLLMLoraParam(lora_adapter_name=adapter.name.encode())
        infer = RKLLMInferParam(
            mode=RKLLMInferMode.GENERATE,
            sampling_params=ctypes.pointer(sampling),
            lora_params=None if lora is None else ctypes.pointer(lora),
            keep_history=0,
            max_new_tokens=max_new_tokens,
        )
        fit = self._make_cache_fit(owner, adapter)
        outcome = self._execute(Run(on_token, cancelled), prompt, infer, cancelled)
        return replace(outcome, foreign=not fit)

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
        self._filled_by = (_SOMEBODY, None)
        neutral = neutral_sampling()
        infer = RKLLMInferParam(
            mode=mode, sampling_params=ctypes.pointer(neutral), keep_history=0, max_new_tokens=1
        )
        return self._execute(StatesRun(take, cancelled), prompt, infer, cancelled)

    @property
    def has_prompt_cache(self) -> bool:
        """Whether the library has prompt caches at all."""
        return not self._missing & {"rkllm_load_prompt_cache", "rkllm_release_prompt_cache"}

    def save_prompt_cache(self, prompt: Sequence[int] | str, path: Path) -> bool:
        """Compute a prompt and have the library write its KV cache to a file; returns whether it says it did.

        Raises EngineLost where the library is of no more use.
        """
        cache = RKLLMPromptCacheParam(save_prompt_cache=1, prompt_cache_path=str(path).encode())
        neutral = neutral_sampling()
        infer = RKLLMInferParam(
            mode=RKLLMInferMode.GENERATE,
            prompt_cache_params=ctypes.pointer(cache),
            sampling_params=ctypes.pointer(neutral),
            keep_history=0,
            max_new_tokens=1,
        )
        run = Run(no_token, Cancellation())
        status, lines = self._launch(run, prompt, infer, Cancellation())
        raise_fatal(read_faults(lines))
        return status == 0 and not run.error

    def load_prompt_cache(self, path: Path) -> bool:
        """Fill the KV cache from a file; returns whether it worked. What the cache held is lost either way.

        Raises EngineLost where the library is of no more use.
        """
        mark = self._capture.mark()
        status = self._functions.rkllm_load_prompt_cache(self._handle, str(path).encode())
        raise_fatal(read_faults(self._capture.since(mark)))
        if status != 0:
            self._functions.rkllm_release_prompt_cache(self._handle)  # whatever it has read of it
        self._fixed_prompt = path if status == 0 else None
        return bool(status == 0)

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

    def _execute(
        self,
        run: Run,
        prompt: Prompt,
        infer: RKLLMInferParam,
        cancelled: Cancellation,
    ) -> Outcome:
        images = prompt.digests if isinstance(prompt, ImagePrompt) else ()
        if self._cached_images.contradict(images):
            self._forget_images()
        self._cached_images.run_begins()
        status, lines = self._launch(run, prompt, infer, cancelled)
        kv_tokens = None
        if run.aborted and self._clear_after_abort:
            kv_tokens = self.kv_cache_size()
            self.clear_kv_cache()
        self._check(run, status, lines)
        outcome = replace(run.outcome(), kv_tokens=kv_tokens)
        if outcome.tokens:  # else it may have ended before the library turned to this prompt
            self._cached_images.run_ended(images)
        return outcome

    def _launch(
        self, run: Run, prompt: Prompt, infer: RKLLMInferParam, cancelled: Cancellation
    ) -> tuple[int, list[str]]:
        """Run until the library has returned; returns what it returned, and the lines it wrote meanwhile."""
        mark = self._capture.mark()
        userdata = next(self._ids)
        self._runs[userdata] = run
        given, _keep = run_input(prompt)
        ender = threading.Thread(target=self._end_early, args=(run,), name="abort", daemon=True)
        ender.start()
        cancelled.listen(run.cancel)
        try:
            status = self._functions.rkllm_run(
                self._handle, ctypes.byref(given), ctypes.byref(infer), userdata
            )
        finally:
            run.end()
            cancelled.listen(None)
            ender.join()
            del self._runs[userdata]
        return status, self._capture.since(mark)

    def _load_adapter(self, adapter: Adapter) -> None:
        file = Path(adapter.path).name
        if "rkllm_load_lora" in self._missing:
            raise BackendError("load_failed", f"The adapter {file} cannot be used: this runtime knows none.")
        mark = self._capture.mark()
        lora = RKLLMLoraAdapter(adapter.path.encode(), adapter.name.encode(), adapter.scale)
        self._keep.append(lora)
        status = self._functions.rkllm_load_lora(self._handle, ctypes.byref(lora))
        lines = self._capture.since(mark)
        raise_fatal(read_faults(lines))
        if status != 0:
            raise BackendError(
                "load_failed",
                f"The adapter {file} cannot be loaded: the runtime returned {status}.{quoted(lines)} Was it "
                "made for this base model, and by the same toolkit?",
                "model",
            )

    def _make_cache_fit(self, owner: str, adapter: Adapter | None) -> bool:
        """Empty the KV cache where another client's prompt or another adapter has filled it.

        How much of a prompt is found there would tell one client what the other wrote; and it is not known
        whether the runtime uses what it computed with other weights. Returns False where another client's
        prompt stays, because the library does not empty the cache.
        """
        last_owner, last_adapter = self._filled_by
        if adapter == last_adapter and last_owner in (_NOBODY, owner):
            self._filled_by = (owner, adapter)
            return True
        cleared = self.clear_kv_cache()
        if not cleared and adapter != last_adapter:
            raise EngineLost("The runtime does not clear its KV cache, which was made with another adapter.")
        self._filled_by = (owner, adapter)
        if cleared and adapter is None and self._fixed_prompt is not None:
            self.load_prompt_cache(self._fixed_prompt)
        return cleared

    def _forget_images(self) -> None:
        if not self.clear_kv_cache():
            raise EngineLost("The runtime does not clear its KV cache, which may hold another image.")

    def _on_result(self, result: Any, userdata: int | None, state: int) -> int:
        run = self._runs.get(userdata or 0)
        if run is not None:
            run.take(result, state)
        return CallbackReturn.GO_ON

    def _end_early(self, run: Run) -> None:
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

    def _check(self, run: Run, status: int, lines: list[str]) -> None:
        """Raise what went wrong in a run that has returned."""
        faults = read_faults(lines)
        raise_fatal(faults)
        if run.failure is not None:
            raise run.failure
        if run.ended is Ended.ITSELF and (status != 0 or run.error):
            if faults:
                param = "messages" if faults[0].fault is Fault.PROMPT_TOO_LONG else None
                raise BackendError(faults[0].code, faults[0].message, param)
            raise EngineLost(f"The runtime gave up on a run and returned {status}.{quoted(lines)}")
