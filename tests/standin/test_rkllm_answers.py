"""What the stand-in answers: tokens, limits, EOS, pauses, hidden states, logits, images, adapters."""

import ctypes
import json
import struct
import zlib
from pathlib import Path

import pytest

from tests.standin.conftest import Load
from tests.standin.rkllm.model_file import calls, hidden_row, token_ids
from tests.standin.rkllm_client import (
    EMBED_CALLBACK,
    ERROR,
    FINISH,
    HIDDEN,
    LOGITS,
    NORMAL,
    TOKENIZER_CALLBACK,
    WAITING,
    Seen,
)

CHATML = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}


def test_text_comes_in_words_and_finish_carries_the_figures(load: Load) -> None:
    client = load(answers=["Hello there, you."], memory_mb=123.5)
    assert client.run("one two three") == 0
    assert [seen.text for seen in client.seen] == [b"Hello", b" there", b",", b" you", b".", None]
    assert [seen.state for seen in client.seen] == [NORMAL] * 5 + [FINISH]
    _, prefilled, _, generated, memory = client.end.perf
    assert (prefilled, generated, memory) == (3, 5, 123.5)
    assert client.cache_sizes() == [8]


@pytest.mark.parametrize(
    ("utf8", "expected"),
    [
        ("waiting_null", [(WAITING, None), (WAITING, None), (NORMAL, "茶".encode()), (NORMAL, b"!")]),
        ("waiting_partial", [(WAITING, b"\xe8"), (WAITING, b"\x8c"), (NORMAL, b"\xb6"), (NORMAL, b"!")]),
        ("split", [(NORMAL, b"\xe8"), (NORMAL, b"\x8c"), (NORMAL, b"\xb6"), (NORMAL, b"!")]),
    ],
)
def test_a_character_over_several_tokens(
    load: Load, utf8: str, expected: list[tuple[int, bytes | None]]
) -> None:
    client = load(answers=["茶!"], tokenizer="bytes", utf8=utf8)
    assert client.run("x") == 0
    assert [(seen.state, seen.text) for seen in client.seen[:-1]] == expected


def test_scripted_tokens_reach_the_callback_as_written(load: Load) -> None:
    events = [[7, "a"], [8, None], {"id": 9, "hex": "e88c", "state": "waiting"}, [10, ""], [11, "b"]]
    client = load(answers=[events])
    assert client.run([1, 2]) == 0
    shown = [(seen.token_id, seen.text, seen.state) for seen in client.seen[:-1]]
    assert shown == [
        (7, b"a", NORMAL),
        (8, None, NORMAL),
        (9, b"\xe8\x8c", WAITING),
        (10, b"", NORMAL),
        (11, b"b", NORMAL),
    ]


def test_an_error_state_ends_the_run_with_minus_one_and_no_finish(load: Load) -> None:
    client = load(answers=[[[7, "a"], {"state": "error"}]])
    assert client.run([1]) == -1
    assert [seen.state for seen in client.seen] == [NORMAL, ERROR]


def test_answers_are_chosen_by_prompt_then_in_turn(load: Load) -> None:
    client = load(
        answers=[
            "first",
            "second",
            {"when": "tea", "events": ["leaf"]},
            {"when_ids": [4, 5], "events": ["ids"]},
        ]
    )
    said = []
    for prompt in ("x", "some tea", [3, 4, 5, 6], "y", "z"):
        assert client.run(prompt) == 0
        said.append(client.text)
    assert said == [b"first", b"leaf", b"ids", b"second", b"first"]


def test_max_new_tokens_of_the_run_wins_over_the_one_of_init(load: Load) -> None:
    client = load({"max_new": 2}, answers=["a b c d e"])
    assert client.run("x") == 0
    assert client.text == b"a b"
    assert client.run("x", max_new=3) == 0
    assert client.text == b"a b c"
    assert client.cache_sizes() == [3]  # the last token shown was not computed yet


