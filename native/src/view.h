// Arrays that Python hands over: their memory, type, shape and strides, checked.
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <cstdint>
#include <string>

namespace rkk {

// A buffer of an array, given back at the end of its life.
class View {
 public:
  View() = default;
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() {
    if (held_) PyBuffer_Release(&buffer_);
  }

  // Take the buffer of an object. formats: the element types allowed, one letter each. Sets an error otherwise.
  bool take(PyObject* object, const char* name, const char* formats, int dimensions, bool writable,
            bool contiguous) {
    const int flags = PyBUF_FORMAT | PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, &buffer_, flags) != 0) return false;
    held_ = true;
    const std::string format = buffer_.format == nullptr ? "B" : buffer_.format;
    if (format.size() != 1 || std::string(formats).find(format) == std::string::npos) {
      PyErr_Format(PyExc_TypeError, "%s holds elements of type %s, not one of %s", name, format.c_str(), formats);
      return false;
    }
    if (dimensions != 0 && buffer_.ndim != dimensions) {
      PyErr_Format(PyExc_ValueError, "%s has %d axes, not %d", name, buffer_.ndim, dimensions);
      return false;
    }
    for (int axis = 0; axis < buffer_.ndim; ++axis)
      if (buffer_.shape[axis] > INT32_MAX || buffer_.strides[axis] < 0) {
        PyErr_Format(PyExc_ValueError, "%s is too large or runs backwards", name);
        return false;
      }
    if (contiguous && !PyBuffer_IsContiguous(&buffer_, 'C')) {
      PyErr_Format(PyExc_ValueError, "%s is not contiguous", name);
      return false;
    }
    return true;
  }

  char format() const { return buffer_.format == nullptr ? 'B' : buffer_.format[0]; }
  int axes() const { return buffer_.ndim; }
  int size(int axis) const { return static_cast<int>(buffer_.shape[axis]); }
  Py_ssize_t stride(int axis) const { return buffer_.strides[axis] / buffer_.itemsize; }
  Py_ssize_t count() const { return buffer_.len / buffer_.itemsize; }
  template <typename T>
  T* data() const {
    return static_cast<T*>(buffer_.buf);
  }

 private:
  Py_buffer buffer_{};
  bool held_ = false;
};

}  // namespace rkk
