// The Python module opgate.service.rpc.connection, see connection.pyi.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "connection.h"

namespace {

using opgate::rpc::Connection;
using opgate::rpc::Event;
using opgate::rpc::Limits;
using opgate::rpc::Memory;
using opgate::rpc::Metadata;
using opgate::rpc::Output;
using opgate::rpc::Owner;

PyObject* protocol_error = nullptr;

// ---- Budget: the bytes of messages that all connections hold ----

// Small requests may have all of it, others leave this part of it to them.
constexpr size_t kPartForSmall = 16;

struct Budget {
  PyObject_HEAD size_t limit;
  size_t used;

  size_t most() const { return limit - limit / kPartForSmall; }

  bool hold(size_t bytes, bool small) {
    used += bytes;
    return used <= (small ? limit : most());
  }
};

int budget_init(PyObject* self, PyObject* args, PyObject*) {
  Py_ssize_t limit = 0;
  if (!PyArg_ParseTuple(args, "n:Budget", &limit)) return -1;
  reinterpret_cast<Budget*>(self)->limit = static_cast<size_t>(limit);
  return 0;
}

PyObject* budget_used(PyObject* self, void*) { return PyLong_FromSize_t(reinterpret_cast<Budget*>(self)->used); }

PyObject* budget_limit(PyObject* self, void*) { return PyLong_FromSize_t(reinterpret_cast<Budget*>(self)->limit); }

PyObject* budget_most(PyObject* self, void*) { return PyLong_FromSize_t(reinterpret_cast<Budget*>(self)->most()); }

PyObject* budget_hold(PyObject* self, PyObject* args) {
  Py_ssize_t bytes = 0;
  int small = 0;
  if (!PyArg_ParseTuple(args, "n|p:hold", &bytes, &small)) return nullptr;
  return PyBool_FromLong(reinterpret_cast<Budget*>(self)->hold(static_cast<size_t>(bytes), small != 0));
}

PyObject* budget_let_go(PyObject* self, PyObject* size) {
  const Py_ssize_t bytes = PyLong_AsSsize_t(size);
  if (bytes == -1 && PyErr_Occurred() != nullptr) return nullptr;
  reinterpret_cast<Budget*>(self)->used -= static_cast<size_t>(bytes);
  Py_RETURN_NONE;
}

PyGetSetDef budget_members[] = {{"used", budget_used, nullptr, "Bytes that are held.", nullptr},
                                {"limit", budget_limit, nullptr, "Bytes that may be held.", nullptr},
                                {"most", budget_most, nullptr, "Bytes that one request may hold.", nullptr},
                                {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef budget_methods[] = {
    {"hold", budget_hold, METH_VARARGS, "Counts bytes. Returns whether there was room for them."},
    {"let_go", budget_let_go, METH_O, "Counts bytes no more."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot budget_slots[] = {{Py_tp_init, reinterpret_cast<void*>(budget_init)},
                              {Py_tp_getset, budget_members},
                              {Py_tp_methods, budget_methods},
                              {Py_tp_doc, const_cast<char*>("The bytes that the messages of all calls may take.")},
                              {0, nullptr}};

PyType_Spec budget_spec = {"opgate.service.rpc.connection.Budget", sizeof(Budget), 0, Py_TPFLAGS_DEFAULT, budget_slots};

PyTypeObject* budget_type = nullptr;

// ---- Connection ----

PyObject* object_of(const Memory& memory) { return static_cast<PyObject*>(memory.handle); }

constexpr size_t kAlignment = 64;  // of a large message's end

// Returns a message as Python gets it, and takes the memory: bytes, or a view of those that `grow_to_message` made.
PyObject* message_of(const Memory& memory) {
  PyObject* const bytes = object_of(memory);
  const Py_ssize_t begin = bytes == nullptr ? 0 : memory.data - PyBytes_AsString(bytes);
  if (begin == 0) return bytes;
  const Py_ssize_t size = PyBytes_Size(bytes) - static_cast<Py_ssize_t>(kAlignment);
  PyObject* const view = PyMemoryView_FromObject(bytes);
  Py_DECREF(bytes);
  PyObject* const part = view == nullptr ? nullptr : PySequence_GetSlice(view, begin, begin + size);
  Py_XDECREF(view);
  return part;
}

// Makes messages bytes objects.
class Messages final : public Owner {
 public:
  Messages(PyObject* methods, Budget* budget) : methods_(Py_NewRef(methods)), budget_(budget) {
    Py_INCREF(reinterpret_cast<PyObject*>(budget));
  }
  ~Messages() override {
    Py_DECREF(methods_);
    Py_DECREF(reinterpret_cast<PyObject*>(budget_));
  }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  Memory allocate(size_t size) override {
    PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
    if (bytes == nullptr) {
      PyErr_Clear();
      return {};
    }
    return {bytes, PyBytes_AsString(bytes)};
  }

  bool grow(Memory& memory, size_t filled, size_t size) override { return move_to(allocate(size), memory, filled); }

  bool grow_to_message(Memory& memory, size_t filled, size_t size) override {
    Memory whole = allocate(size + kAlignment);
    const size_t above = (reinterpret_cast<uintptr_t>(whole.data) + size) % kAlignment;
    if (whole.handle != nullptr) whole.data += kAlignment - above;  // never 0: `message_of` knows it by that
    return move_to(whole, memory, filled);
  }

  void release(const Memory& memory) override { Py_DECREF(object_of(memory)); }

  bool hold(ptrdiff_t bytes, bool small) override { return budget_->hold(static_cast<size_t>(bytes), small); }

  int find(std::string_view path, bool& client_streams) override {
    PyObject* key = PyUnicode_DecodeLatin1(path.data(), static_cast<Py_ssize_t>(path.size()), nullptr);
    PyObject* found = key == nullptr ? nullptr : PyDict_GetItemWithError(methods_, key);
    Py_XDECREF(key);
    const long number = found == nullptr ? -1 : PyLong_AsLong(found);
    PyErr_Clear();
    client_streams = number >= 0 && (number & 1) != 0;
    return number < 0 ? -1 : static_cast<int>(number >> 1);
  }

 private:
  // The limited API of Python has no function that makes bytes larger.
  bool move_to(const Memory& larger, Memory& memory, size_t filled) {
    if (larger.handle != nullptr) std::memcpy(larger.data, memory.data, filled);
    release(std::exchange(memory, larger));
    return larger.handle != nullptr;
  }

  PyObject* methods_;
  Budget* budget_;
};

// A list of bytes, and of views on messages where these are large.
class Buffers final : public Output {
 public:
  Buffers() : list_(PyList_New(0)), failed_(list_ == nullptr) {}
  ~Buffers() override { Py_XDECREF(list_); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  void append(const void* data, size_t size) override { small_.append(static_cast<const char*>(data), size); }

  void refer(const Memory& memory, const char* data, size_t size) override {
    if (size < kView) return append(data, size);
    flush();
    const Py_ssize_t at = data - memory.data;
    PyObject* view = PyMemoryView_FromObject(object_of(memory));
    PyObject* part = view == nullptr ? nullptr : PySequence_GetSlice(view, at, at + static_cast<Py_ssize_t>(size));
    Py_XDECREF(view);
    add(part);
  }

  // Returns a new reference, or null with an exception set.
  PyObject* take() {
    flush();
    return failed_ ? nullptr : std::exchange(list_, nullptr);
  }

 private:
  static constexpr size_t kView = 4096;

  void flush() {
    if (small_.empty()) return;
    add(PyBytes_FromStringAndSize(small_.data(), static_cast<Py_ssize_t>(small_.size())));
    small_.clear();
  }

  void add(PyObject* part) {
    if (part == nullptr || failed_ || PyList_Append(list_, part) != 0) failed_ = true;
    Py_XDECREF(part);
  }

  PyObject* list_;
  bool failed_;
  std::string small_;
};

struct Object {
  PyObject_HEAD Messages* messages;
  Connection* connection;
};

Connection& connection_of(PyObject* self) { return *reinterpret_cast<Object*>(self)->connection; }

PyObject* connection_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* const kNames[] = {
      "methods", "budget", "max_message_bytes", "max_header_bytes", "max_streams", "max_held_bytes", nullptr};
  PyObject *methods = nullptr, *budget = nullptr;
  Limits limits;
  Py_ssize_t message_bytes = 0, header_bytes = 0, held_bytes = 0;
  unsigned int streams = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O!nnIn:Connection", const_cast<char**>(kNames), &PyDict_Type,
                                   &methods, budget_type, &budget, &message_bytes, &header_bytes, &streams,
                                   &held_bytes)) {
    return nullptr;
  }
  limits.message_bytes = static_cast<size_t>(message_bytes);
  limits.header_bytes = static_cast<size_t>(header_bytes);
  limits.streams = streams;
  limits.held_bytes = static_cast<size_t>(held_bytes);
  auto* self = reinterpret_cast<Object*>(PyType_GenericAlloc(type, 0));
  if (self == nullptr) return nullptr;
  try {
    self->messages = new Messages(methods, reinterpret_cast<Budget*>(budget));
    self->connection = new Connection(*self->messages, limits);
  } catch (const std::bad_alloc&) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  return reinterpret_cast<PyObject*>(self);
}

void connection_dealloc(PyObject* self) {
  auto* object = reinterpret_cast<Object*>(self);
  delete object->connection;
  delete object->messages;
  PyTypeObject* type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyObject* text_of(const std::string& text) {
  return PyUnicode_DecodeLatin1(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
}

// Returns a new reference to None or a list of pairs.
PyObject* list_of(const Metadata& metadata) {
  if (metadata.empty()) return Py_NewRef(Py_None);
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(metadata.size()));
  if (list == nullptr) return nullptr;
  Py_ssize_t i = 0;
  for (const auto& [name, value] : metadata) {
    PyObject* pair = Py_BuildValue("(NN)", text_of(name), text_of(value));
    if (pair == nullptr) {
      Py_DECREF(list);
      return nullptr;
    }
    PyList_SetItem(list, i++, pair);
  }
  return list;
}

PyObject* tuple_of(Event& event) {
  const int kind = event.kind;
  const int stream = event.stream;
  PyObject* message = message_of(std::exchange(event.message, {}));
  switch (event.kind) {
    case Event::kCall:
      return Py_BuildValue("(iiiLNONN)", kind, stream, event.method, static_cast<long long>(event.timeout_us), message,
                           event.compressed ? Py_True : Py_False, text_of(event.encoding), list_of(event.metadata));
    case Event::kOpen:
      return Py_BuildValue("(iiiLNN)", kind, stream, event.method, static_cast<long long>(event.timeout_us),
                           text_of(event.encoding), list_of(event.metadata));
    case Event::kMessage: return Py_BuildValue("(iiNO)", kind, stream, message, event.compressed ? Py_True : Py_False);
    case Event::kRefused:
      return Py_BuildValue("(iiiNN)", kind, stream, event.status, text_of(event.text), text_of(event.path));
    case Event::kEnd:
    case Event::kGone:
    case Event::kNothing: break;
  }
  return Py_BuildValue("(ii)", kind, stream);
}

// Returns the events since the last call.
PyObject* events_of(Connection& connection) {
  PyObject* list = PyList_New(0);
  for (Event& event : connection.events()) {
    if (event.kind == Event::kNothing) continue;
    PyObject* tuple = tuple_of(event);
    if (list != nullptr && (tuple == nullptr || PyList_Append(list, tuple) != 0)) Py_CLEAR(list);
    Py_XDECREF(tuple);
  }
  return list;
}

PyObject* connection_receive(PyObject* self, PyObject* data) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE) != 0) return nullptr;
  std::string error;
  const bool read =
      connection_of(self).receive(static_cast<const uint8_t*>(buffer.buf), static_cast<size_t>(buffer.len), error);
  PyBuffer_Release(&buffer);
  if (read) return events_of(connection_of(self));
  PyErr_SetString(protocol_error, error.c_str());
  return nullptr;
}

PyObject* connection_sweep(PyObject* self, PyObject* args) {
  int in = 0, out = 0;
  if (!PyArg_ParseTuple(args, "ii:sweep", &in, &out)) return nullptr;
  connection_of(self).sweep(in, out);
  return events_of(connection_of(self));
}

// Takes None or a sequence of pairs of str. Returns false with an exception set.
bool metadata_of(PyObject* pairs, Metadata& metadata) {
  if (pairs == Py_None) return true;
  PyObject* sequence = PySequence_Tuple(pairs);
  if (sequence == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_TypeError)) PyErr_SetString(PyExc_TypeError, "metadata: expected pairs of str");
    return false;
  }
  for (Py_ssize_t i = 0; i < PyTuple_Size(sequence); ++i) {
    PyObject* pair = PyTuple_GetItem(sequence, i);
    const char *name = nullptr, *value = nullptr;
    Py_ssize_t name_size = 0, value_size = 0;
    if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "s#s#", &name, &name_size, &value, &value_size)) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "metadata: expected pairs of str");
      break;
    }
    const auto* name_bytes = reinterpret_cast<const uint8_t*>(name);
    const auto* value_bytes = reinterpret_cast<const uint8_t*>(value);
    if (name[0] == ':' || nghttp2_check_header_name(name_bytes, static_cast<size_t>(name_size)) == 0 ||
        nghttp2_check_header_value(value_bytes, static_cast<size_t>(value_size)) == 0) {
      PyErr_Format(PyExc_ValueError, "metadata: expected a name of lower-case letters and a printable value, got %R",
                   pair);
      break;
    }
    metadata.emplace_back(std::string(name, static_cast<size_t>(name_size)),
                          std::string(value, static_cast<size_t>(value_size)));
  }
  Py_DECREF(sequence);
  return !PyErr_Occurred();
}

