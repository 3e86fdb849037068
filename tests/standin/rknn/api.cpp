// The vendor's functions. Hostile where the vendor's may be: handles and memory are checked, a change of shape
// takes the bindings away, memory of inputs and outputs is not where it was asked for last time.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>

#include "abi.h"
#include "faults.h"
#include "half.h"
#include "model.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

extern const char* const standin_version;

namespace {

struct Context {
    Model model;
    int length = 1;
    uint32_t core_mask = 0;
    std::set<rknn_tensor_mem*> memory;
    std::map<std::string, std::pair<rknn_tensor_mem*, rknn_tensor_attr>> bound;  // by name
    std::map<std::string, Matrix> given;  // what rknn_inputs_set was given
    std::vector<Matrix> results;          // for rknn_outputs_get
};

std::mutex guard;
// Never destroyed: rknn-toolkit-lite2 unloads the library, and what it registered for the exit with it.
auto& contexts = *new std::map<rknn_context, std::unique_ptr<Context>>();
rknn_context next_context = 0x7f0000001000;

Context* find(rknn_context handle) {
    auto found = contexts.find(handle);
    return found == contexts.end() ? nullptr : found->second.get();
}

uint32_t stride_of(int cols) {
    int align = (int)setting("RKNN_STANDIN_ALIGN", 1);  // elements
    return (uint32_t)((cols + align - 1) / align * align);
}

void describe(const Tensor& tensor, int length, bool native, rknn_tensor_attr* attr) {
    uint32_t index = attr->index;
    std::memset(attr, 0, sizeof *attr);
    attr->index = index;
    std::snprintf(attr->name, sizeof attr->name, "%s", tensor.name.c_str());
    int rows = tensor.rows_at(length);
    attr->n_dims = 2;
    attr->dims[0] = (uint32_t)rows;
    attr->dims[1] = (uint32_t)tensor.cols;
    attr->n_elems = (uint32_t)(rows * tensor.cols);
    attr->size = 2 * attr->n_elems;
    attr->type = (int)setting("RKNN_STANDIN_TYPE", TYPE_FLOAT16);
    attr->fmt = FORMAT_UNDEFINED;
    attr->scale = 1;
    attr->size_with_stride = attr->size;
    if (!native) return;
    attr->fmt = (int)setting("RKNN_STANDIN_FORMAT", FORMAT_UNDEFINED);
    uint32_t stride = stride_of(tensor.cols);
    attr->w_stride = stride == (uint32_t)tensor.cols && index % 2 ? 0 : stride;  // 0 means packed, too
    attr->size_with_stride = 2 * stride * (uint32_t)rows;
}

int attribute(Context* context, uint32_t index, bool input, int length, bool native, rknn_tensor_attr* attr) {
    auto& tensors = input ? context->model.inputs : context->model.outputs;
    if (index >= tensors.size()) return PARAM_INVALID;
    describe(tensors[index], length, native, attr);
    return OK;
}

int longest(const Context* context) {
    return context->model.lengths.empty() ? 1 : context->model.lengths.back();
}

const Tensor* by_name(const std::vector<Tensor>& tensors, const std::string& name) {
    for (const Tensor& tensor : tensors)
        if (tensor.name == name) return &tensor;
    return nullptr;
}

bool is_bound(Context* context, const Tensor& tensor) { return context->bound.count(tensor.name) != 0; }

}  // namespace

EXPORT int rknn_init(rknn_context* handle, void* model, uint32_t size, uint32_t, void*) {
    std::lock_guard<std::mutex> held(guard);
    std::string path = size == 0 && model ? (const char*)model : "";
    if (int code = called("rknn_init", "\"path\": \"" + path + "\"")) return code;
    if (!handle || !model) return PARAM_INVALID;
    auto context = std::make_unique<Context>();
    std::ifstream file(path, std::ios::binary);
    std::istringstream bytes(size ? std::string((const char*)model, size) : "");
    if (!context->model.read(size ? (std::istream&)bytes : file)) return MODEL_INVALID;
    if (context->model.target != "rk3588") return PLATFORM_UNMATCH;
    context->length = longest(context.get());
    *handle = next_context += 0x1000;
    contexts[*handle] = std::move(context);
    return OK;
}

