"""The structs of rknn_api.h 2.3 as ctypes. The C declaration of each field beside it.

Layouts hold for LP64 (aarch64 and x86-64 agree). A wrong one does not fail, it corrupts: the tests compare
every size and offset with a table made by a C++ compiler.
"""

from __future__ import annotations

from ctypes import (
    Structure,
    c_char,
    c_char_p,
    c_float,
    c_int,
    c_int8,
    c_int32,
    c_int64,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, ClassVar

RknnContext = c_uint64  # typedef uint64_t rknn_context;

MAX_DIMS = 16  # #define RKNN_MAX_DIMS 16
MAX_NAME_LEN = 256  # #define RKNN_MAX_NAME_LEN 256
MAX_DYNAMIC_SHAPE_NUM = 512  # #define RKNN_MAX_DYNAMIC_SHAPE_NUM 512


class RknnInputOutputNum(Structure):
    """How many inputs and outputs a model has."""

    _fields_: ClassVar[Any] = [
        ("n_input", c_uint32),  # uint32_t n_input;
        ("n_output", c_uint32),  # uint32_t n_output;
    ]


class RknnTensorAttr(Structure):
    """A tensor as it lies in memory.

    index: set by the caller of rknn_query. n_elems, dims: of the values. w_stride: elements from a row to the
    next, 0 where they are packed; h_stride likewise in rows. size, size_with_stride: bytes without and with
    what pads it. pass_through: the memory has these attributes already, nothing is to be converted.
    """

    _fields_: ClassVar[Any] = [
        ("index", c_uint32),  # uint32_t index;
        ("n_dims", c_uint32),  # uint32_t n_dims;
        ("dims", c_uint32 * MAX_DIMS),  # uint32_t dims[RKNN_MAX_DIMS];
        ("name", c_char * MAX_NAME_LEN),  # char name[RKNN_MAX_NAME_LEN];
        ("n_elems", c_uint32),  # uint32_t n_elems;
        ("size", c_uint32),  # uint32_t size;
        ("fmt", c_int),  # rknn_tensor_format fmt;
        ("type", c_int),  # rknn_tensor_type type;
        ("qnt_type", c_int),  # rknn_tensor_qnt_type qnt_type;
        ("fl", c_int8),  # int8_t fl;
        ("zp", c_int32),  # int32_t zp;
        ("scale", c_float),  # float scale;
        ("w_stride", c_uint32),  # uint32_t w_stride;
        ("size_with_stride", c_uint32),  # uint32_t size_with_stride;
        ("pass_through", c_uint8),  # uint8_t pass_through;
        ("h_stride", c_uint32),  # uint32_t h_stride;
    ]


class RknnInputRange(Structure):
    """The shapes an input can be given, of a file with dynamic shapes."""

    _fields_: ClassVar[Any] = [
        ("index", c_uint32),  # uint32_t index;
        ("shape_number", c_uint32),  # uint32_t shape_number;
        ("fmt", c_int),  # rknn_tensor_format fmt;
        ("name", c_char * MAX_NAME_LEN),  # char name[RKNN_MAX_NAME_LEN];
        (
            "dyn_range",
            (c_uint32 * MAX_DIMS) * MAX_DYNAMIC_SHAPE_NUM,
        ),  # uint32_t dyn_range[RKNN_MAX_DYNAMIC_SHAPE_NUM][RKNN_MAX_DIMS];
        ("n_dims", c_uint32),  # uint32_t n_dims;
    ]


class RknnPerfDetail(Structure):
    """Times of each layer, as text."""

    _fields_: ClassVar[Any] = [
        ("perf_data", c_char_p),  # char* perf_data;
        ("data_len", c_uint64),  # uint64_t data_len;
    ]


class RknnPerfRun(Structure):
    """How long the last run took, in microseconds."""

    _fields_: ClassVar[Any] = [
        ("run_duration", c_int64),  # int64_t run_duration;
    ]


class RknnSdkVersion(Structure):
    """The versions of the library and of the driver, as text."""

    _fields_: ClassVar[Any] = [
        ("api_version", c_char * 256),  # char api_version[256];
        ("drv_version", c_char * 256),  # char drv_version[256];
    ]


class RknnMemSize(Structure):
    """Memory of a context, in bytes."""

    _fields_: ClassVar[Any] = [
        ("total_weight_size", c_uint32),  # uint32_t total_weight_size;
        ("total_internal_size", c_uint32),  # uint32_t total_internal_size;
        ("total_dma_allocated_size", c_uint64),  # uint64_t total_dma_allocated_size;
        ("total_sram_size", c_uint32),  # uint32_t total_sram_size;
        ("free_sram_size", c_uint32),  # uint32_t free_sram_size;
        ("reserved", c_uint32 * 10),  # uint32_t reserved[10];
    ]


class RknnCustomString(Structure):
    """A text that the converter put into the file."""

    _fields_: ClassVar[Any] = [
        ("string", c_char * 1024),  # char string[1024];
    ]


class RknnTensorMem(Structure):
    """Memory of the NPU's, mapped at virt_addr. It is the library's: rknn_destroy_mem gives it back."""

    _fields_: ClassVar[Any] = [
        ("virt_addr", c_void_p),  # void* virt_addr;
        ("phys_addr", c_uint64),  # uint64_t phys_addr;
        ("fd", c_int32),  # int32_t fd;
        ("offset", c_int32),  # int32_t offset;
        ("size", c_uint32),  # uint32_t size;
        ("flags", c_uint32),  # uint32_t flags;
        ("priv_data", c_void_p),  # void * priv_data;
    ]


class RknnInput(Structure):
    """An input that rknn_inputs_set copies."""

    _fields_: ClassVar[Any] = [
        ("index", c_uint32),  # uint32_t index;
        ("buf", c_void_p),  # void* buf;
        ("size", c_uint32),  # uint32_t size;
        ("pass_through", c_uint8),  # uint8_t pass_through;
        ("type", c_int),  # rknn_tensor_type type;
        ("fmt", c_int),  # rknn_tensor_format fmt;
    ]


class RknnOutput(Structure):
    """An output that rknn_outputs_get copies."""

    _fields_: ClassVar[Any] = [
        ("want_float", c_uint8),  # uint8_t want_float;
        ("is_prealloc", c_uint8),  # uint8_t is_prealloc;
        ("index", c_uint32),  # uint32_t index;
        ("buf", c_void_p),  # void* buf;
        ("size", c_uint32),  # uint32_t size;
    ]


class RknnInitExtend(Structure):
    """More for rknn_init."""

    _fields_: ClassVar[Any] = [
        ("ctx", RknnContext),  # rknn_context ctx;
        ("real_model_offset", c_int32),  # int32_t real_model_offset;
        ("real_model_size", c_uint32),  # uint32_t real_model_size;
        ("model_buffer_fd", c_int32),  # int32_t model_buffer_fd;
        ("model_buffer_flags", c_uint32),  # uint32_t model_buffer_flags;
        ("reserved", c_uint8 * 112),  # uint8_t reserved[112];
    ]


class RknnRunExtend(Structure):
    """More for rknn_run."""

    _fields_: ClassVar[Any] = [
        ("frame_id", c_uint64),  # uint64_t frame_id;
        ("non_block", c_int32),  # int32_t non_block;
        ("timeout_ms", c_int32),  # int32_t timeout_ms;
        ("fence_fd", c_int32),  # int32_t fence_fd;
    ]


class RknnOutputExtend(Structure):
    """More for rknn_outputs_get."""

    _fields_: ClassVar[Any] = [
        ("frame_id", c_uint64),  # uint64_t frame_id;
    ]