using Pieces = std::vector<std::pair<Memory, size_t>>;

// Reads where the memory of a memoryview lies, which holds it. Returns false, and drops the view, with an exception
// set.
bool read_buffer(PyObject* view, Py_buffer& buffer) {
  bool read = PyObject_GetBuffer(view, &buffer, PyBUF_FULL_RO) == 0;
  if (read) {
    if (PyBuffer_IsContiguous(&buffer, 'C') == 0) {
      PyErr_SetString(PyExc_TypeError, "message: expected memory without gaps");
      read = false;
    }
    PyBuffer_Release(&buffer);
  }
  if (!read) Py_DECREF(view);
  return read;
}

// Appends the memory of bytes, or of another object whose memory is contiguous. Returns false with an exception set.
bool add_piece(PyObject* object, Pieces& pieces) {
  if (PyBytes_Check(object)) {
    pieces.push_back({{Py_NewRef(object), PyBytes_AsString(object)}, static_cast<size_t>(PyBytes_Size(object))});
    return true;
  }
  PyObject* view = PyMemoryView_FromObject(object);
  Py_buffer buffer;
  if (view == nullptr || !read_buffer(view, buffer)) return false;
  if (buffer.ndim != 1 || buffer.itemsize != 1) {  // parts of it are taken by their bytes
    PyObject* bytes = PyObject_CallMethod(view, "cast", "s", "B");
    Py_DECREF(view);
    view = bytes;
    if (view == nullptr || !read_buffer(view, buffer)) return false;
  }
  pieces.push_back({{view, static_cast<char*>(buffer.buf)}, static_cast<size_t>(buffer.len)});
  return true;
}

