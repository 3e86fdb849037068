"""The committed reference values: whole, and the same when the oracle makes them again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.oracle import architectures, environment, gguf_files, pre_tokenizers, strings, values
from tests.oracle.prompts import ANSWER_TOKENS, LEAST_MARGIN, SECOND

# Sums of fp32 products in another order: another processor or number of threads moves a logit by so much.
LOGIT_TOLERANCE = 1e-3


def test_the_random_strings_are_the_ones_the_values_were_made_for() -> None:
    texts = strings.Strings().take(strings.RANDOM_STRINGS)
    assert values.digest(texts) == values.tokens().random_sha256
    assert len(texts) == len(values.tokens().random_ids)


def test_there_are_50_chosen_strings() -> None:
    assert [text for text, _ in values.tokens().chosen] == list(strings.CHOSEN)
    assert len(set(strings.CHOSEN)) == 50


def test_six_prompts_with_answers_that_hang_on_no_small_margin() -> None:
    cases = values.greedy()
    assert len(cases) == 6
    for case in cases.values():
        assert len(case.answer_ids) == ANSWER_TOKENS == len(case.margins)
        assert min(case.margins) > LEAST_MARGIN
    assert len(cases["one_token"].prompt_ids) == 1
    assert 550 < len(cases["long"].prompt_ids) < 650
    first = cases["english"]
    assert cases[SECOND].prompt_ids[: len(first.prompt_ids)] == first.prompt_ids


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_oracle_makes_the_committed_values_again(tmp_path: Path) -> None:
    command = [str(environment.python()), "-m", "tests.oracle.make", "--out", str(tmp_path)]
    subprocess.run(command, cwd=environment.ROOT, check=True)
    assert values.tokens(tmp_path) == values.tokens()
    again, committed = values.greedy(tmp_path), values.greedy()
    assert again.keys() == committed.keys()
    for name, case in committed.items():
        assert again[name].spans == case.spans
        assert again[name].prompt_ids == case.prompt_ids
        assert again[name].answer_ids == case.answer_ids
        assert again[name].margins == pytest.approx(case.margins, abs=2 * LOGIT_TOLERANCE)
        for one, other in zip(again[name].logits, case.logits, strict=True):
            assert one.step == other.step
            assert one.ids == other.ids
            assert one.logits == pytest.approx(other.logits, abs=LOGIT_TOLERANCE)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_oracle_answers_for_the_architectures_as_committed(tmp_path: Path) -> None:
    """The seeds are searched anew: with the committed answers the same ones are found."""
    command = [str(environment.python()), "-m", "tests.oracle.make_architectures", "--out", str(tmp_path)]
    subprocess.run(command, cwd=environment.ROOT, check=True)
    again, committed = architectures.models(tmp_path), architectures.models()
    assert again.keys() == committed.keys()
    for name, model in committed.items():
        assert (again[name].config, again[name].shapes) == (model.config, model.shapes)
        assert again[name].seed == model.seed
        for key, conversation in model.conversations.items():
            other = again[name].conversations[key]
            assert (other.prompt, other.answer) == (conversation.prompt, conversation.answer)
            for one, row in zip(other.logits, conversation.logits, strict=True):
                assert one == pytest.approx(row, abs=LOGIT_TOLERANCE)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_llama_cpp_reads_the_gguf_files_as_the_models_they_are_of() -> None:
    command = [str(environment.python()), "-m", "tests.oracle.check_gguf"]
    done = subprocess.run(command, cwd=environment.ROOT, check=True, stdout=subprocess.PIPE, text=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(gguf_files.NAMES)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_llama_cpp_cuts_text_as_committed(tmp_path: Path) -> None:
    command = [str(environment.python()), "-m", "tests.oracle.make_pre_tokenizers", "--out", str(tmp_path)]
    subprocess.run(command, cwd=environment.ROOT, check=True)
    assert pre_tokenizers.values(tmp_path) == pre_tokenizers.values()


def test_the_architectures_have_several_layers_of_every_type() -> None:
    models = architectures.models()
    assert {model.config["model_type"] for model in models.values()} == {
        "gemma3_text",
        "granite",
        "kanana2",
        "lfm2",
        "lfm3",
        "llama",
        "qwen3",
    }
    kinds = [kind for model in models.values() for kind in model.config.get("layer_types", [])]
    assert min(kinds.count(kind) for kind in ("full_attention", "sliding_attention", "conv")) > 10
    for model in models.values():
        for conversation in model.conversations.values():
            assert len(conversation.answer) == architectures.ANSWER_TOKENS
            assert len(conversation.logits) == len(architectures.STEPS)
