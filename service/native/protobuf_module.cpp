// The Python module service.native.protobuf, see protobuf.pyi. The encoding:
// https://protobuf.dev/programming-guides/encoding/
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <vector>

namespace {

// Reads a varint at `at` and moves behind it. Returns false at the end of the data or if it is too long.
bool varint(const uint8_t* data, size_t size, size_t& at, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && at < size; shift += 7) {
    const uint8_t byte = data[at++];
    value |= static_cast<uint64_t>(byte & 127) << shift;
    if (byte < 128) return true;
  }
  return false;
}

enum WireType : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

PyObject* split_tail(PyObject*, PyObject* args) {
  Py_buffer message;
  unsigned int field = 0;
  if (!PyArg_ParseTuple(args, "y*I:split_tail", &message, &field)) return nullptr;
  const auto* data = static_cast<const uint8_t*>(message.buf);
  const auto size = static_cast<size_t>(message.len);
  size_t at = 0, head = size;
  std::vector<size_t> parts;
  bool valid = true;
  while (valid && at < size) {
    const size_t begin = at;
    uint64_t tag = 0, length = 0;
    valid = varint(data, size, at, tag);
    if (!valid) break;
    if (tag == (static_cast<uint64_t>(field) << 3 | kBytes)) {
      valid = varint(data, size, at, length) && length <= size - at;
      if (parts.empty()) head = begin;
      parts.push_back(at);
      parts.push_back(static_cast<size_t>(length));
    } else if (!parts.empty()) {
      valid = false;  // another field follows
    } else {
      switch (tag & 7) {
        case kVarint: valid = varint(data, size, at, length), length = 0; break;
        case kFixed64: length = 8; break;
        case kBytes: valid = varint(data, size, at, length); break;
        case kFixed32: length = 4; break;
        default: valid = false;
      }
      valid = valid && length <= size - at;
    }
    if (valid) at += static_cast<size_t>(length);
  }
  PyBuffer_Release(&message);
  if (!valid) Py_RETURN_NONE;
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(parts.size() / 2));
  for (size_t i = 0; list != nullptr && i < parts.size(); i += 2) {
    PyObject* part = Py_BuildValue("(nn)", static_cast<Py_ssize_t>(parts[i]), static_cast<Py_ssize_t>(parts[i + 1]));
    if (part == nullptr) {
      Py_CLEAR(list);
    } else {
      PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i / 2), part);
    }
  }
  return list == nullptr ? nullptr : Py_BuildValue("(nN)", static_cast<Py_ssize_t>(head), list);
}

PyMethodDef methods[] = {
    {"split_tail", split_tail, METH_VARARGS, "Finds the entries of a field at the end of a message."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module = {PyModuleDef_HEAD_INIT,
                      "protobuf",
                      "Looks into encoded protobuf messages.",
                      -1,
                      methods,
                      nullptr,
                      nullptr,
                      nullptr,
                      nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_protobuf() { return PyModule_Create(&module); }
