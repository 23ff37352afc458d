// The Python module service.rpc.connection, see connection.pyi.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <new>
#include <string>

#include "connection.h"

namespace {

using opgate::rpc::Connection;
using opgate::rpc::Event;
using opgate::rpc::Limits;
using opgate::rpc::Memory;
using opgate::rpc::Metadata;
using opgate::rpc::Owner;

PyObject* protocol_error = nullptr;

// ---- Budget: the bytes of messages that are being read, over all connections ----

struct Budget {
  PyObject_HEAD size_t limit;
  size_t used;
};

int budget_init(PyObject* self, PyObject* args, PyObject*) {
  Py_ssize_t limit = 0;
  if (!PyArg_ParseTuple(args, "n:Budget", &limit)) return -1;
  reinterpret_cast<Budget*>(self)->limit = static_cast<size_t>(limit);
  return 0;
}

PyObject* budget_used(PyObject* self, void*) { return PyLong_FromSize_t(reinterpret_cast<Budget*>(self)->used); }

PyGetSetDef budget_members[] = {{"used", budget_used, nullptr, "Bytes that are held.", nullptr},
                                {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot budget_slots[] = {{Py_tp_init, reinterpret_cast<void*>(budget_init)},
                              {Py_tp_getset, budget_members},
                              {Py_tp_doc, const_cast<char*>("The bytes that messages may take while they are read.")},
                              {0, nullptr}};

PyType_Spec budget_spec = {"service.rpc.connection.Budget", sizeof(Budget), 0, Py_TPFLAGS_DEFAULT, budget_slots};

PyTypeObject* budget_type = nullptr;

// ---- Connection ----

class Messages final : public Owner {
 public:
  Messages(PyObject* methods, Budget* budget) : methods_(Py_NewRef(methods)), budget_(budget) { Py_INCREF(budget); }
  ~Messages() override {
    Py_DECREF(methods_);
    Py_DECREF(reinterpret_cast<PyObject*>(budget_));
  }
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  Memory allocate(size_t size) override {
    if (budget_->used != 0 && budget_->used + size > budget_->limit) return {};
    PyObject* bytes = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size));
    if (bytes == nullptr) {
      PyErr_Clear();
      return {};
    }
    budget_->used += size;
    return {bytes, PyBytes_AS_STRING(bytes), size};
  }

  void release(const Memory& memory) override {
    budget_->used -= memory.reserved;
    Py_DECREF(static_cast<PyObject*>(memory.handle));
  }

  int find(std::string_view path, bool& client_streams) override {
    PyObject* key = PyUnicode_DecodeLatin1(path.data(), static_cast<Py_ssize_t>(path.size()), nullptr);
    PyObject* found = key == nullptr ? nullptr : PyDict_GetItemWithError(methods_, key);
    Py_XDECREF(key);
    const long number = found == nullptr ? -1 : PyLong_AsLong(found);
    PyErr_Clear();
    client_streams = number >= 0 && (number & 1) != 0;
    return number < 0 ? -1 : static_cast<int>(number >> 1);
  }

  // Gives a message that was read to Python.
  PyObject* give(const Memory& message) {
    budget_->used -= message.reserved;
    return static_cast<PyObject*>(message.handle);
  }

 private:
  PyObject* methods_;
  Budget* budget_;
};

struct Object {
  PyObject_HEAD Messages* messages;
  Connection* connection;
};

Connection& connection_of(PyObject* self) { return *reinterpret_cast<Object*>(self)->connection; }

PyObject* connection_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  static const char* const kNames[] = {"methods",          "budget",      "max_message_bytes",
                                       "max_header_bytes", "max_streams", nullptr};
  PyObject *methods = nullptr, *budget = nullptr;
  Limits limits;
  Py_ssize_t message_bytes = 0, header_bytes = 0;
  unsigned int streams = 0;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O!nnI:Connection", const_cast<char**>(kNames), &PyDict_Type,
                                   &methods, budget_type, &budget, &message_bytes, &header_bytes, &streams)) {
    return nullptr;
  }
  limits.message_bytes = static_cast<size_t>(message_bytes);
  limits.header_bytes = static_cast<size_t>(header_bytes);
  limits.streams = streams;
  auto* self = reinterpret_cast<Object*>(type->tp_alloc(type, 0));
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
  type->tp_free(self);
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
    PyList_SET_ITEM(list, i++, pair);
  }
  return list;
}