def test_the_model_stops_at_its_own_eos_only(load: Load) -> None:
    events = ["good", [258, "<|im_end|>"], [33, "!"], [33, "!"]]
    right = load(answers=[events])
    assert right.run("x") == 0
    assert right.text == b"good"
    wrong = load(answers=[{"events": events, "repeat": -1}], eos=[999])
    assert wrong.run("x", max_new=9) == 0
    assert wrong.text == b"good<|im_end|>!!good<|im_end|>!!good"
    ignoring = load({"ignore_eos": True}, answers=[events])
    assert ignoring.run("x", max_new=5) == 0
    assert ignoring.text == b"good<|im_end|>!!good"


def test_special_tokens_lose_their_text_when_init_said_so(load: Load) -> None:
    client = load(
        {"skip_special": True},
        answers=[[[300, "<think>"], "hm", [301, "</think>"]]],
        specials={"<think>": 300},
    )
    assert client.run("x") == 0
    assert [seen.text for seen in client.seen[:3]] == [b"", b"hm", b"</think>"]


def test_an_answer_may_ignore_every_limit_until_it_is_aborted(load: Load) -> None:
    client = load(answers=[{"events": ["la"], "repeat": -1, "ignore_limits": True}])

    def stop(seen: Seen, userdata: int) -> int:
        return 1 if len(client.seen) == 5000 else 0

    client.on_result = stop
    assert client.run("x", max_new=3) == 0
    assert len(client.seen) >= 5000


def test_sampling_and_input_are_in_the_log(load: Load, log: Path) -> None:
    client = load(answers=["{{sampling}}"])
    assert (
        client.run("hi", sampling=(40, 0.5, 0.25, 1.0, 0.0, 0.0, 0, 5.0, 0.125), max_new=400, userdata=77)
        == 0
    )
    entry = calls(log, "rkllm_run")[-1]
    expected = {
        "top_k": 40,
        "top_p": 0.5,
        "temperature": 0.25,
        "repeat_penalty": 1,
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "mirostat": 0,
        "mirostat_tau": 5,
        "mirostat_eta": 0.125,
    }
    assert entry["sampling"] == expected
    assert json.loads(client.text) == expected
    assert (entry["sampling_given"], entry["keep_history"], entry["max_new_tokens"], entry["userdata"]) == (
        True,
        0,
        400,
        77,
    )
    assert entry["input"]["prompt"] == "hi"
    assert entry["input"]["role"] == "user"


def test_a_runs_userdata_wins_over_the_one_of_init(load: Load) -> None:
    seen_data: list[int] = []
    client = load({"userdata": 5})

    def note(seen: Seen, userdata: int) -> int:
        seen_data.append(userdata)
        return 0

    client.on_result = note
    client.run("x", max_new=1, userdata=9)
    client.run("x", max_new=1)
    assert seen_data == [9, 9, 5, 5]


def test_text_is_spoilt_when_the_callback_has_returned(load: Load) -> None:
    client = load(answers=["precious words"])
    later: list[bytes] = []

    def peek(seen: Seen, userdata: int) -> int:
        if len(client.seen) > 1 and client.seen[-2].text_address != seen.text_address:
            later.append(ctypes.string_at(client.seen[-2].text_address))
        return 0

    client.on_result = peek
    client.run("x")
    assert later == [b"\xdd" * 8]  # " words" was read again while FINISH was told


def test_the_vendors_template_is_around_the_prompt_until_it_is_switched_off(load: Load, log: Path) -> None:
    client = load(template=True, answers=["{{n_prompt}}"])
    client.run("hi")
    own = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    client.plain_template()
    client.run("hi")
    client.lib.rkllm_set_chat_template(client.handle, b"S|", b"<u>", b"<a>")
    client.run("hi")
    first, second, third = (entry["input"] for entry in calls(log, "rkllm_run"))
    assert first["text"] == own
    assert first["ids"] == token_ids(own, CHATML)
    assert (second["text"], third["text"]) == ("hi", "S|<u>hi<a>")


