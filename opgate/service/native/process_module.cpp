// The Python module opgate.service.native.process: signals that end the process, and its last words when it crashes.
//
// The handlers of this file do only what a signal handler may: they read memory that stays, and call write, sigaction
// and raise. What another thread runs may be changing while they read it.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

std::atomic<int> stop_file{-1};

void on_stop(int number) {
  const int saved = errno;
  const char byte = static_cast<char>(number);
  if (write(stop_file.load(), &byte, 1) < 0) {  // the pipe is full of signals, one more says nothing new
  }
  errno = saved;
}

PyObject* forward_signals(PyObject*, PyObject* arguments) {
  int file;
  if (!PyArg_ParseTuple(arguments, "i:forward_signals", &file)) return nullptr;
  stop_file = file;
  struct sigaction action{};
  action.sa_handler = on_stop;
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGTERM, SIGINT}) {
    if (sigaction(number, &action, nullptr) != 0) return PyErr_SetFromErrno(PyExc_OSError);
  }
  Py_RETURN_NONE;
}

// What a thread runs.
struct Slot {
  std::array<char, 256> text;
  std::atomic<uint32_t> size{0};
  std::atomic<bool> taken{false};
};
constexpr size_t kSlots = 1024;
std::array<Slot, kSlots> slots;
std::atomic<size_t> used_slots{0};  // the slots before this one may be taken
thread_local Slot* own_slot __attribute__((tls_model("initial-exec"))) = nullptr;

// Returns a slot that no thread has, or null.
Slot* free_slot() {
  for (size_t i = 0; i < kSlots; ++i) {
    if (slots[i].taken.load(std::memory_order_relaxed) || slots[i].taken.exchange(true)) continue;
    for (size_t used = used_slots; used <= i && !used_slots.compare_exchange_weak(used, i + 1);) {
    }
    return &slots[i];
  }
  return nullptr;
}

// What a thread holds until it ends: its slot, and the stack on which a handler runs. Models come and go with their
// threads.
class Held {
 public:
  Held() = default;
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  ~Held() {
    if (own_slot != nullptr) {
      own_slot->size = 0;
      own_slot->taken = false;
      own_slot = nullptr;
    }
    stack_t stack{};
    if (stack_ == nullptr || sigaltstack(nullptr, &stack) != 0) return;
    if (stack.ss_sp == stack_) {  // nobody has given the thread another one
      stack.ss_flags = SS_DISABLE;
      if (sigaltstack(&stack, nullptr) != 0) return;
    }
    std::free(stack_);
  }

  // Gives the thread a stack for handlers, if it has none. Otherwise none could run when the thread's own stack is
  // full.
  void use_signal_stack() {
    constexpr size_t kBytes = 65536;
    stack_t stack{};
    if (stack_ != nullptr || sigaltstack(nullptr, &stack) != 0 || (stack.ss_flags & SS_DISABLE) == 0) return;
    stack_ = std::malloc(kBytes);
    stack.ss_sp = stack_;
    stack.ss_size = kBytes;
    stack.ss_flags = 0;
    if (stack_ != nullptr) sigaltstack(&stack, nullptr);
  }

 private:
  void* stack_ = nullptr;
};
thread_local Held held;

// Functions of op libraries that return the op that the calling thread runs, or null.
using RunningOp = const char* (*)();
std::array<std::atomic<RunningOp>, 64> op_sources;
std::atomic<size_t> used_sources{0};

// Where a crash writes the op that the thread ran, for a process that reads this memory too.
std::atomic<char*> note{nullptr};
std::atomic<size_t> note_size{0};

void write_note(const char* op) {
  char* const target = note.load();
  const size_t room = note_size.load();
  if (target == nullptr || room == 0) return;
  size_t size = 0;
  while (size + 1 < room && op[size] != 0) {
    target[size] = op[size];
    ++size;
  }
  target[size] = 0;
}

bool as_json = true;

// Collects a line and writes it at once.
class Line {
 public:
  void add(std::string_view text) {
    for (const char c : text) {
      if (used_ < buffer_.size()) buffer_[used_++] = c;
    }
  }

  // Adds text to a string of JSON.
  void add_escaped(std::string_view text) {
    for (const char c : text) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) continue;
      if (as_json && (c == '"' || c == '\\')) add("\\");
      add({&c, 1});
    }
  }

  void add_number(int64_t value, int digits) {
    std::array<char, 20> text;
    for (int i = digits - 1; i >= 0; --i, value /= 10)
      text[static_cast<size_t>(i)] = static_cast<char>('0' + value % 10);
    add({text.data(), static_cast<size_t>(digits)});
  }

  void send() const {
    if (write(STDERR_FILENO, buffer_.data(), used_) < 0) {  // there is nobody left to tell
    }
  }

 private:
  std::array<char, 2048> buffer_{};
  size_t used_ = 0;
};

// Adds the time of day in UTC. The days are turned into a date as in
// https://howardhinnant.github.io/date_algorithms.html
void add_time(Line& line) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const int64_t days = now.tv_sec / 86400 + 719468;
  const int64_t era = days / 146097;
  const int64_t day_of_era = days - era * 146097;
  const int64_t year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  const int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const int64_t shifted = (5 * day_of_year + 2) / 153;
  const int64_t month = shifted < 10 ? shifted + 3 : shifted - 9;
  line.add_number(year_of_era + era * 400 + (month <= 2 ? 1 : 0), 4);
  line.add("-");
  line.add_number(month, 2);
  line.add("-");
  line.add_number(day_of_year - (153 * shifted + 2) / 5 + 1, 2);
  line.add("T");
  line.add_number(now.tv_sec / 3600 % 24, 2);
  line.add(":");
  line.add_number(now.tv_sec / 60 % 60, 2);
  line.add(":");
  line.add_number(now.tv_sec % 60, 2);
  line.add(".");
  line.add_number(now.tv_nsec / 1000000, 3);
  line.add("+00:00");
}