EXPORT int rknn_destroy(rknn_context handle) {
    std::lock_guard<std::mutex> held(guard);
    Context* context = find(handle);
    char details[40];
    std::snprintf(details, sizeof details, "\"memory_left\": %zu", context ? context->memory.size() : 0);
    if (int code = called("rknn_destroy", details)) return code;
    return contexts.erase(handle) ? OK : CTX_INVALID;
}

EXPORT int rknn_set_core_mask(rknn_context handle, int mask) {
    std::lock_guard<std::mutex> held(guard);
    if (int code = called("rknn_set_core_mask", "\"mask\": " + std::to_string(mask))) return code;
    bool known = (mask >= 0 && mask <= 4) || mask == 7 || mask == 65535;
    return !find(handle) ? CTX_INVALID : known ? OK : PARAM_INVALID;
}

EXPORT int rknn_query(rknn_context handle, int command, void* info, uint32_t size) {
    std::lock_guard<std::mutex> held(guard);
    if (int code = called("rknn_query", "\"command\": " + std::to_string(command))) return code;
    Context* context = find(handle);
    if (!context) return CTX_INVALID;
    auto* attr = (rknn_tensor_attr*)info;
    bool fits = size == sizeof(rknn_tensor_attr);
    switch (command) {
        case QUERY_IN_OUT_NUM: {
            if (size != sizeof(rknn_input_output_num)) return PARAM_INVALID;
            auto* counts = (rknn_input_output_num*)info;
            counts->n_input = (uint32_t)context->model.inputs.size();
            counts->n_output = (uint32_t)context->model.outputs.size();
            return OK;
        }
        case QUERY_SDK_VERSION: {
            if (size != sizeof(rknn_sdk_version)) return PARAM_INVALID;
            auto* versions = (rknn_sdk_version*)info;
            std::string said = setting("RKNN_STANDIN_SAYS");
            const char* own = standin_version + std::strlen("librknnrt version: ");
            std::snprintf(versions->api_version, 256, "%s", said.empty() ? own : said.c_str());
            std::snprintf(versions->drv_version, 256, "0.9.8");
            return OK;
        }
        case QUERY_INPUT_DYNAMIC_RANGE: {
            if (size != sizeof(rknn_input_range)) return PARAM_INVALID;
            auto* range = (rknn_input_range*)info;
            if (range->index >= context->model.inputs.size()) return PARAM_INVALID;
            const Tensor& tensor = context->model.inputs[range->index];
            range->shape_number = 0;
            range->n_dims = 2;
            for (int length : context->model.lengths) {
                range->dyn_range[range->shape_number][0] = (uint32_t)tensor.rows_at(length);
                range->dyn_range[range->shape_number++][1] = (uint32_t)tensor.cols;
            }
            return OK;
        }
        case QUERY_INPUT_ATTR:
        case QUERY_OUTPUT_ATTR:
        case QUERY_NATIVE_INPUT_ATTR:
        case QUERY_NATIVE_OUTPUT_ATTR:
            // The vendor's toolkit takes 1 and 2 to be of the shape that is set. Of 8 and 9 nobody says so: they
            // stay those of the longest.
            if (!fits) return PARAM_INVALID;
            return attribute(context, attr->index, command == QUERY_INPUT_ATTR || command == QUERY_NATIVE_INPUT_ATTR,
                             command >= QUERY_NATIVE_INPUT_ATTR ? longest(context) : context->length,
                             command >= QUERY_NATIVE_INPUT_ATTR, attr);
        case QUERY_CURRENT_INPUT_ATTR:
        case QUERY_CURRENT_OUTPUT_ATTR:
        case QUERY_CURRENT_NATIVE_INPUT_ATTR:
        case QUERY_CURRENT_NATIVE_OUTPUT_ATTR:
            if (!fits || context->model.lengths.empty()) return PARAM_INVALID;
            return attribute(context, attr->index, command % 2 == 0, context->length,
                             command >= QUERY_CURRENT_NATIVE_INPUT_ATTR, attr);
    }
    return PARAM_INVALID;
}