def test_control_strings_in_prompts_are_seen_or_not(load: Load, log: Path) -> None:
    load().run("<|im_end|>x")
    load(parse_specials=False).run("<|im_end|>x")
    seen, plain = (entry["input"]["ids"] for entry in calls(log, "rkllm_run"))
    assert seen == [258, ord("x")]
    assert plain == token_ids("<|im_end|>x", {})
    assert len(plain) == 8


def test_a_pause_keeps_the_place(load: Load) -> None:
    client = load(answers=["a b c d"])
    client.on_result = lambda seen, userdata: 1 if seen.text == b" b" else 0
    assert client.run([1, 2]) == 0
    assert [seen.text for seen in client.seen] == [b"a", b" b"]  # and no FINISH
    assert client.cache_sizes() == [4]
    start, end = (ctypes.c_int * 1)(3), (ctypes.c_int * 1)(4)
    assert client.lib.rkllm_clear_kv_cache(client.handle, 0, start, end) == 0
    assert client.cache_sizes() == [3]
    assert client.run([9]) == 0
    assert client.text == b" c d"
    assert client.cache_sizes() == [6]
    assert client.lib.rkllm_clear_kv_cache(client.handle, 0, start, end) == -1  # nothing is paused


def test_a_buffer_freed_early_does_no_harm_to_what_follows(load: Load) -> None:
    client = load(answers=["a b c"])
    client.on_result = lambda seen, userdata: 2
    assert client.run("x") == 0
    assert client.text == b"a b c"


def test_the_context_shifts_visibly(load: Load, log: Path) -> None:
    client = load({"context": 24, "n_keep": 4}, answers=[{"events": [[7, "x"]], "repeat": -1}])
    assert client.run([1] * 10, max_new=16) == 0
    assert b"<<context shifted>>" in client.text
    shift = calls(log, "context_shift")[0]
    assert (shift["keep"], shift["dropped"]) == (4, 8)
    fitting = load({"context": 24}, answers=[{"events": [[7, "x"]], "repeat": -1}])
    assert fitting.run([1] * 10, max_new=10) == 0  # 20 of 24 - 4
    assert b"shifted" not in fitting.text


def test_hidden_states_can_be_worked_out(load: Load) -> None:
    client = load(embd=5)
    assert client.run([3, 1000, 40], mode=HIDDEN) == 0
    assert [seen.hidden is not None for seen in client.seen] == [False, True, False]
    width, rows, values = client.seen[1].hidden or (0, 0, [])
    assert (width, rows) == (5, 3)
    assert values == hidden_row(3, 0, 5) + hidden_row(1000, 1, 5) + hidden_row(40, 2, 5)
    assert hidden_row(3, 0, 5)[:2] == [93 / 1024 - 1, 100 / 1024 - 1]


def test_hidden_states_row_by_row(load: Load) -> None:
    client = load(embd=4, hidden_split=True)
    client.run([1, 2], mode=HIDDEN)
    assert [seen.hidden for seen in client.seen] == [
        None,
        (4, 1, hidden_row(1, 0, 4)),
        (4, 1, hidden_row(2, 1, 4)),
        None,
    ]


def test_useless_hidden_states(load: Load) -> None:
    client = load(embd=2, hidden_values="zero")
    client.run([1, 2], mode=HIDDEN)
    assert client.seen[1].hidden == (2, 2, [0.0] * 4)
    client = load(embd=2, hidden_values="nan")
    client.run([1, 2], mode=HIDDEN)
    width, rows, values = client.seen[1].hidden or (0, 0, [])
    assert (width, rows, [value != value for value in values]) == (2, 2, [False, False, False, True])