std::string_view name_of(int number) {
  switch (number) {
    case SIGSEGV: return "SIGSEGV (a bad memory access)";
    case SIGBUS: return "SIGBUS (a bad memory access)";
    case SIGFPE: return "SIGFPE (a bad calculation)";
    case SIGILL: return "SIGILL (an illegal instruction)";
    case SIGABRT: return "SIGABRT (it gave up)";
    default: return "a signal";
  }
}

// Says what this thread runs. A thread of the engine runs a part of what another thread runs, so then all are named.
void add_running(Line& line) {
  if (own_slot != nullptr && own_slot->size.load() != 0) {
    line.add(" in a run of ");
    line.add_escaped({own_slot->text.data(), own_slot->size.load()});
  } else {
    std::string_view before = ". Under way: ";
    for (size_t i = 0; i < used_slots.load(); ++i) {
      const uint32_t size = slots[i].size.load();
      if (size == 0) continue;
      line.add(before);
      line.add_escaped({slots[i].text.data(), size});
      before = ", ";
    }
  }
  // A library may allocate to answer, which hangs if the memory's own lists are what broke. Then the process must still
  // end.
  alarm(5);
  for (size_t i = 0; own_slot != nullptr && i < used_sources.load(); ++i) {
    const RunningOp source = op_sources[i].load();
    const char* const op = source == nullptr ? nullptr : source();
    if (op == nullptr) continue;
    line.add(", op ");
    line.add_escaped(op);
    write_note(op);
    return;
  }
}

void on_crash(int number) {
  Line line;
  if (as_json) {
    line.add(R"({"time":")");
    add_time(line);
    line.add(R"(","level":"critical","logger":"opgate","message":")");
  } else {
    add_time(line);
    line.add(" CRITICAL opgate: ");
  }
  line.add("the process dies of ");
  line.add(name_of(number));
  add_running(line);
  line.add(as_json ? "\"}\n" : "\n");
  line.send();
  // The handler has been reset to the system's own, which ends the process and leaves a core where that is wanted.
  raise(number);
}

PyObject* watch_crashes(PyObject*, PyObject* arguments) {
  int json;
  if (!PyArg_ParseTuple(arguments, "p:watch_crashes", &json)) return nullptr;
  as_json = json != 0;
  held.use_signal_stack();
  struct sigaction action{};
  action.sa_handler = on_crash;
  action.sa_flags = static_cast<int>(SA_ONSTACK | SA_NODEFER | SA_RESETHAND);
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    if (sigaction(number, &action, nullptr) != 0) return PyErr_SetFromErrno(PyExc_OSError);
  }
  Py_RETURN_NONE;
}

PyObject* note_crashes(PyObject*, PyObject* arguments) {
  unsigned long long address, size;
  if (!PyArg_ParseTuple(arguments, "KK:note_crashes", &address, &size)) return nullptr;
  note_size = 0;
  note = reinterpret_cast<char*>(address);
  note_size = size;
  Py_RETURN_NONE;
}

PyObject* set_running(PyObject*, PyObject* what) {
  Py_ssize_t size = 0;
  const char* text = nullptr;
  if (what != Py_None && (text = PyUnicode_AsUTF8AndSize(what, &size)) == nullptr) return nullptr;
  if (own_slot == nullptr) {
    if (text == nullptr) Py_RETURN_NONE;
    held.use_signal_stack();
    own_slot = free_slot();
    if (own_slot == nullptr) Py_RETURN_NONE;
  }
  const auto kept = static_cast<uint32_t>(std::min<size_t>(static_cast<size_t>(size), own_slot->text.size()));
  if (kept != 0) std::memcpy(own_slot->text.data(), text, kept);
  own_slot->size = kept;
  Py_RETURN_NONE;
}

PyObject* ask_for_op(PyObject*, PyObject* arguments) {
  unsigned long long address;
  if (!PyArg_ParseTuple(arguments, "K:ask_for_op", &address)) return nullptr;
  const auto source = reinterpret_cast<RunningOp>(address);
  for (size_t i = 0; i < used_sources; ++i) {
    if (op_sources[i] == source) Py_RETURN_NONE;
  }
  if (used_sources < op_sources.size()) {
    op_sources[used_sources] = source;
    ++used_sources;
  }
  Py_RETURN_NONE;
}

std::array<PyMethodDef, 6> methods = {{
    {"forward_signals", forward_signals, METH_VARARGS,
     "forward_signals(file)\n\nWrites the number of each SIGTERM and SIGINT as a byte to a file descriptor."},
    {"watch_crashes", watch_crashes, METH_VARARGS,
     "watch_crashes(json)\n\nMakes the process say on stderr what it ran when it crashes, as a line of JSON or text."},
    {"note_crashes", note_crashes, METH_VARARGS,
     "note_crashes(address, size)\n\nMakes a crash write the op that the thread ran to this memory, as a C string."},
    {"set_running", set_running, METH_O,
     "set_running(text or None)\n\nSays what this thread runs. A crash tells it, at most 256 bytes of it."},
    {"ask_for_op", ask_for_op, METH_VARARGS,
     "ask_for_op(address)\n\nGives the address of a C function without arguments that returns the name of the op that\n"
     "the thread runs, or null. Its library must stay loaded."},
    {nullptr, nullptr, 0, nullptr},
}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "opgate.service.native.process",
                          "Signals that end the process, and its last words.",
                          -1,
                          methods.data(),
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

}  // namespace

extern "C" PyMODINIT_FUNC PyInit_process() { return PyModule_Create(&definition); }
