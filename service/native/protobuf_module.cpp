// The Python module opgate.service.native.protobuf, see protobuf.pyi. Source of the encoding:
// https://protobuf.dev/programming-guides/encoding/
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// The numbers of the fields that hold the data of tensors, by Triton's grpc_service.proto.
constexpr uint64_t kInputs = 5, kRawInputContents = 7;  // of a ModelInferRequest
constexpr uint64_t kContents = 5;                       // of an InferInputTensor

PyObject* too_large = nullptr;
PyObject* broken = nullptr;

struct Span {
  size_t at, size;
};

// A field of an encoded message: its number and type, where it begins, and where its value lies.
struct Field {
  uint64_t number;
  uint32_t type;
  size_t begin;
  Span value;
  uint64_t varint;
};

// Reads the fields of a message, or of a part of one, in their order.
class Reader {
 public:
  Reader(const uint8_t* data, Span span) : data_(data), at_(span.at), end_(span.at + span.size) {}

  // Returns false at the end, and if the data is broken.
  bool next(Field& field) {
    if (at_ == end_) return false;
    field.begin = at_;
    uint64_t tag = 0, size = 0;
    if (!varint(tag)) return fail();
    field.number = tag >> 3;
    field.type = static_cast<uint32_t>(tag & 7);
    switch (field.type) {
      case kVarint: {
        const size_t at = at_;
        if (!varint(field.varint)) return fail();
        field.value = {at, at_ - at};
        return field.number != 0 || fail();
      }
      case kFixed64: size = 8; break;
      case kFixed32: size = 4; break;
      case kBytes:
        if (!varint(size)) return fail();
        break;
      default: return fail();
    }
    if (field.number == 0 || size > end_ - at_) return fail();
    field.value = {at_, static_cast<size_t>(size)};
    at_ += static_cast<size_t>(size);
    return true;
  }

  // Reads a varint that is no field, of a packed list.
  bool varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && at_ < end_; shift += 7) {
      const uint8_t byte = data_[at_++];
      value |= static_cast<uint64_t>(byte & 127) << shift;
      if (byte < 128) return true;
    }
    return false;
  }

  bool is_broken() const { return broken_; }
  size_t at() const { return at_; }

 private:
  bool fail() {
    broken_ = true;
    return false;
  }

  const uint8_t* data_;
  size_t at_, end_;
  bool broken_ = false;
};

void append_varint(std::string& to, uint64_t value) {
  for (; value > 127; value >>= 7) to += static_cast<char>(value & 127 | 128);
  to += static_cast<char>(value);
}

// What `split` finds.
struct Parts {
  std::string head;
  std::vector<Span> raws;
  std::vector<std::pair<size_t, Span>> contents;  // with the index of the input
};

enum class Outcome { kFine, kBroken, kLarge };

Outcome split_message(const uint8_t* data, size_t size, size_t most_head, size_t most_parts, Parts& parts) {
  Reader reader(data, {0, size});
  const auto* text = reinterpret_cast<const char*>(data);
  size_t inputs = 0;
  Field field;
  while (reader.next(field)) {
    if (field.type == kBytes && field.number == kRawInputContents) {
      parts.raws.push_back(field.value);
    } else if (field.type == kBytes && field.number == kInputs) {
      // The input without its contents.
      std::string rest;
      bool whole = true;
      Reader inner(data, field.value);
      Field part;
      while (inner.next(part)) {
        if (part.type == kBytes && part.number == kContents) {
          parts.contents.emplace_back(inputs, part.value);
          whole = false;
        } else {
          rest.append(text + part.begin, inner.at() - part.begin);
        }
        if (rest.size() > most_head || parts.contents.size() > most_parts) return Outcome::kLarge;
      }
      if (inner.is_broken()) return Outcome::kBroken;
      if (whole) {
        parts.head.append(text + field.begin, reader.at() - field.begin);
      } else {
        append_varint(parts.head, kInputs << 3 | kBytes);
        append_varint(parts.head, rest.size());
        parts.head += rest;
      }
      ++inputs;
    } else {
      if (reader.at() - field.begin > most_head) return Outcome::kLarge;
      parts.head.append(text + field.begin, reader.at() - field.begin);
    }
    if (parts.head.size() > most_head || parts.raws.size() > most_parts) return Outcome::kLarge;
  }
  return reader.is_broken() ? Outcome::kBroken : Outcome::kFine;
}

PyObject* split(PyObject*, PyObject* args) {
  Py_buffer message;
  Py_ssize_t most_head = 0, most_parts = 0;
  if (!PyArg_ParseTuple(args, "y*nn:split", &message, &most_head, &most_parts)) return nullptr;
  Parts parts;
  const Outcome outcome = split_message(static_cast<const uint8_t*>(message.buf), static_cast<size_t>(message.len),
                                        static_cast<size_t>(most_head), static_cast<size_t>(most_parts), parts);
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
  return Py_BuildValue("(y#NN)", parts.head.data(), static_cast<Py_ssize_t>(parts.head.size()), raws, contents);
}

// Puts numbers into memory, and counts those that have no room.
struct Target {
  char* data;
  size_t itemsize, room, count;

  void put(uint64_t bits) {
    if (count < room) {
      if (itemsize == 1) {
        data[count] = bits != 0;  // booleans
      } else {
        std::memcpy(data + count * itemsize, &bits, itemsize);  // the low bytes
      }
    }
    ++count;
  }

  void copy(const uint8_t* from, size_t items) {
    if (count < room) std::memcpy(data + count * itemsize, from, std::min(items, room - count) * itemsize);
    count += items;
  }
};

// Appends the entries of a repeated field of numbers, packed or not. Returns false if the data is broken.
bool read_numbers(const uint8_t* data, Span span, uint64_t number, uint32_t type, Target& target) {
  Reader reader(data, span);
  Field field;
  while (reader.next(field)) {
    if (field.number != number) continue;
    if (field.type == kBytes) {
      if (type == kVarint) {
        Reader list(data, field.value);
        const size_t end = field.value.at + field.value.size;
        uint64_t value = 0;
        while (list.at() < end) {
          if (!list.varint(value)) return false;
          target.put(value);
        }
      } else {
        if (field.value.size % target.itemsize != 0) return false;
        target.copy(data + field.value.at, field.value.size / target.itemsize);
      }
    } else if (field.type == type) {
      if (type == kVarint) {
        target.put(field.varint);
      } else {
        target.copy(data + field.value.at, 1);
      }
    }
  }
  return !reader.is_broken();
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
    {"split", split, METH_VARARGS, "Splits a ModelInferRequest into its head and the data of its tensors."},
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
