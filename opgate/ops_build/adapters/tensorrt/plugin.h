// The plugin. One class serves all ops.
#pragma once

#include <NvInferRuntime.h>

#include "fields.h"
#include "layout.h"
#include "op_call/kernel_cache.h"

namespace opgate::tensorrt {

class Plugin final : public nvinfer1::IPluginV3,
                     public nvinfer1::IPluginV3OneCore,
                     public nvinfer1::IPluginV3OneBuild,
                     public nvinfer1::IPluginV3OneRuntime {
 public:
  Plugin(const Op& op, const Attributes& attributes, const PresentInputs& present);

  // IPluginV3

  nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept override;
  Plugin* clone() noexcept override;

  // IPluginV3OneCore

  const char* getPluginName() const noexcept override { return op_.signature.name.c_str(); }
  const char* getPluginVersion() const noexcept override { return "1"; }
  const char* getPluginNamespace() const noexcept override { return ""; }

  // IPluginV3OneBuild

  int getNbOutputs() const noexcept override { return static_cast<int>(op_.signature.outputs.size() + kernel_sizes_); }
  int getOutputDataTypes(nvinfer1::DataType* outputs, int count, const nvinfer1::DataType* inputs,
                         int input_count) const noexcept override;
  int getOutputShapes(const nvinfer1::DimsExprs* inputs, int input_count, const nvinfer1::DimsExprs* scalars,
                      int scalar_count, nvinfer1::DimsExprs* outputs, int output_count,
                      nvinfer1::IExprBuilder& builder) noexcept override;
  bool supportsFormatCombination(int index, const nvinfer1::DynamicPluginTensorDesc* tensors, int input_count,
                                 int output_count) noexcept override;
  int configurePlugin(const nvinfer1::DynamicPluginTensorDesc*, int, const nvinfer1::DynamicPluginTensorDesc*,
                      int) noexcept override {
    return 0;
  }
  std::size_t getWorkspaceSize(const nvinfer1::DynamicPluginTensorDesc* inputs, int input_count,
                               const nvinfer1::DynamicPluginTensorDesc* outputs,
                               int output_count) const noexcept override;
  const char* getTimingCacheID() noexcept override { return metadata_.c_str(); }
  const char* getMetadataString() noexcept override { return metadata_.c_str(); }

  // IPluginV3OneRuntime

  int onShapeChange(const nvinfer1::PluginTensorDesc* inputs, int input_count,
                    const nvinfer1::PluginTensorDesc* outputs, int output_count) noexcept override;
  int enqueue(const nvinfer1::PluginTensorDesc* inputs, const nvinfer1::PluginTensorDesc* outputs,
              const void* const* input_data, void* const* output_data, void* workspace,
              cudaStream_t stream) noexcept override;
  nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override;
  const nvinfer1::PluginFieldCollection* getFieldsToSerialize() noexcept override { return fields_.collection(); }

 private:
  bool supports(int index, const nvinfer1::DynamicPluginTensorDesc* tensors, const std::vector<int>& inputs) const;

  const Op& op_;
  Attributes attributes_;
  PresentInputs present_;
  InputLayout layout_;
  Fields fields_;
  std::string metadata_;
  std::size_t kernel_sizes_ = 0;  ///< the number of sizes that only the kernel knows; each has a size tensor

  // What attachToContext() sets.
  nvinfer1::IGpuAllocator* allocator_ = nullptr;
  // What onShapeChange() sets.
  KernelCache kernels_{1};
  std::size_t input_count_ = 0;
};

}  // namespace opgate::tensorrt
