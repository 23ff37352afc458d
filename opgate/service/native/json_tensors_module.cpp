// The Python module opgate.service.native.json_tensors: tensors in JSON, see json_tensors.h. Long work runs without the
// interpreter's lock, and long work that makes objects lends the lock to other threads.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "json_tensors.h"
#include "text_or_bytes.h"

namespace {

using opgate::json::Elements;
using opgate::json::Failure;
using opgate::json::Problem;
using opgate::json::Type;

PyObject* refused_type = nullptr;

// Below this it costs more to give the lock away than the work takes.
constexpr Py_ssize_t kLongBytes = 16384;
// The lock is lent after this many objects.
constexpr int kLongObjects = 4096;

class View {
 public:
  View() = default;
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() {
    if (held_) PyBuffer_Release(&buffer_);
  }

  bool open(PyObject* object, int flags) {
    held_ = PyObject_GetBuffer(object, &buffer_, flags) == 0;
    return held_;
  }

  char* data() const { return static_cast<char*>(buffer_.buf); }
  Py_ssize_t size() const { return buffer_.len; }
  std::string_view text(Py_ssize_t length) const {
    return {data(), static_cast<size_t>(std::clamp<Py_ssize_t>(length, 0, size()))};
  }

 private:
  Py_buffer buffer_{};
  bool held_ = false;
};

// Gives the interpreter's lock away while it exists, if the work is long.
class Unlocked {
 public:
  explicit Unlocked(bool is_long) : state_(is_long ? PyEval_SaveThread() : nullptr) {}
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;
  ~Unlocked() {
    if (state_ != nullptr) PyEval_RestoreThread(state_);
  }

 private:
  PyThreadState* state_;
};

void lend_lock() { PyEval_RestoreThread(PyEval_SaveThread()); }

const char* name(Problem problem) {
  switch (problem) {
    case Problem::kNone: return "none";
    case Problem::kSyntax: return "syntax";
    case Problem::kDepth: return "depth";
    case Problem::kRest: return "rest";
    case Problem::kCount: return "count";
    case Problem::kKind: return "kind";
    case Problem::kFraction: return "fraction";
    case Problem::kRange: return "range";
    case Problem::kLength: return "length";
  }
  return "unknown";
}

PyObject* refuse(const char* problem, Py_ssize_t first, Py_ssize_t second) {
  PyObject* arguments = Py_BuildValue("(snn)", problem, first, second);
  if (arguments != nullptr) {
    PyErr_SetObject(refused_type, arguments);
    Py_DECREF(arguments);
  }
  return nullptr;
}

PyObject* refuse(const Failure& failure) {
  return refuse(name(failure.problem), static_cast<Py_ssize_t>(failure.begin), static_cast<Py_ssize_t>(failure.end));
}

// The bytes of an element, in the order of Type.
constexpr std::array<Py_ssize_t, 13> kSizes = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 2};

bool type_of(const char* datatype, Type& type) {
  constexpr std::array<std::string_view, 13> kNames = {"BOOL",  "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16",
                                                       "INT32", "INT64", "FP16",   "FP32",   "FP64",   "BF16"};
  const auto* const found = std::find(kNames.begin(), kNames.end(), datatype);
  if (found == kNames.end()) {
    PyErr_Format(PyExc_ValueError, "no numbers have the datatype %s", datatype);
    return false;
  }
  type = static_cast<Type>(found - kNames.begin());
  return true;
}

PyObject* shape_of(const opgate::json::Value& value) {
  if (!value.even) Py_RETURN_NONE;
  PyObject* shape = PyTuple_New(static_cast<Py_ssize_t>(value.shape.size()));
  for (size_t i = 0; shape != nullptr && i < value.shape.size(); ++i) {
    PyTuple_SetItem(shape, static_cast<Py_ssize_t>(i), PyLong_FromLongLong(value.shape[i]));
  }
  return shape;
}

