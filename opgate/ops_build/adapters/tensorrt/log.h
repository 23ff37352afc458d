// Errors of plugins, for TensorRT's log.
#pragma once

#include <cstdio>

#include "op_call/invoke.h"
#include "versions.h"

namespace opgate::tensorrt {

/// Finds the log. If it is nullptr, messages go to stderr.
inline nvinfer1::ILoggerFinder* logger_finder = nullptr;

inline void log_error(const std::string& message) {
  const auto slots = slots_of(major_of(logger_finder));
  void* logger = slots ? call_virtual<void*>(logger_finder, slots->find_logger) : nullptr;
  if (logger)
    call_virtual<void>(logger, slots->log, nvinfer1::ILogger::Severity::kERROR, message.c_str());
  else
    std::fprintf(stderr, "%s\n", message.c_str());
}

/// Runs `body` and logs the Status that it returns, or its exception. Returns 0 on success and 1 on failure, as
/// TensorRT's interfaces do.
template <typename Body>
int logged(const Op& op, Body&& body) noexcept {
  const Status status = named(op, body);
  if (!status.ok()) log_error(status.message());
  return status.ok() ? 0 : 1;
}

}  // namespace opgate::tensorrt