// Takes bytes or a list of buffers. Returns false with an exception set.
bool pieces_of(PyObject* message, Pieces& pieces) {
  bool valid = true;
  if (PyList_Check(message)) {
    for (Py_ssize_t i = 0; valid && i < PyList_Size(message); ++i) {
      valid = add_piece(PyList_GetItem(message, i), pieces);
    }
  } else {
    valid = add_piece(message, pieces);
  }
  size_t size = 0;
  for (const auto& piece : pieces) size += piece.second;
  if (valid && size > UINT32_MAX) {
    PyErr_SetString(PyExc_ValueError, "a message can't have more than 4 GiB");
    valid = false;
  }
  if (!valid) {
    for (const auto& piece : pieces) Py_DECREF(object_of(piece.first));
  }
  return valid;
}

PyObject* connection_begin(PyObject* self, PyObject* args) {
  int stream = 0;
  PyObject* pairs = nullptr;
  const char* encoding = nullptr;
  Metadata metadata;
  if (!PyArg_ParseTuple(args, "iOs:begin", &stream, &pairs, &encoding) || !metadata_of(pairs, metadata)) return nullptr;
  connection_of(self).begin(stream, metadata, encoding);
  Py_RETURN_NONE;
}

PyObject* connection_send(PyObject* self, PyObject* args) {
  int stream = 0, compressed = 0;
  PyObject* message = nullptr;
  Pieces pieces;
  if (!PyArg_ParseTuple(args, "iOp:send", &stream, &message, &compressed) || !pieces_of(message, pieces)) {
    return nullptr;
  }
  connection_of(self).send(stream, pieces, compressed != 0);
  Py_RETURN_NONE;
}

