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

PyObject* first_bytes(PyObject*, PyObject* array) {
  Objects elements;
  if (!elements.open(array)) return nullptr;
  for (size_t i = 0; i < elements.size(); ++i) {
    if (elements[i] != nullptr && Bytes::is_bytes(elements[i])) return PyLong_FromSize_t(i);
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
  const Bytes bytes(element, "strict");
  if (!bytes) return false;
  string.assign(bytes.view());
  return true;
}

PyObject* fill(PyObject*, PyObject* arguments) {
  unsigned long long address;
  PyObject* array;
  if (!PyArg_ParseTuple(arguments, "KO:fill", &address, &array)) return nullptr;
  Objects elements;
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
  PyObject* array;
  if (!PyArg_ParseTuple(arguments, "KO:read", &address, &array)) return nullptr;
  Objects elements;
  if (!elements.open(array, PyBUF_WRITABLE)) return nullptr;
  const auto* const strings = reinterpret_cast<const std::string*>(address);
  Turns turns;
  for (size_t i = 0; i < elements.size(); ++i) {
    const std::string_view bytes = strings[i];
    if (!elements.set(i, text_or_bytes(bytes))) return nullptr;
    turns.after(bytes.size());
  }
  Py_RETURN_NONE;
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
     "read(address, array of objects)\n\nGives the elements the strings at an address: a str for each that is UTF-8,\n"
     "else bytes. There must be as many strings as elements."},
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
