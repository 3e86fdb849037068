"""Tokens of prompts against the tokenizers library on the same text, and what clients can never spell."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from backends.base import Span
from backends.tokenizer import PromptTokenizer
from backends.vocabulary import UnsupportedTokenizer
from tests.tiny import ADDED_TOKENS, CONTROL_TOKENS, tiny_tokenizer

ADDED = (*CONTROL_TOKENS, *ADDED_TOKENS)
TEXTS = ["", " ", "hello", "the world 2024", "\n\n", "世界 été ", "🙂", "<|", "im_start|>", "\ue000"]


def sentence_piece() -> str:
    """A tokenizer of the SentencePiece kind: spaces as ▁, one put before the text, bytes as a fallback."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [*"▁helowrdt", "▁h", "el", "▁hel", "lo", "▁hello", "▁w"]
    merges = [("▁", "h"), ("e", "l"), ("▁h", "el"), ("l", "o"), ("▁hel", "lo"), ("▁", "w")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in ("<unk>", "<s>", "</s>")])
    tokenizer.add_special_tokens([AddedToken("<|user|>", special=True, rstrip=True)])
    return tokenizer.to_str()


class Pair:
    """Our tokenizer and the library's own, made from one file."""

    def __init__(self, directory: Path, text: str) -> None:
        path = directory / "tokenizer.json"
        path.write_text(text, encoding="utf-8")
        self.ours = PromptTokenizer(path)
        self.library = Tokenizer.from_str(text)
        self.added = {
            token.content: token_id for token_id, token in self.library.get_added_tokens_decoder().items()
        }

    def plain(self, text: str) -> list[int]:
        return self.library.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("tiny"), tiny_tokenizer())


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pieces"), sentence_piece())


def test_control_text_becomes_control_tokens(tiny: Pair) -> None:
    prompt = [Span("<|im_start|>user\n", True), Span("hello", False), Span("<|im_end|>\n<think>", True)]
    token_ids = tiny.ours.encode(prompt)
    assert token_ids == tiny.plain("<|im_start|>user\nhello<|im_end|>\n<think>")
    assert [token_ids[0], token_ids[-1]] == [1, tiny.added["<think>"]]
    assert 2 in token_ids


spans = st.lists(
    st.one_of(
        st.builds(Span, st.sampled_from([*TEXTS, *ADDED]), st.just(True)),
        st.builds(Span, st.one_of(st.sampled_from(TEXTS), st.text(max_size=8)), st.just(False)),
    ),
    max_size=8,
)


@given(spans)
def test_without_control_strings_from_clients_it_is_the_library_on_the_joined_text(
    tiny: Pair, prompt: list[Span]
) -> None:
    joined = "".join(span.text for span in prompt)
    control = [span.control for span in prompt for _ in span.text]
    for match in re.finditer("|".join(map(re.escape, ADDED)), joined):
        assume(all(control[match.start() : match.end()]))  # the other case is that of the tests below
    assert tiny.ours.encode(prompt) == tiny.plain(joined)


@given(
    st.lists(st.sampled_from(["<s>", "<|user|>", " hello", "hello", " ", "w h", "é", "\n"]), max_size=6),
    st.data(),
)
def test_the_same_for_sentence_pieces(pieces: Pair, texts: list[str], data: st.DataObject) -> None:
    controls = [text.startswith("<") or data.draw(st.booleans()) for text in texts]
    prompt = [Span(text, control) for text, control in zip(texts, controls, strict=True)]
    assert pieces.ours.encode(prompt) == pieces.plain("".join(texts))


