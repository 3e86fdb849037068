// The part of rknn_api.h 2.3 that the stand-in has, written anew from the table of layouts.
#pragma once
#include <cstdint>

typedef uint64_t rknn_context;

struct rknn_input_output_num {
    uint32_t n_input, n_output;
};

struct rknn_tensor_attr {
    uint32_t index, n_dims, dims[16];
    char name[256];
    uint32_t n_elems, size;
    int32_t fmt, type, qnt_type;
    int8_t fl;
    int32_t zp;
    float scale;
    uint32_t w_stride, size_with_stride;
    uint8_t pass_through;
    uint32_t h_stride;
};
static_assert(sizeof(rknn_tensor_attr) == 376, "as in the vendor's header");

struct rknn_input_range {
    uint32_t index, shape_number;
    int32_t fmt;
    char name[256];
    uint32_t dyn_range[512][16];
    uint32_t n_dims;
};
static_assert(sizeof(rknn_input_range) == 33040, "as in the vendor's header");

struct rknn_sdk_version {
    char api_version[256], drv_version[256];
};

struct rknn_tensor_mem {
    void* virt_addr;
    uint64_t phys_addr;
    int32_t fd, offset;
    uint32_t size, flags;
    void* priv_data;
};
static_assert(sizeof(rknn_tensor_mem) == 40, "as in the vendor's header");

struct rknn_input {
    uint32_t index;
    void* buf;
    uint32_t size;
    uint8_t pass_through;
    int32_t type, fmt;
};
static_assert(sizeof(rknn_input) == 32, "as in the vendor's header");

struct rknn_output {
    uint8_t want_float, is_prealloc;
    uint32_t index;
    void* buf;
    uint32_t size;
};
static_assert(sizeof(rknn_output) == 24, "as in the vendor's header");

enum {
    QUERY_IN_OUT_NUM = 0,
    QUERY_INPUT_ATTR = 1,
    QUERY_OUTPUT_ATTR = 2,
    QUERY_SDK_VERSION = 5,
    QUERY_NATIVE_INPUT_ATTR = 8,
    QUERY_NATIVE_OUTPUT_ATTR = 9,
    QUERY_INPUT_DYNAMIC_RANGE = 13,
    QUERY_CURRENT_INPUT_ATTR = 14,
    QUERY_CURRENT_OUTPUT_ATTR = 15,
    QUERY_CURRENT_NATIVE_INPUT_ATTR = 16,
    QUERY_CURRENT_NATIVE_OUTPUT_ATTR = 17,
};

enum {
    OK = 0,
    FAIL = -1,
    MALLOC_FAIL = -4,
    PARAM_INVALID = -5,
    MODEL_INVALID = -6,
    CTX_INVALID = -7,
    INPUT_INVALID = -8,
    OUTPUT_INVALID = -9,
    PLATFORM_UNMATCH = -13,
};

enum { TYPE_FLOAT32 = 0, TYPE_FLOAT16 = 1, FORMAT_UNDEFINED = 3 };