PyObject* connection_end(PyObject* self, PyObject* args) {
  int stream = 0, status = 0;
  const char* text = nullptr;
  Py_ssize_t size = 0;
  PyObject *trailing = nullptr, *first = nullptr;
  Metadata trailers, initial;
  if (!PyArg_ParseTuple(args, "iis#OO:end", &stream, &status, &text, &size, &trailing, &first) ||
      !metadata_of(trailing, trailers) || !metadata_of(first, initial)) {
    return nullptr;
  }
  connection_of(self).end(stream, status, {text, static_cast<size_t>(size)}, trailers, initial);
  Py_RETURN_NONE;
}

// The whole answer of a unary call.
PyObject* connection_answer(PyObject* self, PyObject* args) {
  int stream = 0, compressed = 0;
  PyObject *message = nullptr, *trailing = nullptr, *first = nullptr;
  const char* encoding = nullptr;
  Metadata trailers, initial;
  Pieces pieces;
  if (!PyArg_ParseTuple(args, "iOOOps:answer", &stream, &message, &trailing, &first, &compressed, &encoding) ||
      !metadata_of(trailing, trailers) || !metadata_of(first, initial) || !pieces_of(message, pieces)) {
    return nullptr;
  }
  Connection& connection = connection_of(self);
  connection.begin(stream, initial, encoding);
  connection.send(stream, pieces, compressed != 0);
  connection.end(stream, opgate::rpc::kOk, {}, trailers, {});
  Py_RETURN_NONE;
}

