"""Where rows lie, by attributes as the library may give them."""

from __future__ import annotations

from typing import Any

import pytest

from backends.rknn.native import RowLayout, UnsupportedLayout, row_layout
from backends.rknn.structs import RknnTensorAttr

NCHW, NHWC, NC1HWC2, UNDEFINED = 0, 1, 2, 3
FLOAT16, INT8 = 1, 2


def attribute(dims: list[int], fmt: int = UNDEFINED, **fields: Any) -> RknnTensorAttr:
    made = RknnTensorAttr(name=b"hidden", n_dims=len(dims), fmt=fmt, **{"type": FLOAT16, **fields})
    made.dims[: len(dims)] = dims
    return made


@pytest.mark.parametrize(
    ("dims", "fmt", "fields", "layout"),
    [
        ([8, 48], UNDEFINED, {"size": 768}, RowLayout(48, 768)),
        ([8, 48], UNDEFINED, {"size": 768, "w_stride": 64, "size_with_stride": 1024}, RowLayout(64, 1024)),
        ([8, 48], UNDEFINED, {"w_stride": 64, "size_with_stride": 992}, RowLayout(64, 992)),
        ([1, 48], UNDEFINED, {"w_stride": 64, "size_with_stride": 128}, RowLayout(48, 128)),
        ([1, 1, 8, 48], NCHW, {"w_stride": 64, "size_with_stride": 1024}, RowLayout(64, 1024)),
        ([1, 8, 1, 48], NCHW, {"w_stride": 64, "size_with_stride": 1024}, RowLayout(64, 1024)),
        ([1, 8, 1, 48], NCHW, {"h_stride": 2, "size_with_stride": 1536}, RowLayout(96, 1536)),
        ([1, 1, 8, 48], NHWC, {"w_stride": 16, "size_with_stride": 1536}, RowLayout(48, 1536)),
        ([1, 8, 1, 48], NHWC, {"w_stride": 2, "size_with_stride": 1536}, RowLayout(96, 1536)),
        ([1, 8, 48, 1], NHWC, {"w_stride": 64, "size_with_stride": 1024}, RowLayout(64, 1024)),
    ],
)
def test_rows_lie_as_the_attributes_say(
    dims: list[int], fmt: int, fields: dict[str, int], layout: RowLayout
) -> None:
    assert row_layout(attribute(dims, fmt, **fields), dims[0] if len(dims) == 2 else 8, 48) == layout


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (attribute([8, 48], NC1HWC2, size=768), "in the layout NC1HWC2"),
        (attribute([8, 48], 9, size=768), "in the layout 9"),
        (attribute([8, 48], type=INT8, size=384), "of type INT8, not FLOAT16"),
        (attribute([8, 48], qnt_type=2, size=768), "quantized"),
        (attribute([48, 8], size=768), r"of shape \[48, 8\], where \[8, 48\] is right"),
        (attribute([8, 48], size=767), "of 767 bytes, where its strides need 768"),
        (attribute([8, 48], w_stride=64, size=768), "of 768 bytes, where its strides need 992"),
        (attribute([8, 48], w_stride=40, size=768), "with a stride of 40"),
        (attribute([1, 48, 1, 8], NHWC, size=768), r"of shape \[1, 48, 1, 8\]"),
        (attribute([], size=768), "of 0 dimensions"),
    ],
)
def test_what_is_no_rows_of_float16_is_refused(made: RknnTensorAttr, why: str) -> None:
    with pytest.raises(UnsupportedLayout, match=f"hidden is .*{why}"):
        row_layout(made, 8, 48)