PyObject* split(PyObject*, PyObject* arguments) {
  PyObject* body;
  Py_ssize_t length;
  int members;
  Py_ssize_t depth, rest, count;
  if (!PyArg_ParseTuple(arguments, "Onpnnn:split", &body, &length, &members, &depth, &rest, &count)) return nullptr;
  View view;
  if (!view.open(body, PyBUF_SIMPLE)) return nullptr;
  opgate::json::Split result;
  {
    const Unlocked unlocked(length > kLongBytes);
    result = opgate::json::split(view.text(length),
                                 members != 0 ? opgate::json::Place::kMembers : opgate::json::Place::kInputs,
                                 {static_cast<size_t>(depth), static_cast<size_t>(rest), static_cast<size_t>(count)});
  }
  if (result.failure) return refuse(result.failure);
  PyObject* values = PyList_New(0);
  for (const opgate::json::Value& value : result.values) {
    if (values == nullptr) return nullptr;
    PyObject* item = Py_BuildValue("(nnN)", static_cast<Py_ssize_t>(value.begin), static_cast<Py_ssize_t>(value.end),
                                   shape_of(value));
    if (item == nullptr || PyList_Append(values, item) != 0) Py_CLEAR(values);
    Py_XDECREF(item);
  }
  return Py_BuildValue("(y#N)", result.rest.data(), static_cast<Py_ssize_t>(result.rest.size()), values);
}

PyObject* fill(PyObject*, PyObject* arguments) {
  PyObject *body, *array;
  Py_ssize_t begin, end, count;
  const char* datatype;
  int nulls = 0;
  if (!PyArg_ParseTuple(arguments, "OnnsOn|p:fill", &body, &begin, &end, &datatype, &array, &count, &nulls)) {
    return nullptr;
  }
  Type type;
  View view, out;
  if (!type_of(datatype, type) || !view.open(body, PyBUF_SIMPLE) ||
      !out.open(array, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)) {
    return nullptr;
  }
  if (begin < 0 || begin > end || end > view.size() || count < 0 ||
      out.size() / kSizes[static_cast<size_t>(type)] < count) {
    PyErr_SetString(PyExc_ValueError, "the value or the elements lie outside of their buffer");
    return nullptr;
  }
  Failure failure;
  {
    const Unlocked unlocked(end - begin > kLongBytes);
    failure = opgate::json::fill(view.text(end), static_cast<size_t>(begin), static_cast<size_t>(end), type, out.data(),
                                 static_cast<size_t>(count), nulls != 0);
  }
  if (failure) return refuse(failure);
  Py_RETURN_NONE;
}

// Makes the str of a JSON string. Returns null without an exception if it is no string of JSON.
PyObject* text_of(const opgate::json::Text& string, std::string& buffer) {
  std::string_view bytes = string.inside;
  {
    const Unlocked unlocked(bytes.size() > kLongBytes);
    // JSON allows no control characters in a string.
    if (std::any_of(bytes.begin(), bytes.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; })) {
      return nullptr;
    }
    if (string.escapes) {
      if (!opgate::json::unescape(bytes, buffer)) return nullptr;
      bytes = buffer;
    }
  }
  PyObject* made = PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "strict");
  if (made == nullptr && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) PyErr_Clear();
  return made;
}

PyObject* strings(PyObject*, PyObject* arguments) {
  PyObject* body;
  Py_ssize_t begin, end, longest;
  if (!PyArg_ParseTuple(arguments, "Onnn:strings", &body, &begin, &end, &longest)) return nullptr;
  View view;
  if (!view.open(body, PyBUF_SIMPLE)) return nullptr;
  if (begin < 0 || begin > end || end > view.size()) {
    PyErr_SetString(PyExc_ValueError, "the value lies outside of its buffer");
    return nullptr;
  }
  const std::string_view text = view.text(end);
  PyObject* list = PyList_New(0);
  std::string buffer;
  Elements elements(text.substr(static_cast<size_t>(begin)));
  while (list != nullptr) {
    const Elements::Step step = elements.next();
    const auto here = static_cast<size_t>(elements.at() - text.data());
    if (step == Elements::Step::kEnd) return list;
    opgate::json::Text string;
    Problem problem = Problem::kNone;
    if (step == Elements::Step::kSyntax) {
      problem = Problem::kSyntax;
    } else if (!opgate::json::read_string(elements, string)) {
      problem = Problem::kKind;
    } else if (string.inside.size() > static_cast<size_t>(longest)) {
      problem = Problem::kLength;
    }
    const char* const stop =
        problem == Problem::kKind ? opgate::json::end_of_element(elements.at(), elements.end()) : elements.at();
    const auto after = static_cast<size_t>(stop - text.data());
    PyObject* item = problem == Problem::kNone ? text_of(string, buffer) : nullptr;
    if (item == nullptr) {
      Py_DECREF(list);
      if (PyErr_Occurred()) return nullptr;
      return refuse({problem == Problem::kNone ? Problem::kSyntax : problem, here, std::max(after, here + 1)});
    }
    if (PyList_Append(list, item) != 0) Py_CLEAR(list);
    Py_DECREF(item);
    if (list != nullptr && PyList_Size(list) % kLongObjects == 0) lend_lock();
  }
  return nullptr;
}

