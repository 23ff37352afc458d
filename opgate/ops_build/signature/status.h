// The result of an operation that can fail: ok, or a code and a message.
#pragma once

#include <string>
#include <utility>

namespace opgate {

enum class StatusCode { ok, invalid_argument, internal };

class [[nodiscard]] Status {
 public:
  Status() = default;

  /// The client's mistake: the op can't work with this input.
  static Status invalid(std::string message) { return Status(StatusCode::invalid_argument, std::move(message)); }

  /// A failure of the op or of the engine on good input.
  static Status internal(std::string message) { return Status(StatusCode::internal, std::move(message)); }

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  Status with_prefix(const std::string& prefix) && {
    message_.insert(0, prefix);
    return std::move(*this);
  }

 private:
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

}  // namespace opgate

#define OPGATE_RETURN_IF_ERROR(expression)                                                           \
  do {                                                                                               \
    if (::opgate::Status opgate_status_ = (expression); !opgate_status_.ok()) return opgate_status_; \
  } while (false)
