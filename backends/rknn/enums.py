"""The enumerations of rknn_api.h 2.3. C names without their prefixes."""

from __future__ import annotations

from enum import IntEnum


class RknnQueryCmd(IntEnum):
    """What rknn_query is asked. NATIVE: as the NPU itself has it; CURRENT: at the shapes that are set."""

    IN_OUT_NUM = 0
    INPUT_ATTR = 1
    OUTPUT_ATTR = 2
    PERF_DETAIL = 3
    PERF_RUN = 4
    SDK_VERSION = 5
    MEM_SIZE = 6
    CUSTOM_STRING = 7
    NATIVE_INPUT_ATTR = 8
    NATIVE_OUTPUT_ATTR = 9
    NATIVE_NC1HWC2_INPUT_ATTR = 8
    NATIVE_NC1HWC2_OUTPUT_ATTR = 9
    NATIVE_NHWC_INPUT_ATTR = 10
    NATIVE_NHWC_OUTPUT_ATTR = 11
    DEVICE_MEM_INFO = 12
    INPUT_DYNAMIC_RANGE = 13
    CURRENT_INPUT_ATTR = 14
    CURRENT_OUTPUT_ATTR = 15
    CURRENT_NATIVE_INPUT_ATTR = 16
    CURRENT_NATIVE_OUTPUT_ATTR = 17
    CMD_MAX = 18


class RknnTensorType(IntEnum):
    """The type of a tensor's elements."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT8 = 2
    UINT8 = 3
    INT16 = 4
    UINT16 = 5
    INT32 = 6
    UINT32 = 7
    INT64 = 8
    BOOL = 9
    INT4 = 10
    BFLOAT16 = 11
    TYPE_MAX = 12


class RknnTensorQntType(IntEnum):
    """How a tensor is quantized."""

    NONE = 0
    DFP = 1
    AFFINE_ASYMMETRIC = 2
    MAX = 3


class RknnTensorFormat(IntEnum):
    """In which order a tensor's axes lie. UNDEFINED: plain row-major, which has no image in it."""

    NCHW = 0
    NHWC = 1
    NC1HWC2 = 2
    UNDEFINED = 3
    FORMAT_MAX = 4


class RknnCoreMask(IntEnum):
    """Which cores of the NPU run a context: a bit a core."""

    CORE_AUTO = 0
    CORE_0 = 1
    CORE_1 = 2
    CORE_2 = 4
    CORE_0_1 = 3
    CORE_0_1_2 = 7
    CORE_ALL = 65535
    CORE_UNDEFINED = 65536


class RknnTensorMemFlags(IntEnum):
    """Where memory came from."""

    ALLOC_INSIDE = 1
    FROM_FD = 2
    FROM_PHYS = 3
    UNKNOWN = 4


class RknnMemAllocFlags(IntEnum):
    """What rknn_create_mem2 is asked for."""

    FLAGS_DEFAULT = 0
    CACHEABLE = 1
    NON_CACHEABLE = 2
    TRY_ALLOC_SRAM = 4


class RknnMemSyncMode(IntEnum):
    """Which way rknn_mem_sync makes memory agree."""

    TO_DEVICE = 1
    FROM_DEVICE = 2
    BIDIRECTIONAL = 3
