// A segment as Python describes it: tuples of an operator's name, arrays and numbers, read and checked.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "segment.h"
#include "view.h"

namespace rkk {

// A segment with what it works on: its arrays stay held, and the threads, until it is gone.
struct HeldSegment {
  PyObject* threads_capsule = nullptr;
  rkk::Threads* threads = nullptr;
  std::vector<std::unique_ptr<View>> views;
  std::unique_ptr<rkk::Segment> segment;
  ~HeldSegment() { Py_XDECREF(threads_capsule); }

  // A vector of floats, of any size if `size` is 0. Null, with an error set, for anything else.
  float* vector(PyObject* object, const char* name, bool writable, Py_ssize_t size, Py_ssize_t* found = nullptr) {
    View* view = take(object, name, "f", writable);
    if (view == nullptr) return nullptr;
    if (view->count() > INT32_MAX) return PyErr_Format(PyExc_ValueError, "%s is too large", name), nullptr;
    if (view->count() < 1 || (size != 0 && view->count() != size)) {
      PyErr_Format(PyExc_ValueError, "%s has %zd values, not %zd", name, view->count(), size);
      return nullptr;
    }
    if (found != nullptr) *found = view->count();
    return view->data<float>();
  }

  View* take(PyObject* object, const char* name, const char* formats, bool writable) {
    views.push_back(std::make_unique<View>());
    return views.back()->take(object, name, formats, 0, writable, true) ? views.back().get() : nullptr;
  }

  // Read one step. false, with an error set, for one that does not fit.
  bool read(PyObject* tuple, rkk::Step& step) {
    const char* name;
    PyObject *x, *a, *b, *c, *d;
    if (!PyTuple_Check(tuple)) return PyErr_SetString(PyExc_TypeError, "a step must be a tuple"), false;
    PyObject* first = PyTuple_GetItem(tuple, 0);
    Py_ssize_t length = 0;
    if (first == nullptr || (name = PyUnicode_AsUTF8AndSize(first, &length)) == nullptr) return false;
    const std::string what = name;
    step = {};
    Py_ssize_t size = 0;
    if (what == "product") {
      int bits;
      if (!PyArg_ParseTuple(tuple, "sOiOOOO", &name, &x, &bits, &a, &b, &c, &d)) return false;
      step.what = rkk::Operator::kProduct;
      return (step.x = vector(x, "x", false, 0, &size)) != nullptr && matrix(step, size, bits, a, b, c, d);
    }
    if (what == "norm") {
      if (!PyArg_ParseTuple(tuple, "sOOfO", &name, &x, &a, &step.eps, &b)) return false;
      step.what = rkk::Operator::kNorm;
      if ((step.x = vector(x, "x", false, 0, &size)) == nullptr) return false;
      if ((step.y = vector(a, "weight", false, size)) == nullptr) return false;
      step.out = vector(b, "out", true, size);
    } else if (what == "conv") {
      if (!PyArg_ParseTuple(tuple, "sOOOO", &name, &a, &x, &b, &c)) return false;
      step.what = rkk::Operator::kConv;
      Py_ssize_t taps = 0;
      if ((step.x = vector(x, "x", false, 0, &size)) == nullptr) return false;
      if ((step.kernel = vector(b, "kernel", false, 0, &taps)) == nullptr) return false;
      if (taps % size != 0) return PyErr_SetString(PyExc_ValueError, "a kernel that does not fit"), false;
      step.taps = static_cast<int>(taps / size);
      if (step.taps > 1 && (step.y = vector(a, "state", false, taps - size)) == nullptr) return false;
      step.out = vector(c, "out", true, size);
    } else if (what == "add" || what == "multiply") {
      if (!PyArg_ParseTuple(tuple, "sOOO", &name, &x, &a, &b)) return false;
      step.what = what == "add" ? rkk::Operator::kAdd : rkk::Operator::kMultiply;
      if ((step.x = vector(x, "x", false, 0, &size)) == nullptr) return false;
      if ((step.y = vector(a, "y", false, size)) == nullptr) return false;
      step.out = vector(b, "out", true, size);
    } else if (what == "silu" || what == "gelu") {
      if (!PyArg_ParseTuple(tuple, "sOO", &name, &x, &a)) return false;
      step.what = what == "silu" ? rkk::Operator::kSilu : rkk::Operator::kGelu;
      if ((step.x = vector(x, "x", false, 0, &size)) == nullptr) return false;
      step.out = vector(a, "out", true, size);
    } else {
      return PyErr_Format(PyExc_ValueError, "there is no step %s", name), false;
    }
    step.size = static_cast<int>(size);
    if (step.out == nullptr) return false;
    const bool pairwise = step.what == rkk::Operator::kAdd || step.what == rkk::Operator::kMultiply;
    const Py_ssize_t read_of_y = step.what == rkk::Operator::kConv ? taps_size(step) - size : size;
    if ((step.out != step.x && overlap(step.out, size, step.x, size)) ||
        (step.y != nullptr && !(pairwise && step.out == step.y) && overlap(step.out, size, step.y, read_of_y)) ||
        (step.kernel != nullptr && overlap(step.out, size, step.kernel, taps_size(step))))
      return PyErr_SetString(PyExc_ValueError, "a step that writes over what it still reads"), false;
    return true;
  }