def test_hidden_states_of_new_tokens_only(load: Load) -> None:
    client = load(embd=4, hidden_rows="new", hidden_empty_first=False)
    client.run([1, 2, 3], mode=HIDDEN)
    client.run([1, 2, 3, 4, 5], mode=HIDDEN)
    hidden = client.seen[0].hidden
    assert hidden is not None
    assert hidden[1:] == (2, hidden_row(4, 3, 4) + hidden_row(5, 4, 4))


def test_logits_agree_with_generation_or_do_not(load: Load) -> None:
    for agree in (True, False):
        client = load(answers=[[[30, "a"], [20, "b"]]], vocab=50, eos=[48], logits_agree=agree)
        prompt, best = [1, 2], []
        client.run(prompt)
        for _ in range(3):
            client.run(prompt, mode=LOGITS)
            width, rows, values = client.seen[0].logits or (0, 0, [])
            assert (width, rows) == (50, len(prompt))
            assert values[5] == pytest.approx((1 * 13 + 0 * 7 + 5 * 5) % 1000 / 100)
            last = values[-width:]
            best.append(last.index(max(last)))
            prompt = [*prompt, (30, 20, 48)[len(best) - 1]]
        assert best == ([30, 20, 48] if agree else [31, 21, 49])


def test_images_are_checked_and_summed(load: Load, log: Path) -> None:
    floats = struct.pack("<32f", *(i / 8 for i in range(32)))  # 2 images of 2 tokens of 8 floats
    vision = {"embd": 8, "width": 8, "height": 8, "start": "<|vision_start|>"}
    client = load(vision=vision, answers=["{{images}} {{n_prompt}}"])
    assert client.run(client.image_input("see <image> and <image>.", floats, 2, 2)) == 0
    sums = ",".join(f"{zlib.crc32(part):08x}" for part in (floats[:64], floats[64:]))
    text = "see <|vision_start|>" + "<|vision_end|> and <|vision_start|>" + "<|vision_end|>."
    count = len(token_ids(text, {})) + 4
    assert client.text.decode().replace(" ", "") == f"{sums}{count}"
    assert calls(log, "rkllm_run")[-1]["input"]["image"] == {
        "count": 2,
        "tokens": 2,
        "width": 8,
        "height": 8,
        "start": "<|vision_start|>",
        "end": "<|vision_end|>",
        "content": "<|image_pad|>",
        "floats": 32,
        "crc32": zlib.crc32(floats),
    }
    again = [
        client.run(client.image_input("see <image> and <image>. More", floats, 2, 2)),
        client.end.perf[1],
    ]
    assert again == [0, 1]
    other = b"\0" * 64 + floats[64:]
    assert client.run(client.image_input("see <image> and <image>. More", other, 2, 2)) == 0
    assert client.end.perf[1] > 10  # another image is another prefix
    assert client.run(client.image_input("see <image>.", floats, 2, 2)) == -1
    assert client.run(client.image_input("see <image> and <image>.", floats, 2, 2, width=9)) == -1


def test_embeddings_as_input(load: Load) -> None:
    client = load(embd=4)
    rows = struct.pack("<8f", *range(8))
    assert client.run(rows, n_rows=2) == 0
    assert client.end.perf[1] == 2


def test_batches_run_side_by_side_and_end_one_by_one(load: Load) -> None:
    client = load(batch=2, answers=[{"when": "left", "events": ["a"]}, {"when": "right", "events": ["x y"]}])
    assert client.run(["left", "right"]) == 0
    pairs = list(zip(client.seen[::2], client.seen[1::2], strict=True))
    assert [(left.text, right.text) for left, right in pairs] == [(b"a", b"x"), (None, b" y"), (None, None)]
    assert [left.token_id < 0 for left, _ in pairs] == [False, True, True]
    assert client.cache_sizes() == [2, 3]


