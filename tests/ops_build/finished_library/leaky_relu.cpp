// A finished op library as somebody without opgate writes it, for ONNX Runtime's C API: ai.graphcore::LeakyRelu of f32.
// It has no shape function.

#include <onnxruntime_c_api.h>

#include <cstdint>

namespace {

const OrtApi* api = nullptr;

struct Kernel {
  float alpha = 0.01F;
};

void* create(const OrtCustomOp*, const OrtApi*, const OrtKernelInfo* info) {
  auto* kernel = new Kernel;
  if (OrtStatus* absent = api->KernelInfoGetAttribute_float(info, "alpha", &kernel->alpha)) api->ReleaseStatus(absent);
  return kernel;
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

void compute(void* kernel, OrtKernelContext* context) {
  const OrtValue* input = nullptr;
  OrtTensorTypeAndShapeInfo* info = nullptr;
  OrtValue* output = nullptr;
  void *x = nullptr, *y = nullptr;
  std::int64_t dims[8];
  std::size_t rank = 0, size = 0;
  (void)api->KernelContext_GetInput(context, 0, &input);
  (void)api->GetTensorTypeAndShape(input, &info);
  (void)api->GetDimensionsCount(info, &rank);
  (void)api->GetDimensions(info, dims, rank);
  (void)api->GetTensorShapeElementCount(info, &size);
  api->ReleaseTensorTypeAndShapeInfo(info);
  (void)api->KernelContext_GetOutput(context, 0, dims, rank, &output);
  (void)api->GetTensorMutableData(const_cast<OrtValue*>(input), &x);
  (void)api->GetTensorMutableData(output, &y);
  const float alpha = static_cast<Kernel*>(kernel)->alpha;
  for (std::size_t i = 0; i < size; ++i) {
    const float value = static_cast<float*>(x)[i];
    static_cast<float*>(y)[i] = value >= 0 ? value : alpha * value;
  }
}

OrtCustomOp leaky_relu() {
  OrtCustomOp op{};
  op.version = 10;
  op.CreateKernel = create;
  op.GetName = [](const OrtCustomOp*) { return "LeakyRelu"; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op.GetInputType = [](const OrtCustomOp*, std::size_t) { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; };
  op.GetInputTypeCount = [](const OrtCustomOp*) -> std::size_t { return 1; };
  op.GetOutputType = [](const OrtCustomOp*, std::size_t) { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; };
  op.GetOutputTypeCount = [](const OrtCustomOp*) -> std::size_t { return 1; };
  op.KernelCompute = compute;
  op.KernelDestroy = destroy;
  op.GetInputCharacteristic = [](const OrtCustomOp*, std::size_t) { return INPUT_OUTPUT_REQUIRED; };
  op.GetOutputCharacteristic = [](const OrtCustomOp*, std::size_t) { return INPUT_OUTPUT_REQUIRED; };
  return op;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  static const OrtCustomOp op = leaky_relu();
  api = base->GetApi(12);
  OrtCustomOpDomain* domain = nullptr;
  if (OrtStatus* status = api->CreateCustomOpDomain("ai.graphcore", &domain)) return status;
  if (OrtStatus* status = api->CustomOpDomain_Add(domain, &op)) return status;
  return api->AddCustomOpDomain(options, domain);
}