PyObject* format(PyObject*, PyObject* arguments) {
  PyObject *array, *shape;
  const char* datatype;
  Py_ssize_t begin, count;
  int nulls = 0;
  if (!PyArg_ParseTuple(arguments, "OsnnO!|p:format", &array, &datatype, &begin, &count, &PyTuple_Type, &shape,
                        &nulls)) {
    return nullptr;
  }
  Type type;
  View view;
  if (!type_of(datatype, type) || !view.open(array, PyBUF_C_CONTIGUOUS)) return nullptr;
  const Py_ssize_t all = view.size() / kSizes[static_cast<size_t>(type)];
  std::vector<size_t> rows;
  Py_ssize_t row = all;
  for (Py_ssize_t i = 0; i < PyTuple_Size(shape); ++i) {
    const Py_ssize_t dim = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
    if (dim <= 0 || row % dim != 0) break;
    rows.push_back(static_cast<size_t>(row));
    row /= dim;
  }
  if (PyErr_Occurred()) return nullptr;
  const auto dims = static_cast<size_t>(PyTuple_Size(shape));
  const bool fits = dims == 0 || (row == 1 && rows.size() == dims);
  if (begin < 0 || count < 0 || begin > all || all - begin < count || !fits) {
    PyErr_SetString(PyExc_ValueError, "the elements or the shape don't fit the array");
    return nullptr;
  }
  std::string text;
  {
    const Unlocked unlocked(count > kLongBytes / 16);
    text.resize(static_cast<size_t>(count) * (opgate::json::kMostBytes + 2 * rows.size()));
    const char* const end = opgate::json::format(view.data(), static_cast<size_t>(begin), static_cast<size_t>(count),
                                                 type, rows, text.data(), nulls != 0);
    text.resize(static_cast<size_t>(end - text.data()));
  }
  return PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
}

PyObject* unpack_strings(PyObject*, PyObject* arguments) {
  PyObject *body, *array;
  Py_ssize_t begin, end, longest;
  if (!PyArg_ParseTuple(arguments, "OnnOn:unpack_strings", &body, &begin, &end, &array, &longest)) return nullptr;
  View view;
  Objects elements;
  if (!view.open(body, PyBUF_SIMPLE) || !elements.open(array, PyBUF_WRITABLE)) return nullptr;
  constexpr Py_ssize_t kLength = 4;
  const auto count = static_cast<Py_ssize_t>(elements.size());
  if (begin < 0 || begin > end || end > view.size() || (end - begin) / kLength < count) {
    PyErr_SetString(PyExc_ValueError, "the elements lie outside of their buffer");
    return nullptr;
  }
  const auto* const bytes = reinterpret_cast<const unsigned char*>(view.data());
  Py_ssize_t at = begin;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (end - at < kLength) return refuse("count", i, at);
    const auto* const b = bytes + at;
    const Py_ssize_t length = b[0] | Py_ssize_t{b[1]} << 8 | Py_ssize_t{b[2]} << 16 | Py_ssize_t{b[3]} << 24;
    if (length > end - at - kLength) return refuse("end", i, at);
    if (length > longest) return refuse("length", i, at);
    PyObject* const item = text_or_bytes({view.data() + at + kLength, static_cast<size_t>(length)});
    if (!elements.set(static_cast<size_t>(i), item)) return nullptr;
    at += kLength + length;
    if (i % kLongObjects == kLongObjects - 1) lend_lock();
  }
  if (at != end) return refuse("rest", count, at);
  Py_RETURN_NONE;
}

PyObject* pack_strings(PyObject*, PyObject* array) {
  Objects elements;
  if (!elements.open(array)) return nullptr;
  std::string out;
  for (size_t i = 0; i < elements.size(); ++i) {
    const Bytes bytes(elements[i], "surrogatepass");
    if (!bytes) return nullptr;
    const std::string_view text = bytes.view();
    if (text.size() > UINT32_MAX) {
      PyErr_SetString(PyExc_OverflowError, "a string of 4 GB or more has no length in 4 bytes");
      return nullptr;
    }
    const auto size = static_cast<uint32_t>(text.size());
    const std::array<char, 4> length = {static_cast<char>(size), static_cast<char>(size >> 8),
                                        static_cast<char>(size >> 16), static_cast<char>(size >> 24)};
    out.append(length.data(), length.size()).append(text);
    if (i % kLongObjects == kLongObjects - 1) lend_lock();
  }
  return PyBytes_FromStringAndSize(out.data(), static_cast<Py_ssize_t>(out.size()));
}

