"""Every architecture in the simulator of rknn-toolkit2: the same tokens wherever the choice is clear.

The tokens are given: a prompt of the oracle's and its committed answer, so that one token that differs does
not change what comes after it.
"""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from convert.architectures import ARCHITECTURES
from convert.hf import convert_hf
from convert.rknn.build import TARGETS
from convert.rknn.environment import default_environment, ready_environment
from tests.convert.checkpoints import write_checkpoint
from tests.locks import held
from tests.oracle.architectures import models
from tests.serving import clean_environment

ROOT = Path(__file__).parents[3]
SCRIPT = Path(__file__).with_name("in_simulator.py")
RUN_S = 900
CHUNK = 8
ANSWER = 20  # tokens of an answer that are compared; the prompt's chunks give as many positions again

# Root mean square of the error, in that of rounding to float16 between the segments only; found: 1.6 to 4.4.
LEAST_ERROR, LARGEST_ERROR = 1, 8
LARGEST_OF_SPREAD = 0.02  # the largest error of all, in the logits' spread; found: 0.0006 to 0.0105
LEAST_CLEAR = 0.75  # of the positions; found: 30 to 36 of 36

Logits = npt.NDArray[np.float32]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(RUN_S + 900),  # the first makes the environment
    pytest.mark.skipif(platform.machine() != "x86_64", reason="rknn-toolkit2 needs x86-64"),
]


def test_every_architecture_has_a_model() -> None:
    assert {model.config["model_type"] for model in models().values()} == set(ARCHITECTURES)


@pytest.mark.parametrize("name", sorted(models()))
def test_the_same_tokens_wherever_the_margin_exceeds_the_error_of_float16(name: str, tmp_path: Path) -> None:
    conversation = models()[name].conversations["first"]
    tokens = conversation.prompt + conversation.answer[: ANSWER - 1]
    chunks, rest = divmod(len(conversation.prompt), CHUNK)
    sizes = [CHUNK] * chunks + [rest] + [1] * (ANSWER - 1)  # the rest leaves rows unused
    assert 1 < rest < CHUNK

    expected, rounded, found = _logits(name, tokens, sizes, tmp_path)

    assert expected[-ANSWER:].argmax(axis=1).tolist() == conversation.answer[:ANSWER]
    error = np.abs(found - expected)
    ratio = _size(error) / _size(rounded - expected)
    assert LEAST_ERROR < ratio < LARGEST_ERROR
    assert error.max() < LARGEST_OF_SPREAD * np.ptp(expected)
    clear = _margins(expected) > 2 * _errors_of_others(error, expected)
    assert clear.mean() >= LEAST_CLEAR
    np.testing.assert_array_equal(found.argmax(axis=1)[clear], expected.argmax(axis=1)[clear])


def _logits(name: str, tokens: list[int], sizes: list[int], directory: Path) -> tuple[Logits, Logits, Logits]:
    """Return a model's logits at the end of each call: onnxruntime's, with rounding, the simulator's."""
    checkpoint = write_checkpoint(directory / "checkpoint", models()[name])
    folder = convert_hf(checkpoint, directory / "folder", lengths=(1, CHUNK))
    work = directory / "work"
    work.mkdir()
    np.savez(work / "calls.npz", tokens=np.array(tokens, np.int32), sizes=np.array(sizes))
    environment = default_environment()  # kept for later runs
    with held(environment.parent / "rknn-toolkit2.lock"):
        python = ready_environment(environment, lambda done, what: None)
        done = subprocess.run(
            [str(python), "-I", str(SCRIPT), str(ROOT), str(folder), str(work), TARGETS[0]],
            cwd=work,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_S,
        )
    assert done.returncode == 0, done.stdout[-4000:]
    with np.load(work / "logits.npz") as saved:
        assert saved["finite"]
        return saved["onnxruntime"], saved["rounded"], saved["simulator"]


def _size(error: Logits) -> float:
    return float(np.sqrt(np.square(error, dtype=np.float64).mean()))


def _margins(logits: Logits) -> Logits:
    """How far the best logit of each position leads the second."""
    second, first = np.sort(logits, axis=1)[:, -2:].T
    margins: Logits = first - second
    return margins


def _errors_of_others(error: Logits, logits: Logits) -> Logits:
    """Return the largest error of each position but those of its two best logits.

    With these two in it the same token would follow from a margin of twice the error, whatever was computed.
    """
    others = error.copy()
    np.put_along_axis(others, np.argsort(logits, axis=1)[:, -2:], 0, axis=1)
    largest: Logits = others.max(axis=1)
    return largest