PyObject* tuple_of(Messages& messages, Event& event) {
  const int kind = event.kind;
  const int stream = event.stream;
  PyObject* message = nullptr;
  if (event.message.handle != nullptr) {
    message = messages.give(event.message);
    event.message = {};
  }
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
    case Event::kGone: break;
  }
  return Py_BuildValue("(ii)", kind, stream);
}

PyObject* connection_receive(PyObject* self, PyObject* data) {
  Py_buffer buffer;
  if (PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE) != 0) return nullptr;
  std::string error;
  const bool read =
      connection_of(self).receive(static_cast<const uint8_t*>(buffer.buf), static_cast<size_t>(buffer.len), error);
  PyBuffer_Release(&buffer);
  if (!read) {
    PyErr_SetString(protocol_error, error.c_str());
    return nullptr;
  }
  Messages& messages = *reinterpret_cast<Object*>(self)->messages;
  std::vector<Event> events = connection_of(self).events();
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(events.size()));
  Py_ssize_t i = 0;
  for (Event& event : events) {
    PyObject* tuple = list == nullptr ? nullptr : tuple_of(messages, event);
    if (tuple == nullptr) {
      Py_CLEAR(list);
      if (event.message.handle != nullptr) messages.release(event.message);
      continue;
    }
    PyList_SET_ITEM(list, i++, tuple);
  }
  return list;
}

// Takes None or a sequence of pairs of str. Returns false with an exception set.
bool metadata_of(PyObject* pairs, Metadata& metadata) {
  if (pairs == Py_None) return true;
  PyObject* sequence = PySequence_Fast(pairs, "metadata: expected pairs of str");
  if (sequence == nullptr) return false;
  bool valid = true;
  for (Py_ssize_t i = 0; valid && i < PySequence_Fast_GET_SIZE(sequence); ++i) {
    PyObject* pair = PySequence_Fast_GET_ITEM(sequence, i);
    const char *name = nullptr, *value = nullptr;
    Py_ssize_t name_size = 0, value_size = 0;
    valid = PyTuple_Check(pair) && PyArg_ParseTuple(pair, "s#s#", &name, &name_size, &value, &value_size);
    if (valid)
      metadata.emplace_back(std::string(name, static_cast<size_t>(name_size)),
                            std::string(value, static_cast<size_t>(value_size)));
  }
  Py_DECREF(sequence);
  if (!valid && !PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "metadata: expected pairs of str");
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
  PyObject* bytes = nullptr;
  if (!PyArg_ParseTuple(args, "iSp:send", &stream, &bytes, &compressed)) return nullptr;
  connection_of(self).send(stream, {Py_NewRef(bytes), PyBytes_AS_STRING(bytes), 0},
                           static_cast<size_t>(PyBytes_GET_SIZE(bytes)), compressed != 0);
  Py_RETURN_NONE;
}

PyObject* connection_end(PyObject* self, PyObject* args) {
  int stream = 0, status = 0;
  const char* text = nullptr;
  Py_ssize_t size = 0;
  PyObject* pairs = nullptr;
  Metadata metadata;
  if (!PyArg_ParseTuple(args, "iis#O:end", &stream, &status, &text, &size, &pairs) || !metadata_of(pairs, metadata)) {
    return nullptr;
  }
  connection_of(self).end(stream, status, {text, static_cast<size_t>(size)}, metadata);
  Py_RETURN_NONE;
}