  static Py_ssize_t taps_size(const rkk::Step& step) { return static_cast<Py_ssize_t>(step.taps) * step.size; }

  // Whether two arrays, of so many elements, share memory.
  template <typename One, typename Other>
  static bool overlap(const One* one, Py_ssize_t size, const Other* other, Py_ssize_t other_size) {
    const auto from = reinterpret_cast<uintptr_t>(one), start = reinterpret_cast<uintptr_t>(other);
    return from < start + other_size * sizeof(Other) && start < from + size * sizeof(One);
  }

  // A product may not give what it reads: its rows are computed at once, by several threads.
  bool matrix(rkk::Step& step, Py_ssize_t size, int bits, PyObject* values, PyObject* scales, PyObject* offsets,
              PyObject* out) {
    Py_ssize_t outputs = 0;
    if ((step.out = vector(out, "out", true, 0, &outputs)) == nullptr) return false;
    step.size = static_cast<int>(size);
    return read_matrix(step, size, outputs, bits, values, scales, offsets) && apart(step, size, outputs);
  }

  bool apart(const rkk::Step& step, Py_ssize_t size, Py_ssize_t outputs) {
    const rkk::Matrix& m = step.matrix;
    const Py_ssize_t blocks = outputs * (size / rkk::kBlock);
    const Py_ssize_t bytes = m.bits == 32 ? 4 * outputs * size : blocks * 4 * m.bits;
    if (!overlap(step.out, outputs, step.x, size) &&
        !overlap(step.out, outputs, static_cast<const uint8_t*>(m.values), bytes) &&
        (m.scales == nullptr || !overlap(step.out, outputs, m.scales, blocks)) &&
        (m.offsets == nullptr || !overlap(step.out, outputs, m.offsets, blocks)))
      return true;
    return PyErr_SetString(PyExc_ValueError, "a product that writes what it reads"), false;
  }

  bool read_matrix(rkk::Step& step, Py_ssize_t size, Py_ssize_t outputs, int bits, PyObject* values, PyObject* scales,
                   PyObject* offsets) {
    step.matrix = {bits, static_cast<int>(outputs), step.size, nullptr, nullptr, nullptr};
    if (bits == 32) return (step.matrix.values = vector(values, "values", false, outputs * size)) != nullptr;
    if ((bits != 4 && bits != 8) || size % rkk::kBlock != 0)
      return PyErr_SetString(PyExc_ValueError, "a matrix must be of 4, 8 or 32 bits, and of whole blocks"), false;
    const Py_ssize_t blocks = size / rkk::kBlock;
    const View* bytes = take(values, "values", "B", false);
    if (bytes == nullptr) return false;
    if (bytes->count() != outputs * blocks * 4 * bits)
      return PyErr_SetString(PyExc_ValueError, "values and sizes do not fit together"), false;
    step.matrix.values = bytes->data<uint8_t>();
    if ((step.matrix.scales = vector(scales, "scales", false, outputs * blocks)) == nullptr) return false;
    if (offsets == Py_None) return true;
    return (step.matrix.offsets = vector(offsets, "offsets", false, outputs * blocks)) != nullptr;
  }
};

}  // namespace rkk
