// The part of XLA's foreign function interface that handler.cpp needs, as jaxlib documents it in
// include/xla/ffi/api/c_api.h. XLA adds members at the ends of these structs, and says their sizes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace opgate::xla {

struct Extension {
  std::size_t size;
  int kind;
  Extension* next;
};

/// The kind of the extension with which XLA asks a handler about itself.
inline constexpr int kMetadata = 1;

struct Version {
  std::size_t size;
  Extension* extensions;
  int major;
  int minor;
};

/// The version of the interface that these structs are of.
inline constexpr int kMajor = 0, kMinor = 1;

struct Metadata {
  std::size_t size;
  Version version;
  std::uint32_t traits;
};

struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Error;  // XLA's

enum class ErrorCode : int { invalid_argument = 3, internal = 13 };

struct CreateError {
  std::size_t size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};

struct Api {
  std::size_t size;
  Extension* extensions;
  Version version;
  const void* internal;
  Error* (*create_error)(CreateError*);
};

/// An array. `dtype` is a number of XLA's.
struct Buffer {
  std::size_t size;
  Extension* extensions;
  int dtype;
  void* data;
  std::int64_t rank;
  std::int64_t* dims;
};

/// Arguments or results. All are of kind 1, a Buffer.
struct Buffers {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  int* kinds;
  Buffer** values;
};

struct Name {
  const char* text;
  std::size_t size;
};

/// The kind of an attribute that is an array.
inline constexpr int kArray = 1;

struct Array {
  int dtype;
  std::size_t count;
  void* data;
};

struct Attributes {
  std::size_t size;
  Extension* extensions;
  std::int64_t count;
  int* kinds;
  Name** names;
  void** values;
};

struct CallFrame {
  std::size_t size;
  Extension* extensions;
  const Api* api;
  void* context;
  int stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
};

}  // namespace opgate::xla