// The whole answer of a unary call.
PyObject* connection_answer(PyObject* self, PyObject* args) {
  int stream = 0, compressed = 0;
  PyObject *bytes = nullptr, *pairs = nullptr;
  const char* encoding = nullptr;
  Metadata metadata;
  if (!PyArg_ParseTuple(args, "iSOps:answer", &stream, &bytes, &pairs, &compressed, &encoding) ||
      !metadata_of(pairs, metadata)) {
    return nullptr;
  }
  Connection& connection = connection_of(self);
  connection.begin(stream, {}, encoding);
  connection.send(stream, {Py_NewRef(bytes), PyBytes_AS_STRING(bytes), 0}, static_cast<size_t>(PyBytes_GET_SIZE(bytes)),
                  compressed != 0);
  connection.end(stream, opgate::rpc::kOk, {}, metadata);
  Py_RETURN_NONE;
}

PyObject* connection_consume(PyObject* self, PyObject* args) {
  int stream = 0;
  Py_ssize_t size = 0;
  if (!PyArg_ParseTuple(args, "in:consume", &stream, &size)) return nullptr;
  connection_of(self).consume(stream, static_cast<size_t>(size));
  Py_RETURN_NONE;
}

PyObject* connection_go_away(PyObject* self, PyObject* last) {
  const int truth = PyObject_IsTrue(last);
  if (truth < 0) return nullptr;
  connection_of(self).go_away(truth != 0);
  Py_RETURN_NONE;
}

PyObject* connection_output(PyObject* self, PyObject* most) {
  const Py_ssize_t size = PyLong_AsSsize_t(most);
  if (size < 0) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "output: expected a number of bytes that is not negative");
    return nullptr;
  }
  std::string out;
  if (!connection_of(self).output(out, static_cast<size_t>(size))) {
    PyErr_SetString(protocol_error, "the connection can't go on");
    return nullptr;
  }
  return PyBytes_FromStringAndSize(out.data(), static_cast<Py_ssize_t>(out.size()));
}

PyObject* connection_waiting(PyObject* self, PyObject* stream) {
  const long id = PyLong_AsLong(stream);
  if (id == -1 && PyErr_Occurred()) return nullptr;
  return PyLong_FromSize_t(connection_of(self).waiting(static_cast<int32_t>(id)));
}

PyObject* connection_calls(PyObject* self, void*) { return PyLong_FromSize_t(connection_of(self).calls()); }
PyObject* connection_unsent(PyObject* self, void*) { return PyLong_FromSize_t(connection_of(self).unsent()); }
PyObject* connection_done(PyObject* self, void*) { return PyBool_FromLong(connection_of(self).is_done()); }

PyMethodDef connection_methods[] = {
    {"receive", connection_receive, METH_O, "Reads bytes of the client. Returns the events that follow from them."},
    {"begin", connection_begin, METH_VARARGS, "Starts the answer of a call."},
    {"send", connection_send, METH_VARARGS, "Sends a message."},
    {"end", connection_end, METH_VARARGS, "Ends a call with a status."},
    {"answer", connection_answer, METH_VARARGS, "Sends the only message of a call and ends it."},
    {"consume", connection_consume, METH_VARARGS, "Says that a message of a stream was taken."},
    {"go_away", connection_go_away, METH_O, "Tells the client to make no new calls."},
    {"output", connection_output, METH_O, "Returns bytes for the client."},
    {"waiting", connection_waiting, METH_O, "Returns the bytes of a call's messages that were not sent."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef connection_members[] = {
    {"calls", connection_calls, nullptr, "The number of calls that have not ended.", nullptr},
    {"unsent", connection_unsent, nullptr, "The bytes of messages that were not sent.", nullptr},
    {"done", connection_done, nullptr, "Whether the connection has nothing more to read or to send.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot connection_slots[] = {{Py_tp_new, reinterpret_cast<void*>(connection_new)},
                                  {Py_tp_dealloc, reinterpret_cast<void*>(connection_dealloc)},
                                  {Py_tp_methods, connection_methods},
                                  {Py_tp_getset, connection_members},
                                  {Py_tp_doc, const_cast<char*>("A gRPC connection of a server, without its socket.")},
                                  {0, nullptr}};

PyType_Spec connection_spec = {"service.rpc.connection.Connection", sizeof(Object), 0, Py_TPFLAGS_DEFAULT,
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
  protocol_error = PyErr_NewExceptionWithDoc("service.rpc.connection.ProtocolError",
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