PyObject* connection_consume(PyObject* self, PyObject* args) {
  int stream = 0;
  Py_ssize_t size = 0;
  if (!PyArg_ParseTuple(args, "in:consume", &stream, &size)) return nullptr;
  connection_of(self).consume(stream, static_cast<size_t>(size));
  Py_RETURN_NONE;
}

PyObject* connection_hold(PyObject* self, PyObject* args) {
  int stream = 0;
  Py_ssize_t size = 0;
  if (!PyArg_ParseTuple(args, "in:hold", &stream, &size)) return nullptr;
  return PyBool_FromLong(connection_of(self).hold(stream, size));
}

PyObject* connection_go_away(PyObject* self, PyObject* last) {
  const int truth = PyObject_IsTrue(last);
  if (truth < 0) return nullptr;
  connection_of(self).go_away(truth != 0);
  Py_RETURN_NONE;
}

PyObject* connection_close(PyObject* self, PyObject*) {
  connection_of(self).close();
  Py_RETURN_NONE;
}

PyObject* connection_ping(PyObject* self, PyObject*) {
  connection_of(self).ping();
  Py_RETURN_NONE;
}

PyObject* connection_output(PyObject* self, PyObject* most) {
  const Py_ssize_t size = PyLong_AsSsize_t(most);
  if (size < 0) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "output: expected a number of bytes that is not negative");
    return nullptr;
  }
  Buffers out;
  if (!connection_of(self).output(out, static_cast<size_t>(size))) {
    PyErr_SetString(protocol_error, "the connection can't go on");
    return nullptr;
  }
  return out.take();
}

PyObject* connection_waiting(PyObject* self, PyObject* stream) {
  const long id = PyLong_AsLong(stream);
  if (id == -1 && PyErr_Occurred()) return nullptr;
  return PyLong_FromSize_t(connection_of(self).waiting(static_cast<int32_t>(id)));
}