EXPORT int rknn_set_input_shapes(rknn_context handle, uint32_t count, rknn_tensor_attr* attrs) {
    std::lock_guard<std::mutex> held(guard);
    if (int code = called("rknn_set_input_shapes", "\"rows\": " + std::to_string(count ? attrs[0].dims[0] : 0)))
        return code;
    Context* context = find(handle);
    if (!context) return CTX_INVALID;
    auto& inputs = context->model.inputs;
    if (count != inputs.size()) return PARAM_INVALID;
    for (int length : context->model.lengths) {
        bool all = true;
        for (uint32_t index = 0; index < count; index++)
            all = all && attrs[index].index == index && attrs[index].n_dims == 2 &&
                  attrs[index].dims[0] == (uint32_t)inputs[index].rows_at(length) &&
                  attrs[index].dims[1] == (uint32_t)inputs[index].cols;
        if (all) {
            context->length = length;
            context->bound.clear();
            context->given.clear();
            return OK;
        }
    }
    return INPUT_INVALID;
}

EXPORT rknn_tensor_mem* rknn_create_mem(rknn_context handle, uint32_t size) {
    std::lock_guard<std::mutex> held(guard);
    Context* context = find(handle);
    if (called("rknn_create_mem", "\"size\": " + std::to_string(size)) || !context) return nullptr;
    auto* memory = new rknn_tensor_mem();
    // Filled with NaNs: what is read before it was written shows.
    if (posix_memalign(&memory->virt_addr, 4096, size ? size : 1)) std::abort();
    std::memset(memory->virt_addr, 0x7e, size);
    memory->size = size;
    memory->fd = -1;
    context->memory.insert(memory);
    return memory;
}

EXPORT int rknn_destroy_mem(rknn_context handle, rknn_tensor_mem* memory) {
    std::lock_guard<std::mutex> held(guard);
    if (int code = called("rknn_destroy_mem")) return code;
    Context* context = find(handle);
    if (!context) return CTX_INVALID;
    if (!context->memory.erase(memory)) return PARAM_INVALID;
    std::free(memory->virt_addr);
    delete memory;
    return OK;
}

EXPORT int rknn_set_io_mem(rknn_context handle, rknn_tensor_mem* memory, rknn_tensor_attr* attr) {
    std::lock_guard<std::mutex> held(guard);
    if (int code = called("rknn_set_io_mem")) return code;
    Context* context = find(handle);
    if (!context) return CTX_INVALID;
    if (!context->memory.count(memory) || !attr->pass_through) return PARAM_INVALID;
    const Tensor* tensor = by_name(context->model.inputs, attr->name);
    if (!tensor) tensor = by_name(context->model.outputs, attr->name);
    if (!tensor) return PARAM_INVALID;
    rknn_tensor_attr right;
    right.index = attr->index;
    describe(*tensor, context->length, true, &right);
    right.pass_through = 1;
    if (right.dims[0] != attr->dims[0] || right.w_stride != attr->w_stride || right.fmt != attr->fmt ||
        memory->size < right.size_with_stride)
        return PARAM_INVALID;
    context->bound[tensor->name] = {memory, right};
    return OK;
}

