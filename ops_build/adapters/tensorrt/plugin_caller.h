// Calls plugins as TensorRT does, without TensorRT: for checks on a machine that has a GPU and the headers only.
#pragma once

#include <NvInferRuntime.h>

#include <string>
#include <vector>

#include "core/table.h"

namespace opgate::tensorrt {

/// A plugin library that is open until the process ends.
class Plugins {
 public:
  /// "" is the program itself.
  Status open(const char* library);

  /// What invoke() does, but through the op's plugin: made, attached, asked for its formats and shapes, enqueued.
  /// Memory and the exact dims go through `engine`. An error has the messages that the plugin logged.
  Status call(const Op& op, const InputPointers& inputs, const Attributes& attributes, Engine& engine);

 private:
  class Log final : public nvinfer1::ILogger {
   public:
    void log(Severity, const char* message) noexcept override { messages.emplace_back(message); }
    std::vector<std::string> messages;
  };
  class Finder final : public nvinfer1::ILoggerFinder {
   public:
    explicit Finder(nvinfer1::ILogger& logger) : logger_(logger) {}
    nvinfer1::ILogger* findLogger() override { return &logger_; }

   private:
    nvinfer1::ILogger& logger_;
  };

  Status refused(const std::string& by) const;

  Log log_;
  Finder finder_{log_};
  nvinfer1::IPluginCreatorInterface* const* creators_ = nullptr;
  std::int32_t count_ = 0;
};

}  // namespace opgate::tensorrt