PyObject* connection_calls(PyObject* self, void*) { return PyLong_FromSize_t(connection_of(self).calls()); }
PyObject* connection_unsent(PyObject* self, void*) { return PyLong_FromSize_t(connection_of(self).unsent()); }
PyObject* connection_ready(PyObject* self, void*) { return PyBool_FromLong(connection_of(self).is_ready()); }
PyObject* connection_failure(PyObject* self, void*) { return text_of(connection_of(self).failure()); }
PyObject* connection_wants_write(PyObject* self, void*) { return PyBool_FromLong(connection_of(self).wants_write()); }
PyObject* connection_done(PyObject* self, void*) { return PyBool_FromLong(connection_of(self).is_done()); }

PyMethodDef connection_methods[] = {
    {"receive", connection_receive, METH_O, "Reads bytes of the client. Returns the events that follow from them."},
    {"begin", connection_begin, METH_VARARGS, "Starts the answer of a call."},
    {"send", connection_send, METH_VARARGS, "Sends a message."},
    {"end", connection_end, METH_VARARGS, "Ends a call with a status."},
    {"answer", connection_answer, METH_VARARGS, "Sends the only message of a call and ends it."},
    {"sweep", connection_sweep, METH_VARARGS, "Ends the calls that don't go on. Returns the events that follow."},
    {"hold", connection_hold, METH_VARARGS, "Counts bytes that a call takes until it ends."},
    {"close", connection_close, METH_NOARGS, "Gives up all calls."},
    {"ping", connection_ping, METH_NOARGS, "Asks the client for a sign of life."},
    {"consume", connection_consume, METH_VARARGS, "Says that a message of a stream was taken."},
    {"go_away", connection_go_away, METH_O, "Tells the client to make no new calls."},
    {"output", connection_output, METH_O, "Returns bytes for the client."},
    {"waiting", connection_waiting, METH_O, "Returns the bytes of a call's messages that were not sent."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef connection_members[] = {
    {"calls", connection_calls, nullptr, "The number of calls that have not ended.", nullptr},
    {"unsent", connection_unsent, nullptr, "The bytes of messages that were not sent.", nullptr},
    {"ready", connection_ready, nullptr, "Whether the client has shown that it speaks HTTP/2.", nullptr},
    {"failure", connection_failure, nullptr, "Why the connection ended, if the client is to blame.", nullptr},
    {"wants_write", connection_wants_write, nullptr, "Whether there may be bytes for the client.", nullptr},
    {"done", connection_done, nullptr, "Whether the connection has nothing more to read or to send.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot connection_slots[] = {{Py_tp_new, reinterpret_cast<void*>(connection_new)},
                                  {Py_tp_dealloc, reinterpret_cast<void*>(connection_dealloc)},
                                  {Py_tp_methods, connection_methods},
                                  {Py_tp_getset, connection_members},
                                  {Py_tp_doc, const_cast<char*>("A gRPC connection of a server, without its socket.")},
                                  {0, nullptr}};

PyType_Spec connection_spec = {"opgate.service.rpc.connection.Connection", sizeof(Object), 0, Py_TPFLAGS_DEFAULT,
                               connection_slots};

PyModuleDef module = {PyModuleDef_HEAD_INIT,
                      "connection",
                      "gRPC over HTTP/2 without sockets.",
                      -1,
                      nullptr,
                      nullptr,
                      nullptr,
                      nullptr,
                      nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_connection() {
  PyObject* made = PyModule_Create(&module);
  if (made == nullptr) return nullptr;
  budget_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&budget_spec));
  PyObject* connection_type = PyType_FromSpec(&connection_spec);
  protocol_error = PyErr_NewExceptionWithDoc("opgate.service.rpc.connection.ProtocolError",
                                             "The client does not speak gRPC over HTTP/2.", PyExc_ValueError, nullptr);
  if (budget_type == nullptr || connection_type == nullptr || protocol_error == nullptr ||
      PyModule_AddObjectRef(made, "Budget", reinterpret_cast<PyObject*>(budget_type)) != 0 ||
      PyModule_AddObjectRef(made, "Connection", connection_type) != 0 ||
      PyModule_AddObjectRef(made, "ProtocolError", protocol_error) != 0) {
    Py_DECREF(made);
    return nullptr;
  }
  return made;
}