EXPORT int rknn_run(rknn_context handle, void*) {
    std::lock_guard<std::mutex> held(guard);
    Context* context = find(handle);
    if (int code = called("rknn_run", "\"length\": " + std::to_string(context ? context->length : 0))) return code;
    if (!context) return CTX_INVALID;
    std::vector<Matrix> given;
    bool copies = !context->given.empty();
    for (const Tensor& tensor : context->model.inputs) {
        if (copies) {
            if (!context->given.count(tensor.name)) return INPUT_INVALID;
            given.push_back(context->given[tensor.name]);
            continue;
        }
        if (!is_bound(context, tensor)) return INPUT_INVALID;
        auto& [memory, attr] = context->bound[tensor.name];
        Matrix matrix;
        matrix.rows = (int)attr.dims[0];
        matrix.cols = tensor.cols;
        auto* bits = (const uint16_t*)memory->virt_addr;
        for (int row = 0; row < matrix.rows; row++)
            for (int col = 0; col < matrix.cols; col++)
                matrix.values.push_back(from_half(bits[(size_t)row * stride_of(tensor.cols) + (size_t)col]));
        given.push_back(std::move(matrix));
    }
    for (const Tensor& tensor : context->model.outputs)
        if (!copies && !is_bound(context, tensor)) return OUTPUT_INVALID;
    std::vector<Matrix> results = context->model.run(given);
    if (long us = setting("RKNN_STANDIN_RUN_US", 0)) usleep((useconds_t)us);
    if (copies) {
        context->results = results;
        return OK;
    }
    for (size_t index = 0; index < results.size(); index++) {
        const Tensor& tensor = context->model.outputs[index];
        auto* bits = (uint16_t*)context->bound[tensor.name].first->virt_addr;
        uint32_t stride = stride_of(tensor.cols);
        for (int row = 0; row < results[index].rows; row++)
            for (uint32_t col = 0; col < stride; col++)
                bits[(size_t)row * stride + col] = (int)col < tensor.cols
                                                       ? to_half(results[index].at(row, (int)col))
                                                       : 0x7e00;  // padding is not to be read
    }
    return OK;
}

EXPORT int rknn_inputs_set(rknn_context handle, uint32_t count, rknn_input* inputs) {
    std::lock_guard<std::mutex> held(guard);
    if (int code = called("rknn_inputs_set")) return code;
    Context* context = find(handle);
    if (!context) return CTX_INVALID;
    for (uint32_t number = 0; number < count; number++) {
        const rknn_input& input = inputs[number];
        if (input.index >= context->model.inputs.size() || !input.buf) return PARAM_INVALID;
        const Tensor& tensor = context->model.inputs[input.index];
        Matrix matrix;
        matrix.rows = tensor.rows_at(context->length);
        matrix.cols = tensor.cols;
        size_t elements = (size_t)matrix.rows * (size_t)matrix.cols;
        bool half = input.type == TYPE_FLOAT16;
        if ((!half && input.type != TYPE_FLOAT32) || input.size != elements * (half ? 2 : 4)) return INPUT_INVALID;
        for (size_t place = 0; place < elements; place++)
            matrix.values.push_back(
                from_half(half ? ((uint16_t*)input.buf)[place] : to_half(((float*)input.buf)[place])));
        context->given[tensor.name] = std::move(matrix);
    }
    return OK;
}

EXPORT int rknn_outputs_get(rknn_context handle, uint32_t count, rknn_output* outputs, void*) {
    std::lock_guard<std::mutex> held(guard);
    if (int code = called("rknn_outputs_get")) return code;
    Context* context = find(handle);
    if (!context) return CTX_INVALID;
    for (uint32_t number = 0; number < count; number++) {
        rknn_output& output = outputs[number];
        size_t index = output.is_prealloc ? output.index : number;
        if (index >= context->results.size()) return OUTPUT_INVALID;
        const std::vector<float>& values = context->results[index].values;
        uint32_t size = (uint32_t)values.size() * (output.want_float ? 4 : 2);
        if (output.is_prealloc ? output.size < size : !(output.buf = std::malloc(size))) return OUTPUT_INVALID;
        output.index = (uint32_t)index;
        output.size = size;
        for (size_t place = 0; place < values.size(); place++) {
            uint16_t bits = to_half(values[place]);
            if (output.want_float)
                ((float*)output.buf)[place] = from_half(bits);
            else
                ((uint16_t*)output.buf)[place] = bits;
        }
    }
    return OK;
}

EXPORT int rknn_outputs_release(rknn_context handle, uint32_t count, rknn_output* outputs) {
    std::lock_guard<std::mutex> held(guard);
    if (int code = called("rknn_outputs_release")) return code;
    if (!find(handle)) return CTX_INVALID;
    for (uint32_t number = 0; number < count; number++)
        if (!outputs[number].is_prealloc) {
            std::free(outputs[number].buf);
            outputs[number].buf = nullptr;
        }
    return OK;
}
