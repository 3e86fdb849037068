// The Python module: checks the buffers it is given (type, shape, strides, bounds), lets go of the interpreter's
// lock and calls the kernels. Limited API of Python 3.11, so that one build serves all later versions.
#include "view.h"

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "attention.h"
#include "held_segment.h"
#include "processor.h"
#include "rows.h"
#include "vocabulary.h"

namespace {

using rkk::HeldSegment;
using rkk::View;

constexpr const char* kSegment = "rkserve_kernels.Segment";
constexpr const char* kThreads = "rkserve_kernels.Threads";

PyObject* refuse(const char* why) {
  PyErr_SetString(PyExc_ValueError, why);
  return nullptr;
}

// Run without the interpreter's lock; memory that is not there becomes a MemoryError.
template <typename Work>
PyObject* without_lock(Work work) {
  bool enough = true;
  PyThreadState* state = PyEval_SaveThread();
  try {
    work();
  } catch (const std::bad_alloc&) {
    enough = false;
  }
  PyEval_RestoreThread(state);
  if (!enough) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

void end_threads(PyObject* capsule) {
  delete static_cast<rkk::Threads*>(PyCapsule_GetPointer(capsule, kThreads));
}

PyObject* threads(PyObject*, PyObject* args) {
  int count = 0;
  if (!PyArg_ParseTuple(args, "i", &count)) return nullptr;
  if (count < 1 || count > 64) return refuse("there must be 1 to 64 threads");
  try {
    auto made = std::make_unique<rkk::Threads>(count);
    PyObject* capsule = PyCapsule_New(made.get(), kThreads, end_threads);
    if (capsule != nullptr) made.release();
    return capsule;
  } catch (const std::exception& error) {  // no memory, or no thread to be had
    PyErr_SetString(PyExc_MemoryError, error.what());
    return nullptr;
  }
}

int widest_lanes() {
  static const int lanes = rkk::processor_lanes();
  return lanes;
}

template <typename Element>
rkk::Attention<Element> attention(const View& q, const View& keys, const View& values, const View& out,
                                  int window, float scale, float softcap, int lanes) {
  return {q.data<float>(), keys.data<Element>(), values.data<Element>(), out.data<float>(),
          q.stride(0), keys.stride(0), q.size(0), q.size(1), keys.size(0), q.size(2), keys.size(1),
          window, scale, softcap, lanes};
}

PyObject* attend(PyObject*, PyObject* args) {
  PyObject *capsule, *q_, *keys_, *values_, *out_;
  float scale, softcap;
  const int widest = widest_lanes();
  int window, lanes = widest;
  if (!PyArg_ParseTuple(args, "OOOOOfif|i", &capsule, &q_, &keys_, &values_, &out_, &scale, &window, &softcap, &lanes))
    return nullptr;
  if (lanes != widest && lanes != rkk::kFewestLanes) return refuse("there are no loops for so many lanes here");
  auto* pool = static_cast<rkk::Threads*>(PyCapsule_GetPointer(capsule, kThreads));
  View q, keys, values, out;
  if (pool == nullptr || !q.take(q_, "q", "f", 3, false, false) || !keys.take(keys_, "keys", "fe", 3, false, false) ||
      !values.take(values_, "values", "fe", 3, false, false) || !out.take(out_, "out", "f", 3, true, true))
    return nullptr;
  const int tokens = q.size(0), heads = q.size(1), head_dim = q.size(2), kv_heads = keys.size(0);
  const int length = keys.size(1);
  if (head_dim % 8 != 0 || head_dim > 512 || head_dim < 8) return refuse("head_dim must be a multiple of 8, at most 512");
  if (q.stride(2) != 1 || q.stride(1) != head_dim) return refuse("q must be contiguous within a token");
  if (tokens < 1 || kv_heads < 1 || heads < 1 || heads % kv_heads != 0 || length < tokens || window < 0)
    return refuse("the sizes of q and keys do not fit together");
  for (int axis = 0; axis < 3; ++axis) {
    if (keys.size(axis) != values.size(axis) || keys.stride(axis) != values.stride(axis) ||
        out.size(axis) != q.size(axis))
      return refuse("keys and values, or q and out, differ in shape or strides");
  }
  if (keys.format() != values.format()) return refuse("keys and values differ in type");
  if (keys.size(2) != head_dim || keys.stride(2) != 1 || keys.stride(1) != head_dim)
    return refuse("rows of keys must be contiguous and of q's head_dim");
  return without_lock([&] {
    if (keys.format() == 'f')
      rkk::attend(attention<float>(q, keys, values, out, window, scale, softcap, lanes), *pool);
    else
      rkk::attend(attention<rkk::Half>(q, keys, values, out, window, scale, softcap, lanes), *pool);
  });
}

PyObject* lanes(PyObject*, PyObject*) {
  return PyLong_FromLong(widest_lanes());
}

PyObject* rms_norm(PyObject*, PyObject* args) {
  PyObject *x_, *weight_;
  float eps;
  if (!PyArg_ParseTuple(args, "OOf", &x_, &weight_, &eps)) return nullptr;
  View x, weight;
  if (!x.take(x_, "x", "f", 0, true, true) || !weight.take(weight_, "weight", "f", 1, false, true)) return nullptr;
  const int size = weight.size(0);
  if (size < 1 || x.axes() < 1 || x.size(x.axes() - 1) != size) return refuse("the last axis of x is not weight's");
  return without_lock([&] { rkk::rms_norm(x.data<float>(), x.count() / size, size, weight.data<float>(), eps); });
}

PyObject* rotate(PyObject*, PyObject* args) {
  PyObject *x_, *cos_, *sin_;
  int interleaved;
  if (!PyArg_ParseTuple(args, "OOOp", &x_, &cos_, &sin_, &interleaved)) return nullptr;
  View x, cos, sin;
  if (!x.take(x_, "x", "f", 3, true, true) || !cos.take(cos_, "cos", "f", 2, false, true) ||
      !sin.take(sin_, "sin", "f", 2, false, true))
    return nullptr;
  const int pairs = cos.size(1);
  if (cos.size(0) != x.size(0) || sin.size(0) != x.size(0) || sin.size(1) != pairs || 2 * pairs > x.size(2))
    return refuse("cos and sin must be (T, pairs) with 2 * pairs at most the last axis of x");
  return without_lock([&] {
    rkk::rotate(x.data<float>(), x.size(0), x.size(1), x.size(2), cos.data<float>(), sin.data<float>(), pairs,
                interleaved != 0);
  });
}

PyObject* apply_gate(PyObject*, PyObject* args) {
  PyObject *x_, *gate_;
  if (!PyArg_ParseTuple(args, "OO", &x_, &gate_)) return nullptr;
  View x, gate;
  if (!x.take(x_, "x", "f", 0, true, true) || !gate.take(gate_, "gate", "f", 0, false, true)) return nullptr;
  if (gate.count() < 1 || x.count() % gate.count() != 0) return refuse("x must hold a whole number of values a gate");
  const auto each = static_cast<int>(x.count() / gate.count());
  return without_lock([&] { rkk::apply_gate(x.data<float>(), gate.data<float>(), gate.count(), each); });
}

PyObject* write_rows(PyObject*, PyObject* args) {
  PyObject *rows_, *to_;
  if (!PyArg_ParseTuple(args, "OO", &rows_, &to_)) return nullptr;
  View rows, to;
  if (!rows.take(rows_, "rows", "f", 3, false, false) || !to.take(to_, "to", "fe", 3, true, false)) return nullptr;
  const int count = rows.size(0), heads = rows.size(1), size = rows.size(2);
  if (to.size(0) != heads || to.size(1) != count || to.size(2) != size)
    return refuse("rows must be (T, K, D) and what they are written to (K, T, D)");
  if (size != 1 && (rows.stride(2) != 1 || to.stride(2) != 1)) return refuse("each row must be contiguous");
  if (count != 1 && to.stride(1) != size) return refuse("rows must be written side by side");
  return without_lock([&] {
    if (to.format() == 'f')
      rkk::write_rows(rows.data<float>(), rows.stride(0), rows.stride(1), count, heads, size, to.data<float>(), to.stride(0));
    else
      rkk::write_rows(rows.data<float>(), rows.stride(0), rows.stride(1), count, heads, size, to.data<rkk::Half>(), to.stride(0));
  });
}

PyObject* to_half(PyObject*, PyObject* args) {
  PyObject *from_, *to_;
  if (!PyArg_ParseTuple(args, "OO", &from_, &to_)) return nullptr;
  View from, to;
  if (!from.take(from_, "from", "f", 0, false, true) || !to.take(to_, "to", "e", 0, true, true)) return nullptr;
  if (from.count() != to.count()) return refuse("both must hold as many values");
  return without_lock([&] { rkk::to_half(from.data<float>(), to.data<rkk::Half>(), from.count()); });
}

PyObject* from_half(PyObject*, PyObject* args) {
  PyObject *from_, *to_;
  if (!PyArg_ParseTuple(args, "OO", &from_, &to_)) return nullptr;
  View from, to;
  if (!from.take(from_, "from", "e", 0, false, true) || !to.take(to_, "to", "f", 0, true, true)) return nullptr;
  if (from.count() != to.count()) return refuse("both must hold as many values");
  return without_lock([&] { rkk::from_half(from.data<rkk::Half>(), to.data<float>(), from.count()); });
}

PyObject* weigh_logits(PyObject*, PyObject* args) {
  PyObject *logits_, *weights_;
  double temperature;
  if (!PyArg_ParseTuple(args, "OOd", &logits_, &weights_, &temperature)) return nullptr;
  View logits, weights;
  if (!logits.take(logits_, "logits", "f", 1, false, true) || !weights.take(weights_, "weights", "d", 1, true, true))
    return nullptr;
  if (logits.count() < 1 || logits.count() != weights.count()) return refuse("both must hold as many values");
  if (!(temperature > 0)) return refuse("the temperature must be above 0");
  return without_lock(
      [&] { rkk::weigh_logits(logits.data<float>(), weights.data<double>(), logits.count(), temperature); });
}

PyObject* find_largest(PyObject*, PyObject* args) {
  PyObject *values_, *indices_;
  if (!PyArg_ParseTuple(args, "OO", &values_, &indices_)) return nullptr;
  View values, indices;
  if (!values.take(values_, "values", "fd", 1, false, true) || !indices.take(indices_, "indices", "lq", 1, true, true))
    return nullptr;
  if (indices.count() > values.count()) return refuse("there are not so many values");
  return without_lock([&] {
    if (values.format() == 'f')
      rkk::find_largest(values.data<float>(), values.count(), indices.count(), indices.data<int64_t>());
    else
      rkk::find_largest(values.data<double>(), values.count(), indices.count(), indices.data<int64_t>());
  });
}

void end_segment(PyObject* capsule) {
  delete static_cast<HeldSegment*>(PyCapsule_GetPointer(capsule, kSegment));
}

PyObject* segment(PyObject*, PyObject* args) {
  PyObject *capsule, *list;
  if (!PyArg_ParseTuple(args, "OO!", &capsule, &PyList_Type, &list)) return nullptr;
  auto* pool = static_cast<rkk::Threads*>(PyCapsule_GetPointer(capsule, kThreads));
  if (pool == nullptr) return nullptr;
  try {
    auto held = std::make_unique<HeldSegment>();
    std::vector<rkk::Step> steps(PyList_Size(list));
    for (size_t i = 0; i < steps.size(); ++i)
      if (!held->read(PyList_GetItem(list, static_cast<Py_ssize_t>(i)), steps[i])) return nullptr;
    held->segment = std::make_unique<rkk::Segment>(std::move(steps));
    held->threads = pool;
    held->threads_capsule = Py_NewRef(capsule);
    PyObject* made = PyCapsule_New(held.get(), kSegment, end_segment);
    if (made != nullptr) held.release();
    return made;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
}

PyObject* run_segment(PyObject*, PyObject* capsule) {
  auto* held = static_cast<HeldSegment*>(PyCapsule_GetPointer(capsule, kSegment));
  if (held == nullptr) return nullptr;
  return without_lock([&] { held->segment->run(*held->threads); });
}

PyMethodDef kMethods[] = {
    {"segment", segment, METH_VARARGS, nullptr},
    {"run_segment", run_segment, METH_O, nullptr},
    {"threads", threads, METH_VARARGS, nullptr},
    {"attend", attend, METH_VARARGS, nullptr},
    {"lanes", lanes, METH_NOARGS, nullptr},
    {"rms_norm", rms_norm, METH_VARARGS, nullptr},
    {"rotate", rotate, METH_VARARGS, nullptr},
    {"apply_gate", apply_gate, METH_VARARGS, nullptr},
    {"write_rows", write_rows, METH_VARARGS, nullptr},
    {"to_half", to_half, METH_VARARGS, nullptr},
    {"from_half", from_half, METH_VARARGS, nullptr},
    {"weigh_logits", weigh_logits, METH_VARARGS, nullptr},
    {"find_largest", find_largest, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {PyModuleDef_HEAD_INIT, "_kernels", nullptr, -1, kMethods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__kernels() {
  if (!rkk::processor_suffices()) {  // the first call would end the process
    PyErr_SetString(PyExc_ImportError, "this processor lacks AVX2, FMA or F16C");
    return nullptr;
  }
  return PyModule_Create(&kModule);
}