def test_adapters(load: Load, tmp_path: Path) -> None:
    (tmp_path / "a.lora").write_bytes(b"x")
    client = load(answers=["plain {{lora}}", {"lora": "pirate", "events": ["arr"]}])
    assert client.load_lora(b"/nowhere.lora", b"none", 1.0) == -1
    assert client.load_lora(str(tmp_path / "a.lora").encode(), b"pirate", 0.5) == 0
    assert client.run("x", lora=b"pirate") == 0
    assert client.text == b"arr"
    assert client.run("x", lora=b"ninja") == -1
    assert client.run("x y") == 0
    assert (client.text, client.end.perf[1]) == (
        b"plain ",
        2,
    )  # the cache of an adapter is not the base model's


def test_prompt_caches(load: Load, tmp_path: Path) -> None:
    path = str(tmp_path / "system.cache").encode()
    client = load()
    assert client.run("be good . now", cache=(1, path)) == 0
    fresh = load()
    assert fresh.lib.rkllm_load_prompt_cache(fresh.handle, path) == 0
    assert fresh.cache_sizes() == [5]
    assert fresh.run("be good . then") == 0
    assert fresh.end.perf[1] == 1
    assert fresh.lib.rkllm_release_prompt_cache(fresh.handle) == 0
    assert fresh.cache_sizes() == [0]
    Path(path.decode()).write_bytes(b"RKLLM-STANDIN-CACHE 9 1\nshort")
    assert fresh.lib.rkllm_load_prompt_cache(fresh.handle, path) == -1
    assert fresh.lib.rkllm_load_prompt_cache(fresh.handle, b"/nowhere") == -1
    assert load(prompt_cache="refuse").run("x", cache=(1, path)) == -1
    unsaved = tmp_path / "unsaved"
    assert load(prompt_cache="silent").run("x", cache=(1, str(unsaved).encode())) == 0
    assert not unsaved.exists()


def test_function_tools_need_an_embedded_template(load: Load, log: Path) -> None:
    client = load(template=True)
    assert client.lib.rkllm_set_function_tools(client.handle, b"sys", b'[{"name": "f"}]', b"<r>") == 0
    client.run("x")
    assert '[{"name": "f"}]' in calls(log, "rkllm_run")[-1]["input"]["text"]
    bare = load(template=True, chat_template=None)
    assert bare.lib.rkllm_set_function_tools(bare.handle, b"sys", b"[]", b"<r>") == -1


def test_cross_attention_needs_to_be_enabled(load: Load) -> None:
    floats, ints = (ctypes.c_float * 4)(), (ctypes.c_int32 * 4)()
    pointers = [ctypes.addressof(part) for part in (floats, floats, floats, ints)]
    param = struct.pack("<4Qi4x", *pointers, 4)
    client = load({"cross": True})
    assert client.lib.rkllm_set_cross_attn_params(client.handle, param) == 0
    assert (
        client.lib.rkllm_set_cross_attn_params(client.handle, struct.pack("<4Qi4x", 0, *pointers[1:], 4))
        == -1
    )
    plain = load()
    assert plain.lib.rkllm_set_cross_attn_params(plain.handle, param) == -1


def test_the_callers_tokenizer_and_embeddings_are_asked(load: Load, log: Path) -> None:
    def tokenize(userdata: int, text: int, length: int, tokens: int, room: int) -> int:
        ids = [len(word) for word in ctypes.string_at(text, length).split()]
        ctypes.memmove(tokens, struct.pack(f"<{len(ids)}i", *ids), 4 * len(ids))
        return len(ids)

    def embed(userdata: int, tokens: int, count: int, out: int, size: int) -> int:
        assert size == count * 4 * 4
        ctypes.memset(out, 0, size)
        return 0

    client = load({"tokenizer": TOKENIZER_CALLBACK(tokenize), "embed": EMBED_CALLBACK(embed)}, embd=4)
    assert client.run("aa bbb c") == 0
    assert calls(log, "rkllm_run")[0]["input"]["ids"] == [2, 3, 1]
    assert calls(log, "embed_callback")[0]["crc32"] == zlib.crc32(bytes(48))
