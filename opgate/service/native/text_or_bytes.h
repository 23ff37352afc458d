// An element of a BYTES tensor as an object of Python: a str if it is UTF-8, otherwise bytes.
//
// Trying to decode bytes that are no text costs Python an exception each. A client may send a hundred thousand of them.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

// Says whether bytes are UTF-8 as Unicode defines it: no surrogates, no longer forms, nothing above U+10FFFF.
inline bool is_utf8(std::string_view bytes) {
  const auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto* const end = at + bytes.size();
  while (at != end) {
    if (uint64_t word; end - at >= static_cast<std::ptrdiff_t>(sizeof word)) {
      std::memcpy(&word, at, sizeof word);
      if ((word & 0x8080808080808080) == 0) {
        at += sizeof word;
        continue;
      }
    }
    const unsigned char first = *at++;
    if (first < 0x80) continue;
    // The bounds of the second byte exclude longer forms, surrogates and what is above U+10FFFF.
    unsigned char low = 0x80, high = 0xbf;
    std::ptrdiff_t rest = 0;
    if (first >= 0xc2 && first <= 0xdf) {
      rest = 1;
    } else if (first >= 0xe0 && first <= 0xef) {
      rest = 2;
      if (first == 0xe0) low = 0xa0;
      if (first == 0xed) high = 0x9f;
    } else if (first >= 0xf0 && first <= 0xf4) {
      rest = 3;
      if (first == 0xf0) low = 0x90;
      if (first == 0xf4) high = 0x8f;
    } else {
      return false;
    }
    if (end - at < rest) return false;
    for (; rest != 0; --rest, ++at) {
      if (*at < low || *at > high) return false;
      low = 0x80;
      high = 0xbf;
    }
  }
  return true;
}

// Says whether bytes are ASCII.
inline bool is_ascii(std::string_view bytes) {
  const char* at = bytes.data();
  const char* const end = at + bytes.size();
  uint64_t seen = 0, word;
  for (; end - at >= static_cast<std::ptrdiff_t>(sizeof word); at += sizeof word) {
    std::memcpy(&word, at, sizeof word);
    seen |= word;
  }
  for (; at != end; ++at) seen |= static_cast<unsigned char>(*at);
  return (seen & 0x8080808080808080) == 0;
}

// Returns a new reference, or null with an exception.
inline PyObject* text_or_bytes(std::string_view bytes) {
  const auto size = static_cast<Py_ssize_t>(bytes.size());
  // ASCII is Latin-1 too, which Python copies without decoding.
  if (is_ascii(bytes)) return PyUnicode_DecodeLatin1(bytes.data(), size, nullptr);
  return is_utf8(bytes) ? PyUnicode_DecodeUTF8(bytes.data(), size, "strict")
                        : PyBytes_FromStringAndSize(bytes.data(), size);
}

// The elements of a NumPy array of objects.
class Objects {
 public:
  Objects() = default;
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;
  ~Objects() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }

  // `flags` may be PyBUF_WRITABLE. Returns false with an exception.
  bool open(PyObject* array, int flags = 0) {
    if (PyObject_GetBuffer(array, &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | flags) != 0) return false;
    if (view_.format != nullptr && std::strcmp(view_.format, "O") == 0) return true;
    PyErr_SetString(PyExc_TypeError, "expected an array of objects");
    return false;
  }

  size_t size() const { return static_cast<size_t>(view_.len) / sizeof(PyObject*); }
  PyObject* operator[](size_t i) const { return static_cast<PyObject* const*>(view_.buf)[i]; }

  // Takes a reference. Returns false if it is null.
  bool set(size_t i, PyObject* item) {
    if (item == nullptr) return false;
    Py_XDECREF(std::exchange(static_cast<PyObject**>(view_.buf)[i], item));
    return true;
  }

 private:
  Py_buffer view_{};
};

// The UTF-8 of a str, or the bytes of a bytes object, for as long as the object lives and doesn't change.
class Bytes {
 public:
  // `errors` says what becomes of halves of surrogate pairs, as in Python.
  Bytes(PyObject* object, const char* errors) {
    if (object == nullptr) object = Py_None;  // in an array
    // What a subclass of str runs may take the object out of its array.
    Py_INCREF(held_ = object);
    // Most are no subclasses, for which the limited API of Python has to call a function.
    if (Py_IS_TYPE(object, &PyUnicode_Type) || (!is_bytes(object) && PyUnicode_Check(object))) {
      // A str keeps the UTF-8 that it gives out, unless it is ASCII. A long one must not take twice the memory.
      constexpr Py_ssize_t kKept = 256;
      Py_ssize_t size = 0;
      if (PyUnicode_GetLength(object) <= kKept || is_ascii(object)) {
        if (const char* const kept = PyUnicode_AsUTF8AndSize(object, &size); kept != nullptr) {
          view_ = {kept, static_cast<size_t>(size)};
          return;
        }
        PyErr_Clear();
      }
      object = encoded_ = PyUnicode_AsEncodedString(object, "utf-8", errors);
      if (encoded_ == nullptr) return;
    } else if (!is_bytes(object)) {
      PyErr_Format(PyExc_TypeError, "expected str and bytes, got %R", reinterpret_cast<PyObject*>(Py_TYPE(object)));
      return;
    }
    view_ = {PyBytes_AsString(object), static_cast<size_t>(PyBytes_Size(object))};
  }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;
  ~Bytes() {
    Py_XDECREF(encoded_);
    Py_DECREF(held_);
  }

  // False with an exception.
  explicit operator bool() const { return view_.data() != nullptr; }
  std::string_view view() const { return view_; }

  static bool is_bytes(PyObject* object) { return Py_IS_TYPE(object, &PyBytes_Type) || PyBytes_Check(object); }

 private:
  static bool is_ascii(PyObject* text) {
    PyObject* const answer = PyObject_CallMethod(text, "isascii", nullptr);
    if (answer == nullptr) PyErr_Clear();
    Py_XDECREF(answer);
    return answer == Py_True;
  }

  PyObject* held_ = nullptr;
  PyObject* encoded_ = nullptr;
  std::string_view view_;
};