// What vectorized code likes its tensors' addresses to be a multiple of.
constexpr uintptr_t kAlignment = 64;

PyObject* misaligned(PyObject*, PyObject* array) {
  View view;
  if (!view.open(array, PyBUF_STRIDED_RO)) return nullptr;
  return PyLong_FromSize_t(reinterpret_cast<uintptr_t>(view.data()) % kAlignment);
}

PyObject* aligned_copy(PyObject*, PyObject* arguments) {
  PyObject* body;
  Py_ssize_t offset, size;
  if (!PyArg_ParseTuple(arguments, "Onn:aligned_copy", &body, &offset, &size)) return nullptr;
  View view;
  if (!view.open(body, PyBUF_SIMPLE)) return nullptr;
  if (offset < 0 || size < 0 || size > view.size() || offset > view.size() - size) {
    PyErr_Format(PyExc_ValueError, "%zd bytes at %zd lie outside of a buffer of %zd", size, offset, view.size());
    return nullptr;
  }
  PyObject* const memory = PyByteArray_FromStringAndSize(nullptr, size + static_cast<Py_ssize_t>(kAlignment));
  if (memory == nullptr) return nullptr;
  char* const raw = PyByteArray_AsString(memory);
  const uintptr_t start = -reinterpret_cast<uintptr_t>(raw) % kAlignment;
  std::memcpy(raw + start, view.data() + offset, static_cast<size_t>(size));
  return Py_BuildValue("(NK)", memory, static_cast<unsigned long long>(start));
}

std::array<PyMethodDef, 9> methods = {{
    {"split", split, METH_VARARGS,
     "split(body, length, members, max_depth, max_rest, max_values) -> (rest, [(begin, end, shape or None), ...])\n\n"
     "Cuts tensors out of the first `length` bytes: the members of the object if `members`, else the member data of\n"
     "each of its inputs. In `rest` the number i stands for value i. The shape is None if lists are nested unevenly."},
    {"fill", fill, METH_VARARGS,
     "fill(body, begin, end, datatype, array, count, nulls=False)\n\n"
     "Reads a value into the first `count` elements of an array. With `nulls` null is NaN."},
    {"strings", strings, METH_VARARGS,
     "strings(body, begin, end, longest) -> list of str\n\nReads a value of strings of at most `longest` bytes."},
    {"unpack_strings", unpack_strings, METH_VARARGS,
     "unpack_strings(body, begin, end, array of objects, longest)\n\n"
     "Reads as many strings as elements, each with its length before it in 4 little-endian bytes. One that is UTF-8\n"
     "becomes a str, another one bytes. Refused's arguments are the problem, the index of the string and its place."},
    {"pack_strings", pack_strings, METH_O,
     "pack_strings(array of str and bytes) -> bytes\n\nReturns the UTF-8 of each str and the bytes of the others, "
     "each\n"
     "with its length before it as `unpack_strings` reads."},
    {"format", format, METH_VARARGS,
     "format(array, datatype, begin, count, shape, nulls=False) -> bytes\n\n"
     "Returns `count` elements from `begin` on, each but element 0 with a comma before it, in lists nested as "
     "`shape`,\n"
     "or without lists if that is ()."},
    {"misaligned", misaligned, METH_O,
     "misaligned(array) -> int\n\nReturns by how many bytes the address is above a multiple of 64."},
    {"aligned_copy", aligned_copy, METH_VARARGS,
     "aligned_copy(body, offset, size) -> (bytearray, start)\n\n"
     "Copies bytes of a buffer to `start` of new memory, where the address is a multiple of 64."},
    {nullptr, nullptr, 0, nullptr},
}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "opgate.service.native.json_tensors",
                          "Reads and writes tensors in JSON. Each function raises Refused.",
                          -1,
                          methods.data(),
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace

extern "C" PyMODINIT_FUNC PyInit_json_tensors() {
  PyObject* module = PyModule_Create(&definition);
  if (module == nullptr) return nullptr;
  refused_type = PyErr_NewExceptionWithDoc("opgate.service.native.json_tensors.Refused",
                                           "A text that can't be read. The arguments are the problem, and the place "
                                           "where the text at fault begins and ends.",
                                           PyExc_ValueError, nullptr);
  if (refused_type == nullptr || PyModule_AddObjectRef(module, "Refused", refused_type) != 0) Py_CLEAR(module);
  return module;
}
