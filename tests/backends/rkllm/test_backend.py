"""The backend on a scripted library: what reaches the library, and what comes back."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import msgspec
import pytest
from tokenizers import Tokenizer

from backends.base import BackendError, EngineLost, GenerateParams, Image, Sampling, Span, Usage
from backends.engine import Backend, Cancellation
from backends.rkllm.session import ABORT_AGAIN_S
from backends.rkllm.structs import RKLLMInferParam, RKLLMInput, RKLLMParam, RKLLMSamplingParam
from backends.spec import ModelSpec
from tests.backends.rkllm.conftest import (
    ERROR,
    FINISH,
    LOG,
    NORMAL,
    NULL_RESULT,
    PRINT,
    RETURN,
    WAIT_FOR_ABORT,
    WAIT_FOR_ABORT_CALL,
    WAITING,
    ListSink,
    Scripted,
)
from tests.tiny import EOS_TOKEN_ID, tiny_tokenizer

Start = Callable[[ModelSpec], Backend]
CHAT = [
    Span("<|im_start|>user\n", True),
    Span("hello <|im_end|>", False),
    Span("<|im_end|>\n<|im_start|>assistant\n", True),
]
ABC = ((10, b"a"), (11, b"b"), (12, b"c"))


def ask(
    backend: Backend,
    *,
    prompt: list[Span] = CHAT,
    sampling: Sampling | None = None,
    max_tokens: int | None = None,
    stop: list[str] | None = None,
    cancelled: Cancellation | None = None,
    sink: ListSink | None = None,
) -> tuple[str, str, Usage]:
    sink = sink or ListSink()
    params = GenerateParams(
        prompt=prompt, sampling=sampling or Sampling(temperature=0), max_tokens=max_tokens, stop=stop or []
    )
    reason, usage = backend.generate(params, sink, cancelled or Cancellation())
    assert sink.tokens <= usage.completion_tokens
    return sink.text, reason, usage


def without_tokenizer(spec: ModelSpec) -> ModelSpec:
    return msgspec.structs.replace(spec, tokenizer=None)


def options(spec: ModelSpec, **changes: object) -> ModelSpec:
    return msgspec.structs.replace(spec, rkllm=msgspec.structs.replace(spec.rkllm, **changes))


# loading


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
    with pytest.raises(BackendError, match="RKSERVE_RUNTIME_DIRS"):
        start(options(spec, library=None))


# prompts


def test_tokens_go_in_as_our_tokenizer_makes_them(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.answer(*ABC)
    text, reason, usage = ask(start(spec))
    oracle = Tokenizer.from_str(tiny_tokenizer())
    plain = Tokenizer.from_str(tiny_tokenizer())
    plain.encode_special_tokens = True
    expected = [
        *oracle.encode("<|im_start|>user\n", add_special_tokens=False).ids,
        *plain.encode("hello <|im_end|>", add_special_tokens=False).ids,
        *oracle.encode("<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False).ids,
    ]
    given = scripted.struct("input", RKLLMInput)
    assert given.input_type == 1
    assert given.token_input.n_tokens == len(expected)
    assert list(scripted.struct("ids", ctypes.c_int32 * 4096))[: len(expected)] == expected
    assert (text, reason, usage.prompt_tokens, usage.completion_tokens) == ("abc", "stop", len(expected), 3)


def test_text_goes_in_with_control_tokens_of_clients_broken_up(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.answer(*ABC)
    backend = start(without_tokenizer(spec))
    ask(backend)
    assert scripted.struct("input", RKLLMInput).input_type == 0
    assert scripted.text("prompt") == (
        "<|im_start|>user\nhello <\u200d|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )
    assert any("tokenizer" in warning for warning in backend.info.warnings)


def test_each_run_sets_everything(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.answer(*ABC)
    backend = start(spec)
    ask(backend, sampling=Sampling(temperature=0.5, top_p=0.25, top_k=7), max_tokens=9)
    sampling = scripted.struct("sampling", RKLLMSamplingParam)
    infer = scripted.struct("infer", RKLLMInferParam)
    assert (sampling.top_k, sampling.top_p, sampling.temperature) == (7, 0.25, 0.5)
    assert (sampling.repeat_penalty, sampling.mirostat) == (1.0, 0)
    assert (infer.mode, infer.keep_history, infer.max_new_tokens) == (0, 0, 9)
    ask(backend)
    sampling = scripted.struct("sampling", RKLLMSamplingParam)
    assert (sampling.top_k, sampling.temperature) == (1, 1.0)
    assert scripted.struct("infer", RKLLMInferParam).max_new_tokens == 100


def test_the_context_never_shifts(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.answer(*ABC)
    backend = start(spec)
    prompt = [Span("x" * 500, True)]
    assert backend.count_tokens(prompt) == 500
    ask(backend, prompt=prompt, max_tokens=1000)
    assert scripted.struct("infer", RKLLMInferParam).max_new_tokens == 512 - 500 - 4
    with pytest.raises(BackendError, match="512") as caught:
        ask(backend, prompt=[Span("x" * 508, True)])
    assert caught.value.code == "context_length_exceeded"
    assert scripted.get("runs") == 1


# answers


def test_characters_and_null_texts(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.script(
        (NORMAL, 10, b"a"),
        (WAITING, 11, None),
        (WAITING, 12, b"\xe4"),
        (WAITING, 13, b"\xbd"),
        (NORMAL, 14, b"\xa0"),
        (NORMAL, 15, b"\xf0\x9f\x98"),
        (NORMAL, 16, b"\xf0\x9f\x98\x80"),
        (NORMAL, 17, b"\xe4"),
        (FINISH, 0, None),
    )
    sink = ListSink()
    text, reason, usage = ask(start(spec), sink=sink)
    assert sink.texts == ["a", "你", "\U0001f600", "\ufffd"]
    assert (text, reason, usage.completion_tokens, sink.tokens) == ("a你\U0001f600\ufffd", "stop", 8, 8)


def test_our_eos_ends_a_run_that_would_go_on(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.script(
        (NORMAL, 10, b"a"),
        (NORMAL, EOS_TOKEN_ID, b"<|im_end|>"),
        (NORMAL, 11, b"b"),
        (WAIT_FOR_ABORT, 0, None),
    )
    text, reason, usage = ask(start(spec))
    assert (text, reason, usage.completion_tokens) == ("a", "stop", 2)
    assert scripted.get("aborts") == 1


def test_an_end_that_comes_by_itself_is_not_aborted(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.answer((10, b"a"), (EOS_TOKEN_ID, b""), perf=(5, 2))
    backend = start(spec)
    assert ask(backend)[1] == "stop"
    assert scripted.get("aborts") == 0


def test_a_stop_string_ends_a_run_and_never_leaks(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.script(
        (NORMAL, 10, b"a\n"), (NORMAL, 11, b"\nUs"), (NORMAL, 12, b"er: x"), (WAIT_FOR_ABORT, 0, None)
    )
    text, reason, usage = ask(start(spec), stop=["\n\nUser:"])
    assert (text, reason, usage.completion_tokens) == ("a", "stop", 3)
    assert scripted.get("aborts") == 1


def test_what_only_looked_like_a_stop_string_comes_out(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.answer((10, b"a"), (11, b"\n\nUs"))
    assert ask(start(spec), stop=["\n\nUser:"])[0] == "a\n\nUs"


def test_eos_strings_end_answers_without_a_tokenizer(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.script(
        (NORMAL, 10, b"a"), (NORMAL, 11, b"<|im_"), (NORMAL, 12, b"end|>"), (WAIT_FOR_ABORT, 0, None)
    )
    assert ask(start(without_tokenizer(spec)))[:2] == ("a", "stop")


def test_the_limit_is_told_from_the_end(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.script(*((NORMAL, 10, b"a") for _ in range(50)))
    backend = start(spec)
    text, reason, usage = ask(backend, max_tokens=3)
    assert (text, reason, usage.completion_tokens) == ("aaa", "length", 3)
    scripted.answer(*ABC)
    assert ask(backend, max_tokens=4)[1] == "stop"


def test_an_answer_that_only_repeats_itself_ends_and_its_owner_is_told(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.script(*((NORMAL, 33, b"!") for _ in range(400)), (WAIT_FOR_ABORT, 0, None))
    sink = ListSink()
    text, reason, usage = ask(start(spec), max_tokens=450, sink=sink)
    assert (text, reason, usage.completion_tokens) == ("!" * 288, "stop", 288)
    (warning,) = sink.warnings
    for thing in ("version of the runtime", "chat template", "sha256"):
        assert thing in warning


def test_a_runtime_that_does_not_tell_ids_does_not_seem_to_repeat_one(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.answer(*((0, b"%d " % number) for number in range(400)))
    sink = ListSink()
    text, _, _ = ask(start(spec), max_tokens=450, sink=sink)
    assert text.split() == [str(number) for number in range(400)]
    assert sink.warnings == []


def test_the_guard_can_be_off(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.answer(*((33, b"!") for _ in range(400)))
    sink = ListSink()
    text, _, _ = ask(start(msgspec.structs.replace(spec, repeat_guard=False)), max_tokens=450, sink=sink)
    assert (text, sink.warnings) == ("!" * 400, [])


def test_cached_tokens_are_those_not_prefilled(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.answer(*ABC, perf=(5, 4))
    sink = ListSink()
    _, _, usage = ask(start(spec), prompt=[Span("x" * 30, True)], sink=sink)
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (30, 25, 4)
    assert sink.prefills == [(0, 30), (30, 30)]


@pytest.mark.parametrize(
    ("kv_size", "prefilled", "prompt_tokens", "cached"),
    [(43, 40, 40, 0), (43, 5, 40, 35), (44, 40, 41, 0), (-1, 40, 40, 0)],
)
def test_text_prompts_are_counted_by_the_cache(
    scripted: Scripted,
    spec: ModelSpec,
    start: Start,
    kv_size: int,
    prefilled: int,
    prompt_tokens: int,
    cached: int,
) -> None:
    scripted.answer(*ABC, perf=(prefilled, 3))
    scripted.set("kv_size", kv_size)
    _, _, usage = ask(start(without_tokenizer(spec)))
    assert (usage.prompt_tokens, usage.cached_tokens) == (prompt_tokens, cached)


def test_a_longer_chat_is_measured_by_the_shorter_one(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.answer(*ABC, perf=(300, 3))
    scripted.set("kv_size", 303)
    backend = start(without_tokenizer(spec))
    begin = [Span("word " * 290, True)]  # 1,450 characters, about 484 tokens by these
    ask(backend, prompt=begin)
    assert 300 <= backend.count_tokens(begin) <= 302
    ask(backend, prompt=[*begin, Span("and more", True)], max_tokens=1000)
    assert 512 - 4 - 310 <= scripted.struct("infer", RKLLMInferParam).max_new_tokens <= 512 - 4 - 300


# ends that come from outside, and faults


def test_cancelled_in_prefill(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.script((WAIT_FOR_ABORT, 0, None))
    cancelled = Cancellation()
    backend = start(spec)
    timer = threading.Timer(0.05, cancelled.set)
    timer.start()
    text, reason, usage = ask(backend, cancelled=cancelled)
    timer.join()
    assert (text, reason, usage.completion_tokens) == ("", "cancelled", 0)
    assert scripted.get("aborts") == 1


def test_cancelled_while_tokens_come(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    scripted.script(*((NORMAL, 10, b"a") for _ in range(20)), (WAIT_FOR_ABORT, 0, None))
    cancelled = Cancellation()

    def cancel(text: str) -> None:
        if len(sink.texts) == 3:
            cancelled.set()

    sink = ListSink(cancel)
    text, reason, usage = ask(start(spec), cancelled=cancelled, sink=sink)
    assert (text, reason, usage.completion_tokens) == ("aaa", "cancelled", 3)


def test_an_abort_that_came_before_the_run_began_is_repeated(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    scripted.set("deaf_aborts", 1)
    scripted.script(
        (WAIT_FOR_ABORT_CALL, 0, None), *((NORMAL, 10, b"a") for _ in range(5)), (WAIT_FOR_ABORT, 0, None)
    )
    cancelled = Cancellation()
    backend = start(spec)
    timer = threading.Timer(0.05, cancelled.set)
    timer.start()
    began = time.monotonic()
    text, reason, _ = ask(backend, cancelled=cancelled)
    timer.join()
    assert (text, reason) == ("", "cancelled")
    assert scripted.get("aborts") == 2
    assert time.monotonic() - began < ABORT_AGAIN_S  # the first token asks again; nobody waits for it


def test_cancelled_before_it_begins(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    cancelled = Cancellation()
    cancelled.set()
    assert ask(start(spec), cancelled=cancelled)[1] == "cancelled"
    assert scripted.get("runs") == 0


def test_a_failure_in_the_callback_ends_the_run_and_comes_out(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    def fail(text: str) -> None:
        raise ConnectionError("the client is gone")

    scripted.script((NORMAL, 10, b"a"), (WAIT_FOR_ABORT, 0, None))
    backend = start(spec)
    with pytest.raises(ConnectionError):
        ask(backend, sink=ListSink(fail))
    scripted.answer(*ABC)
    assert ask(backend)[0] == "abc"


def test_a_prompt_the_runtime_finds_too_long(scripted: Scripted, spec: ModelSpec, start: Start) -> None:
    line = b"E rkllm: prompt gather than max context (prompt: 1299 tokens, max context: 1020)"
    scripted.script((PRINT, 0, line), (NULL_RESULT, ERROR, None), (RETURN, -1, None))
    backend = start(without_tokenizer(spec))
    with pytest.raises(BackendError, match="1299") as caught:
        ask(backend)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    scripted.answer(*ABC)
    assert ask(backend)[0] == "abc"


@pytest.mark.parametrize("status", [0, -1])
def test_a_fatal_line_costs_the_process(
    scripted: Scripted, spec: ModelSpec, start: Start, status: int
) -> None:
    scripted.script(
        (NORMAL, 10, b"a"), (PRINT, 0, b"E RKNN: failed to submit!, op id: 1"), (RETURN, status, None)
    )
    with pytest.raises(EngineLost, match="op id: 1"):
        ask(start(spec))


@pytest.mark.parametrize("steps", [[(RETURN, -1, None)], [(NULL_RESULT, ERROR, None)], [(ERROR, 0, None)]])
def test_an_end_nobody_explains_costs_the_process(
    scripted: Scripted, spec: ModelSpec, start: Start, steps: list[tuple[int, int, bytes | None]]
) -> None:
    scripted.script((PRINT, 0, b"strange"), *steps)
    with pytest.raises(EngineLost, match="strange"):
        ask(start(spec))


@pytest.mark.parametrize(
    ("params", "param"),
    [
        (GenerateParams(prompt=CHAT, sampling=Sampling(min_p=0.1)), "min_p"),
        (GenerateParams(prompt=CHAT, sampling=Sampling(logit_bias={1: 2.0})), "logit_bias"),
        (GenerateParams(prompt=CHAT, sampling=Sampling(), logprobs=0), "logprobs"),
        (
            GenerateParams(prompt=CHAT, sampling=Sampling(), images=[Image(b"x", "messages.0.content.0")]),
            "messages",
        ),
    ],
)
def test_what_the_library_cannot_do_is_refused(
    spec: ModelSpec, start: Start, params: GenerateParams, param: str
) -> None:
    with pytest.raises(BackendError) as caught:
        start(spec).generate(params, ListSink(), Cancellation())
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", param)


# what the entry says of the closed library


def test_prompts_as_text_are_counted_by_the_tokenizer(
    scripted: Scripted, spec: ModelSpec, start: Start
) -> None:
    backend = start(options(spec, input="text"))
    scripted.answer(*ABC, perf=(5, 3))
    _, _, usage = ask(backend)
    text = scripted.text("prompt")
    assert text == "<|im_start|>user\nhello <\u200d|im_end|><|im_end|>\n<|im_start|>assistant\n"
    tokens = len(Tokenizer.from_str(tiny_tokenizer()).encode(text, add_special_tokens=False).ids)
    assert (usage.prompt_tokens, usage.cached_tokens) == (tokens, tokens - 5)
    assert backend.count_tokens(CHAT) == tokens
    assert backend.info.vocab_size > 0


@pytest.mark.parametrize("tokenizer", [True, False])
def test_a_bos_that_the_library_adds_is_left_out_and_counted(
    scripted: Scripted, spec: ModelSpec, start: Start, tokenizer: bool
) -> None:
    spec = options(spec, input="text", runtime_bos="<|im_start|>")
    backend = start(spec if tokenizer else without_tokenizer(spec))
    scripted.answer(*ABC, perf=(4, 3))
    scripted.set("kv_size", 9 + 3)
    _, _, usage = ask(backend, prompt=[Span("<|im_start|>", True), Span("hello", False)])
    assert scripted.text("prompt") == "hello"
    hello = len(Tokenizer.from_str(tiny_tokenizer()).encode("hello", add_special_tokens=False).ids)
    assert usage.prompt_tokens == (hello + 1 if tokenizer else 9)


@pytest.mark.parametrize(("cached", "prompt_tokens"), [(False, 20), (True, 19)])
def test_the_last_token_of_a_cut_answer_may_be_in_the_kv_cache(
    scripted: Scripted, spec: ModelSpec, start: Start, cached: bool, prompt_tokens: int
) -> None:
    backend = start(options(without_tokenizer(spec), last_token_cached=cached))
    scripted.answer(*ABC, perf=(4, 3))
    scripted.set("kv_size", 22)
    _, reason, usage = ask(backend, max_tokens=3)
    assert (reason, usage.prompt_tokens) == ("length", prompt_tokens)


@pytest.mark.parametrize("key", [False, True])
def test_the_kv_cache_is_emptied_after_an_abort_only_where_the_entry_says_so(
    scripted: Scripted, spec: ModelSpec, start: Start, key: bool
) -> None:
    backend = start(options(spec, clear_after_abort=key))
    scripted.script((NORMAL, 10, b"stop"), (WAIT_FOR_ABORT, 0, None), (FINISH, 0, None))
    ask(backend, stop=["stop"])
    assert scripted.get("clears") == int(key)
    scripted.answer(*ABC)
    ask(backend)
    assert scripted.get("clears") == int(key)


@pytest.mark.parametrize("reserve", [4, 100])
def test_the_room_of_an_answer_leaves_what_the_library_keeps(
    scripted: Scripted, spec: ModelSpec, start: Start, reserve: int
) -> None:
    backend = start(options(spec, context_reserve=reserve))
    scripted.answer(*ABC)
    _, _, usage = ask(backend, max_tokens=1000)
    limit = scripted.struct("infer", RKLLMInferParam).max_new_tokens
    assert limit == 512 - reserve - usage.prompt_tokens