def test_control_tokens_are_found_whatever_the_normalizer_makes_of_text(tmp_path: Path) -> None:
    document = json.loads(sentence_piece())
    document["pre_tokenizer"] = None
    document["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    pair = Pair(tmp_path, json.dumps(document))
    text = "<s>hello world</s><|user|>hello"
    assert pair.ours.encode([Span(text, True)]) == pair.plain(text)
    assert pair.plain(text).count(pair.added["</s>"]) == 1


def test_blanks_that_an_added_token_stands_for_are_blanks(tmp_path: Path) -> None:
    """As Gemma 3 lists runs of them: the model's answer must not show their marks."""
    document = json.loads(sentence_piece())
    token_id = len(document["model"]["vocab"])
    document["model"]["vocab"]["▁▁"] = token_id
    entry = document["added_tokens"][0] | {"id": token_id, "content": "▁▁", "special": False}
    document["added_tokens"].append(entry)
    pair = Pair(tmp_path, json.dumps(document))
    (hello,) = pair.plain("hello")
    assert pair.library.decode([hello, token_id, hello]) == "hello   hello"
    assert pair.ours.vocabulary.bytes_of(token_id) == b"  "


@pytest.mark.parametrize("token", ADDED)
def test_an_added_token_in_text_from_a_client_stays_text(tiny: Pair, token: str) -> None:
    for text in (token, f"hello {token} world", token * 3, f"<{token}>"):
        for prompt in (
            [Span(text, False)],
            [Span("<|im_start|>", True), Span(text, False), Span("<|im_end|>", True)],
        ):
            token_ids = tiny.ours.encode(prompt)
            frame = [token_id for token_id in token_ids if token_id in tiny.added.values()]
            assert frame == ([1, 2] if len(prompt) == 3 else [])
            assert b"".join(map(tiny.ours.vocabulary.bytes_of, token_ids)).decode() == "".join(
                span.text for span in prompt
            )


@pytest.mark.parametrize("token", ADDED)
def test_nor_across_the_border_of_two_spans(tiny: Pair, token: str) -> None:
    for cut in range(1, len(token)):
        for controls in ((True, False), (False, True), (False, False)):
            prompt = [Span(token[:cut], controls[0]), Span(token[cut:], controls[1])]
            token_ids = tiny.ours.encode(prompt)
            assert not set(token_ids) & set(tiny.added.values())
            assert b"".join(map(tiny.ours.vocabulary.bytes_of, token_ids)).decode() == token
        both = [Span(token[:cut], True), Span(token[cut:], True)]
        assert tiny.ours.encode(both) == [tiny.added[token]]


def test_a_model_that_takes_whole_words_from_its_vocabulary_cannot_be_tricked(tmp_path: Path) -> None:
    document = json.loads(tiny_tokenizer())
    document["model"]["ignore_merges"] = True
    document["pre_tokenizer"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": False,
        "use_regex": False,
    }
    pair = Pair(tmp_path, json.dumps(document))
    assert pair.ours.encode([Span("<think>", True)]) == [pair.added["<think>"]]
    for token in ADDED:
        assert not set(pair.ours.encode([Span(token, False)])) & set(pair.added.values())


def test_the_longest_of_two_tokens_counts_as_in_the_library(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(tiny_tokenizer())
    tokenizer.add_special_tokens(["<|im_start|>user"])
    pair = Pair(tmp_path, tokenizer.to_str())
    joined = "<|im_start|>user<|im_start|>"
    assert pair.ours.encode([Span(joined, True)]) == pair.plain(joined)
    # What follows comes from a client, so only the shorter one is spelled by the template.
    assert pair.ours.encode([Span("<|im_start|>", True), Span("user", False)])[0] == 1


def test_secrets_are_new_at_each_loading(tiny: Pair, tmp_path: Path) -> None:
    again = Pair(tmp_path, tiny_tokenizer())
    assert set(again.ours._secrets.values()).isdisjoint(tiny.ours._secrets.values())


@given(st.text(max_size=40))
def test_at_least_is_a_lower_bound(tiny: Pair, text: str) -> None:
    prompt = [Span("<|im_start|>", True), Span(text, False)]
    assert tiny.ours.at_least(prompt) <= len(tiny.ours.encode(prompt))


def test_at_least_finds_megabytes_hopeless_at_once(tiny: Pair) -> None:
    longest = max(len(token.encode()) for token in tiny.library.get_vocab())
    prompt = [Span("helpful " * 1_000_000, False)]
    assert tiny.ours.at_least(prompt) >= 8_000_000 / longest
    assert tiny.ours.at_least([Span("", True)]) == 0


def test_at_least_counts_composed_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(tiny_tokenizer())
    tokenizer.normalizer = normalizers.NFC()
    pair = Pair(tmp_path, tokenizer.to_str())
    prompt = [Span("e\u0301" * 1000, False)]
    assert pair.ours.encode(prompt) == pair.plain("é" * 1000)
    assert 0 < pair.ours.at_least(prompt) <= 1000 * len(pair.plain("é"))


def one_token(character: str) -> Tokenizer:
    """A byte-level tokenizer whose only token of more than a byte is this character."""
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(character)[0][0]
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = []
    for end in range(2, len(spelled) + 1):
        tokens.append(spelled[:end])
        merges.append((spelled[: end - 1], spelled[end - 1]))
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_at_least_counts_composed_text_to_the_byte(tmp_path: Path) -> None:
    """With a token for each composed character the bound is exact; decomposed it would be half more."""
    tokenizer = one_token("é")
    tokenizer.normalizer = normalizers.NFC()
    pair = Pair(tmp_path, tokenizer.to_str())
    prompt = [Span("e\u0301" * 100, False)]
    assert len(pair.ours.encode(prompt)) == pair.ours.at_least(prompt) == 100


def test_at_least_knows_that_composing_can_make_text_longer(tmp_path: Path) -> None:
    """U+0958 is taken apart by NFC, for good, and no tokenizer need do that."""
    pair = Pair(tmp_path, one_token("\u0958").to_str())
    prompt = [Span("\u0958" * 100, False)]
    assert len(pair.ours.encode(prompt)) == pair.ours.at_least(prompt) == 100


def test_at_least_says_nothing_where_text_may_be_dropped(tmp_path: Path, pieces: Pair) -> None:
    tokenizer = Tokenizer.from_str(tiny_tokenizer())
    tokenizer.normalizer = normalizers.Strip()
    assert Pair(tmp_path, tokenizer.to_str()).ours.at_least([Span(" " * 1000, False)]) == 0
    assert pieces.ours.at_least([Span("<|user|>", True), Span(" " * 1000, False)]) == 0


def test_other_threads_run_while_a_long_text_is_encoded(tiny: Pair) -> None:
    """A worker's heartbeat must not stop for the seconds this may take."""
    done = threading.Event()
    beats: list[int] = []

    def beat() -> None:
        while not done.wait(0.001):
            beats.append(1)

    thread = threading.Thread(target=beat)
    thread.start()
    tiny.ours.encode([Span("the quick brown 世界 " * 100_000, False)])
    done.set()
    thread.join()
    assert len(beats) > 20


def broken(change: Any) -> str:
    document = json.loads(tiny_tokenizer())
    change(document)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("no JSON", "format"),
        ("[]", "format"),
        ("{}", "format"),
        (broken(lambda document: document["model"].update(type="Unigram")), "Unigram"),
        (broken(lambda document: document.update(decoder=None)), "decoder"),
        (broken(lambda document: document["model"].update(merges=[["x", "never"]])), "refuses"),
        (broken(lambda document: document["added_tokens"][0].update(id=7)), "id 7"),
        (broken(lambda document: document["added_tokens"][0].update(content="Ġthe")), "'Ġthe'"),
        (broken(lambda document: document["model"]["vocab"].update(Ġthe=2**31 - 1)), "to 2147483647, which"),
        (broken(lambda document: document["model"]["vocab"].update(Ġthe=10**30)), "which no model has"),
        (broken(lambda document: document["model"]["vocab"].update(Ġthe=-1)), "from -1 to"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UnsupportedTokenizer, match=complaint):
        PromptTokenizer(path)
