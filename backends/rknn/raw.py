"""The functions of rknn_api.h 2.3: their C prototypes as ctypes. Loads nothing.

`PROTOTYPES` maps a name to its result and argument types. `bind` sets them on a library that someone else
has opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ctypes import CDLL, POINTER, c_int, c_int32, c_uint32, c_uint64, c_void_p
from typing import Any

from backends.rknn.structs import (
    RknnContext,
    RknnInitExtend,
    RknnInput,
    RknnOutput,
    RknnOutputExtend,
    RknnRunExtend,
    RknnTensorAttr,
    RknnTensorMem,
)

PROTOTYPES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    # int rknn_init(rknn_context* context, void* model, uint32_t size, uint32_t flag,
    #     rknn_init_extend* extend);
    "rknn_init": (c_int, (POINTER(RknnContext), c_void_p, c_uint32, c_uint32, POINTER(RknnInitExtend))),
    # int rknn_dup_context(rknn_context* context_in, rknn_context* context_out);
    "rknn_dup_context": (c_int, (POINTER(RknnContext), POINTER(RknnContext))),
    # int rknn_destroy(rknn_context context);
    "rknn_destroy": (c_int, (RknnContext,)),
    # int rknn_query(rknn_context context, rknn_query_cmd cmd, void* info, uint32_t size);
    "rknn_query": (c_int, (RknnContext, c_int, c_void_p, c_uint32)),
    # int rknn_inputs_set(rknn_context context, uint32_t n_inputs, rknn_input inputs[]);
    "rknn_inputs_set": (c_int, (RknnContext, c_uint32, POINTER(RknnInput))),
    # int rknn_set_batch_core_num(rknn_context context, int core_num);
    "rknn_set_batch_core_num": (c_int, (RknnContext, c_int)),
    # int rknn_set_core_mask(rknn_context context, rknn_core_mask core_mask);
    "rknn_set_core_mask": (c_int, (RknnContext, c_int)),
    # int rknn_run(rknn_context context, rknn_run_extend* extend);
    "rknn_run": (c_int, (RknnContext, POINTER(RknnRunExtend))),
    # int rknn_wait(rknn_context context, rknn_run_extend* extend);
    "rknn_wait": (c_int, (RknnContext, POINTER(RknnRunExtend))),
    # int rknn_outputs_get(rknn_context context, uint32_t n_outputs, rknn_output outputs[],
    #     rknn_output_extend* extend);
    "rknn_outputs_get": (c_int, (RknnContext, c_uint32, POINTER(RknnOutput), POINTER(RknnOutputExtend))),
    # int rknn_outputs_release(rknn_context context, uint32_t n_ouputs, rknn_output outputs[]);
    "rknn_outputs_release": (c_int, (RknnContext, c_uint32, POINTER(RknnOutput))),
    # rknn_tensor_mem* rknn_create_mem_from_phys(rknn_context ctx, uint64_t phys_addr, void *virt_addr,
    #     uint32_t size);
    "rknn_create_mem_from_phys": (POINTER(RknnTensorMem), (RknnContext, c_uint64, c_void_p, c_uint32)),
    # rknn_tensor_mem* rknn_create_mem_from_fd(rknn_context ctx, int32_t fd, void *virt_addr, uint32_t size,
    #     int32_t offset);
    "rknn_create_mem_from_fd": (POINTER(RknnTensorMem), (RknnContext, c_int32, c_void_p, c_uint32, c_int32)),
    # rknn_tensor_mem* rknn_create_mem_from_mb_blk(rknn_context ctx, void *mb_blk, int32_t offset);
    "rknn_create_mem_from_mb_blk": (POINTER(RknnTensorMem), (RknnContext, c_void_p, c_int32)),
    # rknn_tensor_mem* rknn_create_mem(rknn_context ctx, uint32_t size);
    "rknn_create_mem": (POINTER(RknnTensorMem), (RknnContext, c_uint32)),
    # rknn_tensor_mem* rknn_create_mem2(rknn_context ctx, uint64_t size, uint64_t alloc_flags);
    "rknn_create_mem2": (POINTER(RknnTensorMem), (RknnContext, c_uint64, c_uint64)),
    # int rknn_destroy_mem(rknn_context ctx, rknn_tensor_mem *mem);
    "rknn_destroy_mem": (c_int, (RknnContext, POINTER(RknnTensorMem))),
    # int rknn_set_weight_mem(rknn_context ctx, rknn_tensor_mem *mem);
    "rknn_set_weight_mem": (c_int, (RknnContext, POINTER(RknnTensorMem))),
    # int rknn_set_internal_mem(rknn_context ctx, rknn_tensor_mem *mem);
    "rknn_set_internal_mem": (c_int, (RknnContext, POINTER(RknnTensorMem))),
    # int rknn_set_io_mem(rknn_context ctx, rknn_tensor_mem *mem, rknn_tensor_attr *attr);
    "rknn_set_io_mem": (c_int, (RknnContext, POINTER(RknnTensorMem), POINTER(RknnTensorAttr))),
    # int rknn_set_input_shape(rknn_context ctx, rknn_tensor_attr* attr);
    "rknn_set_input_shape": (c_int, (RknnContext, POINTER(RknnTensorAttr))),
    # int rknn_set_input_shapes(rknn_context ctx, uint32_t n_inputs, rknn_tensor_attr attr[]);
    "rknn_set_input_shapes": (c_int, (RknnContext, c_uint32, POINTER(RknnTensorAttr))),
    # int rknn_mem_sync(rknn_context context, rknn_tensor_mem* mem, rknn_mem_sync_mode mode);
    "rknn_mem_sync": (c_int, (RknnContext, POINTER(RknnTensorMem), c_int)),
}


def bind(library: CDLL) -> None:
    """Set the types of every function that `library` has."""
    for name, (result, arguments) in PROTOTYPES.items():
        function = getattr(library, name, None)
        if function is not None:
            function.restype = result
            function.argtypes = arguments


def missing(library: CDLL, names: Iterable[str]) -> list[str]:
    """Return which of `names` the library does not have."""
    return [name for name in names if getattr(library, name, None) is None]
