"""An entry's core_mask as the bits of the NPU's cores."""

from __future__ import annotations

from collections.abc import Mapping

from backends.rknn.enums import RknnCoreMask
from backends.spec import CoreMask

CORES: Mapping[CoreMask, RknnCoreMask] = {
    "auto": RknnCoreMask.CORE_AUTO,
    "0": RknnCoreMask.CORE_0,
    "1": RknnCoreMask.CORE_1,
    "2": RknnCoreMask.CORE_2,
    "0_1": RknnCoreMask.CORE_0_1,
    "0_1_2": RknnCoreMask.CORE_0_1_2,
    "all": RknnCoreMask.CORE_ALL,
}
