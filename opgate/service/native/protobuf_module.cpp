// The Python module opgate.service.native.protobuf, see protobuf.pyi. protobuf_fields.h reads the encoding.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <vector>

#include "protobuf_fields.h"

namespace {

using namespace opgate::protobuf;

PyObject* too_large = nullptr;
PyObject* broken = nullptr;

PyObject* split(PyObject*, PyObject* args) {
  Py_buffer message;
  Py_ssize_t most_envelope = 0, most_parts = 0;
  if (!PyArg_ParseTuple(args, "y*nn:split", &message, &most_envelope, &most_parts)) return nullptr;
  Parts parts;
  const Outcome outcome = split_message(static_cast<const uint8_t*>(message.buf), static_cast<size_t>(message.len),
                                        static_cast<size_t>(most_envelope), static_cast<size_t>(most_parts), parts);
  PyBuffer_Release(&message);
  if (outcome != Outcome::kFine) {
    PyErr_SetNone(outcome == Outcome::kLarge ? too_large : broken);
    return nullptr;
  }
  PyObject* raws = PyList_New(0);
  PyObject* contents = PyList_New(0);
  bool valid = raws != nullptr && contents != nullptr;
  const auto add = [&valid](PyObject* list, PyObject* item) {
    valid = valid && item != nullptr && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
  };
  for (const Span& raw : parts.raws) {
    add(raws, Py_BuildValue("(nn)", static_cast<Py_ssize_t>(raw.at), static_cast<Py_ssize_t>(raw.size)));
  }
  for (const auto& [index, span] : parts.contents) {
    add(contents, Py_BuildValue("(nnn)", static_cast<Py_ssize_t>(index), static_cast<Py_ssize_t>(span.at),
                                static_cast<Py_ssize_t>(span.size)));
  }
  if (!valid) {
    Py_XDECREF(raws);
    Py_XDECREF(contents);
    return nullptr;
  }
  return Py_BuildValue("(y#NN)", parts.envelope.data(), static_cast<Py_ssize_t>(parts.envelope.size()), raws, contents);
}

PyObject* numbers(PyObject*, PyObject* args) {
  Py_buffer message, into;
  Py_ssize_t at = 0, size = 0, start = 0;
  unsigned int number = 0, type = 0;
  Py_ssize_t itemsize = 0;
  if (!PyArg_ParseTuple(args, "y*nnIInw*n:numbers", &message, &at, &size, &number, &type, &itemsize, &into, &start)) {
    return nullptr;
  }
  PyObject* result = nullptr;
  const bool sizes = itemsize == 1 || itemsize == 4 || itemsize == 8;
  const bool types = type == kVarint || (type == kFixed32 && itemsize == 4) || (type == kFixed64 && itemsize == 8);
  if (!sizes || !types || at < 0 || size < 0 || start < 0 || at > message.len || size > message.len - at) {
    PyErr_SetString(PyExc_ValueError, "numbers: expected a part of the message, a type and its size");
  } else {
    Target target{static_cast<char*>(into.buf), static_cast<size_t>(itemsize), static_cast<size_t>(into.len / itemsize),
                  static_cast<size_t>(start)};
    bool valid = false;
    Py_BEGIN_ALLOW_THREADS;
    valid = read_numbers(static_cast<const uint8_t*>(message.buf), {static_cast<size_t>(at), static_cast<size_t>(size)},
                         number, type, target);
    Py_END_ALLOW_THREADS;
    if (valid) {
      result = PyLong_FromSize_t(target.count);
    } else {
      PyErr_SetNone(broken);
    }
  }
  PyBuffer_Release(&message);
  PyBuffer_Release(&into);
  return result;
}

PyObject* strings(PyObject*, PyObject* args) {
  Py_buffer message;
  Py_ssize_t at = 0, size = 0, most = 0;
  unsigned int number = 0;
  if (!PyArg_ParseTuple(args, "y*nnIn:strings", &message, &at, &size, &number, &most)) return nullptr;
  PyObject* list = nullptr;
  if (at < 0 || size < 0 || at > message.len || size > message.len - at) {
    PyErr_SetString(PyExc_ValueError, "strings: expected a part of the message");
  } else {
    const auto* data = static_cast<const uint8_t*>(message.buf);
    Reader reader(data, {static_cast<size_t>(at), static_cast<size_t>(size)});
    std::vector<Span> found;
    Py_BEGIN_ALLOW_THREADS;
    Field field;
    while (static_cast<Py_ssize_t>(found.size()) <= most && reader.next(field)) {
      if (field.number == number && field.type == kBytes) found.push_back(field.value);
    }
    Py_END_ALLOW_THREADS;
    list = PyList_New(0);
    for (const Span& span : found) {
      PyObject* item = list == nullptr ? nullptr
                                       : PyBytes_FromStringAndSize(reinterpret_cast<const char*>(data) + span.at,
                                                                   static_cast<Py_ssize_t>(span.size));
      if (list != nullptr && (item == nullptr || PyList_Append(list, item) != 0)) Py_CLEAR(list);
      Py_XDECREF(item);
    }
    if (list != nullptr && reader.is_broken()) {
      Py_CLEAR(list);
      PyErr_SetNone(broken);
    }
  }
  PyBuffer_Release(&message);
  return list;
}

PyMethodDef methods[] = {
    {"split", split, METH_VARARGS, "Splits a ModelInferRequest into its envelope and the data of its tensors."},
    {"numbers", numbers, METH_VARARGS, "Reads the entries of a repeated field of numbers into memory."},
    {"strings", strings, METH_VARARGS, "Returns the entries of a repeated field of bytes."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT,
                      "protobuf",
                      "Reads encoded ModelInferRequests.",
                      -1,
                      methods,
                      nullptr,
                      nullptr,
                      nullptr,
                      nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_protobuf() {
  PyObject* made = PyModule_Create(&module);
  if (made == nullptr) return nullptr;
  too_large = PyErr_NewException("opgate.service.native.protobuf.TooLarge", PyExc_ValueError, nullptr);
  broken = PyErr_NewException("opgate.service.native.protobuf.Broken", PyExc_ValueError, nullptr);
  if (too_large == nullptr || broken == nullptr || PyModule_AddObjectRef(made, "TooLarge", too_large) != 0 ||
      PyModule_AddObjectRef(made, "Broken", broken) != 0) {
    Py_DECREF(made);
    return nullptr;
  }
  return made;
}
