"""How many segments, so how many calls a token, models of real dimensions are cut into."""

from __future__ import annotations

from typing import Any

from bench.shapes import KANANA2_1_3B, LFM3_1_7B
from convert.architectures import ARCHITECTURES
from convert.hf_config import Config
from convert.model import Model, cuts


def model_of(values: dict[str, Any]) -> Model:
    config = Config(values)
    model = ARCHITECTURES[values["model_type"]](config)
    config.finish()
    return model


def test_lfm3_takes_12_segments() -> None:
    model = model_of(LFM3_1_7B)
    found = cuts(model.layers)
    assert len(found) == 12
    assert [(cut.ends, cut.convs, cut.begins) for cut in found[:3]] == [
        (None, (0, 1), 2),
        (2, (3,), 4),
        (4, (5,), 6),
    ]
    assert (found[-1].ends, found[-1].convs, found[-1].begins) == (22, (23,), None)
    full, sliding = model.attention["full"], model.attention["sliding"]
    assert (full.window, full.gate, sliding.window, sliding.gate) == (None, "head", 256, "head")
    assert full.rope is not None and full.rope.scaling is not None and sliding.rope is not None
    assert (full.rope.theta, full.rope.scaling.type, sliding.rope.theta) == (1e6, "proportional", 1e4)
    kinds = ["c" if hasattr(part.operator, "taps") else part.operator.type[0] for part in model.layers]
    assert "".join(kinds) == "ccfcscfcscfcscfcscfcscfc"


def test_kanana2_takes_33_segments() -> None:
    model = model_of(KANANA2_1_3B)
    assert len(cuts(model.layers)) == 33
    full, sliding = model.attention["full"].rope, model.attention["sliding"].rope
    assert full is not None and full.scaling is not None and sliding is not None
    assert full.scaling.parameters["attention_factor"] > 1.3688
    assert sliding.scaling is None
