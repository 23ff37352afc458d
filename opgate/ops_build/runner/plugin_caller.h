// Calls plugins as TensorRT does, for checks on a machine that has a GPU and only the headers of TensorRT.
#pragma once

#include <NvInferRuntime.h>

#include <string>
#include <vector>

#include "adapters/tensorrt/fields.h"
#include "op_call/table.h"

namespace opgate::tensorrt {

/// The plugins of a library. The library stays loaded until the process ends.
class Plugins {
 public:
  /// `library` is a path, or "" for the program itself.
  Status open(const char* library);

  /// Does what invoke() does, but with the plugin of the op: creates it, attaches it, asks it for formats and shapes,
  /// and enqueues it. `engine` gives memory and gets the exact dims. An error has the messages that the plugin logged.
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

  /// The tensors of one call.
  struct Layer;

  /// The error "`by` failed", with what the plugin logged.
  Status refused(const std::string& by) const;

  /// The creator of the op's plugin, or nullptr.
  nvinfer1::IPluginCreatorV3One* find_creator(const std::string& op) const;

  /// Adds one input on the device to the layer.
  static Status describe(const Tensor& tensor, const Input& input, Layer& layer);

  /// Adds all inputs to the layer. An input on the device becomes a tensor, an input on the host a value for the
  /// shapes. `present` gets the index of each in the signature.
  static Status describe_inputs(const Signature& signature, const InputPointers& inputs, Layer& layer,
                                PresentInputs& present);

  /// Asks the plugin for the dtypes and the dims of the outputs.
  Status describe_outputs(nvinfer1::IPluginV3OneBuild& build, Layer& layer) const;

  static Status allocate_outputs(const Signature& signature, Engine& engine, Layer& layer);

  Status enqueue(nvinfer1::IPluginV3& plugin, Engine& engine, const Layer& layer) const;

  /// Reads the sizes that the plugin computed on the device, and tells the engine the exact dims of the outputs.
  static Status trim_outputs(const Op& op, const InputPointers& inputs, const Attributes& attributes,
                             const Layer& layer, Engine& engine);

  Log log_;
  Finder finder_{log_};
  nvinfer1::IPluginCreatorInterface* const* creators_ = nullptr;
  std::int32_t count_ = 0;
};

}  // namespace opgate::tensorrt
