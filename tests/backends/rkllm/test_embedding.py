"""What an embedding run reports while it works."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock

from backends.base import EmbedInput, EmbedParams
from backends.rkllm.embedding import EmbeddingRun
from backends.rkllm.run import Ended


class Tokens(EmbeddingRun):
    """Makes no vectors; its inputs are their lengths."""

    def _encoded(self, inputs: list[EmbedInput]) -> Any:
        return [Mock(tokens=len(one.token_ids or ()), exact=True) for one in inputs]

    def _run(self, *_: Any) -> Any:
        return None, 0.0, Ended.ITSELF

    def _vector(self, *_: Any) -> bytes:
        return b""


def test_each_input_is_reported_with_what_it_has_itself() -> None:
    unused = cast(Any, None)
    run = Tokens("m", unused, unused, unused, unused, 2048)
    inputs = [EmbedInput(token_ids=[1] * length) for length in (5, 300, 2)]
    sink, cancelled = Mock(), Mock()
    cancelled.is_set.return_value = False
    run.embed(EmbedParams(inputs=inputs), sink, cancelled)
    assert [call.args for call in sink.prefill.call_args_list] == [(0, 5), (0, 300), (0, 2)]
