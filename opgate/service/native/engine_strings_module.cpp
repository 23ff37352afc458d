// The Python module opgate.service.native.engine_strings: the strings of a tensor of ONNX Runtime, with any bytes.
//
// ONNX Runtime keeps them as an array of std::string. Its Python API converts them to and from str only. This module
// works on the array itself. It may do so if `has_layout` says that the engine's strings are those of this compiler.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include "text_or_bytes.h"

namespace {

// Other threads of Python may run after so many elements, or so many bytes.
constexpr size_t kLongObjects = 4096;
constexpr size_t kLongBytes = 1 << 20;

// Lends the lock of Python's interpreter to other threads from time to time.
class Turns {
 public:
  void after(size_t bytes) {
    ++objects_;
    bytes_ += bytes;
    if (objects_ < kLongObjects && bytes_ < kLongBytes) return;
    PyEval_RestoreThread(PyEval_SaveThread());
    objects_ = bytes_ = 0;
  }

 private:
  size_t objects_ = 0, bytes_ = 0;
};

// The elements of a NumPy array of objects.
class Elements {
 public:
  ~Elements() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }

  bool open(PyObject* array) {
    if (PyObject_GetBuffer(array, &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) return false;
    if (view_.format != nullptr && std::strcmp(view_.format, "O") == 0) return true;
    PyErr_SetString(PyExc_TypeError, "expected an array of objects");
    return false;
  }

  size_t size() const { return static_cast<size_t>(view_.len) / sizeof(PyObject*); }
  PyObject* operator[](size_t i) const { return static_cast<PyObject* const*>(view_.buf)[i]; }

 private:
  Py_buffer view_{};
};

PyObject* first_bytes(PyObject*, PyObject* array) {
  Elements elements;
  if (!elements.open(array)) return nullptr;
  for (size_t i = 0; i < elements.size(); ++i) {
    if (elements[i] != nullptr && PyBytes_Check(elements[i])) return PyLong_FromSize_t(i);
  }
  return PyLong_FromLong(-1);
}

PyObject* has_layout(PyObject*, PyObject* arguments) {
  unsigned long long address;
  if (!PyArg_ParseTuple(arguments, "K:has_layout", &address)) return nullptr;
  // An empty std::string of libstdc++ points at the characters that it has inside, and has the size 0.
  struct Words {
    unsigned long long data, size;
    std::array<char, 16> inside;
  };
  if (sizeof(Words) != sizeof(std::string)) Py_RETURN_FALSE;  // this module has another library of C++
  for (unsigned long long at = address; at < address + 2 * sizeof(Words); at += sizeof(Words)) {
    Words words;
    std::memcpy(&words, reinterpret_cast<const void*>(at), sizeof words);
    if (words.data != at + offsetof(Words, inside) || words.size != 0 || words.inside[0] != 0) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

// Gives a string the bytes of a str or of bytes. Returns false with an exception.
bool set(std::string& string, PyObject* element) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (element != nullptr && PyUnicode_Check(element)) {
    // PyUnicode_AsUTF8 would keep a copy for as long as the str lives.
    if (PyUnicode_IS_COMPACT_ASCII(element)) {
      string.assign(static_cast<const char*>(PyUnicode_DATA(element)),
                    static_cast<size_t>(PyUnicode_GET_LENGTH(element)));
      return true;
    }
    PyObject* const encoded = PyUnicode_AsUTF8String(element);
    if (encoded == nullptr) return false;
    try {
      string.assign(PyBytes_AS_STRING(encoded), static_cast<size_t>(PyBytes_GET_SIZE(encoded)));
    } catch (...) {
      Py_DECREF(encoded);
      throw;
    }
    Py_DECREF(encoded);
    return true;
  }
  if (element == nullptr || !PyBytes_Check(element)) {
    PyErr_SetString(PyExc_TypeError, "expected an array of str and bytes");
    return false;
  }
  if (PyBytes_AsStringAndSize(element, &data, &size) != 0) return false;
  string.assign(data, static_cast<size_t>(size));
  return true;
}

PyObject* fill(PyObject*, PyObject* arguments) {
  unsigned long long address;
  PyObject* array;
  if (!PyArg_ParseTuple(arguments, "KO:fill", &address, &array)) return nullptr;
  Elements elements;
  if (!elements.open(array)) return nullptr;
  auto* const strings = reinterpret_cast<std::string*>(address);
  Turns turns;
  try {
    for (size_t i = 0; i < elements.size(); ++i) {
      if (!set(strings[i], elements[i])) return nullptr;
      turns.after(strings[i].size());
    }
  } catch (const std::exception&) {  // there is no memory for it
    return PyErr_NoMemory();
  }
  Py_RETURN_NONE;
}

PyObject* read(PyObject*, PyObject* arguments) {
  unsigned long long address;
  Py_ssize_t count;
  if (!PyArg_ParseTuple(arguments, "Kn:read", &address, &count)) return nullptr;
  const auto* const strings = reinterpret_cast<const std::string*>(address);
  PyObject* list = PyList_New(count);
  Turns turns;
  for (Py_ssize_t i = 0; list != nullptr && i < count; ++i) {
    const std::string_view bytes = strings[i];
    PyObject* const item = text_or_bytes(bytes);
    if (item == nullptr) {
      Py_CLEAR(list);
      break;
    }
    PyList_SET_ITEM(list, i, item);
    turns.after(bytes.size());
  }
  return list;
}

std::array<PyMethodDef, 5> methods = {{
    {"first_bytes", first_bytes, METH_O,
     "first_bytes(array of objects) -> int\n\nReturns the index of the first element that is bytes, -1 if none is."},
    {"has_layout", has_layout, METH_VARARGS,
     "has_layout(address) -> bool\n\nSays whether the two strings of 32 bytes at an address are empty strings as this\n"
     "module reads and writes them. It reads 64 bytes and changes nothing."},
    {"fill", fill, METH_VARARGS,
     "fill(address, array of objects)\n\nGives the strings at an address the UTF-8 of the elements that are str, and\n"
     "the bytes of those that are bytes. There must be as many strings as elements."},
    {"read", read, METH_VARARGS,
     "read(address, count) -> list\n\nReturns the strings at an address: a str for each that is UTF-8, else bytes."},
    {nullptr, nullptr, 0, nullptr},
}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "opgate.service.native.engine_strings",
                          "The strings of a tensor of ONNX Runtime, with any bytes.",
                          -1,
                          methods.data(),
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace

extern "C" PyMODINIT_FUNC PyInit_engine_strings() { return PyModule_Create(&definition); }
