// The op table as an external delegate of LiteRT. It takes each custom node whose name is in the table, and no other.
#include <cstdlib>
#include <memory>

#include "node.h"

namespace opgate::litert {
namespace {

/// Ops with strings stay out: the C API has no function that writes a tensor of strings.
bool has_strings(const Signature& signature) {
  const auto is_text = [](const auto& tensor) { return tensor.type.variable < 0 && tensor.type.dtype == DType::str; };
  return std::ranges::any_of(signature.inputs, is_text) || std::ranges::any_of(signature.outputs, is_text);
}

struct Delegate : TfLiteDelegate {
  std::unique_ptr<Threads> threads;
};

/// Reports an error to LiteRT, which tells it to Python.
TfLiteStatus reported(TfLiteContext* context, const Status& status) {
  if (status.ok()) return kTfLiteOk;
  context->ReportError(context, "%s", status.message().c_str());
  return kTfLiteError;
}

/// LiteRT calls it for a node that the delegate has taken. `buffer` are TfLiteDelegateParams.
void* make_kernel(TfLiteContext* context, const char* buffer, std::size_t) {
  const auto& parameters = *reinterpret_cast<const TfLiteDelegateParams*>(buffer);
  TfLiteNode* node = nullptr;
  TfLiteRegistration* registration = nullptr;
  const int index = parameters.nodes_to_replace->data[0];
  if (context->GetNodeAndRegistration(context, index, &node, &registration) != kTfLiteOk) return nullptr;
  const Op* op = op_of(registration->custom_name);
  if (!op) return nullptr;
  return new NodeKernel(*op, *node, *parameters.output_tensors, *static_cast<Delegate*>(parameters.delegate)->threads);
}

TfLiteStatus prepare_kernel(TfLiteContext* context, TfLiteNode* node) {
  if (!node->user_data) return reported(context, Status::internal("LiteRT doesn't show a node to the delegate"));
  return reported(context, static_cast<NodeKernel*>(node->user_data)->prepare(*context));
}

TfLiteStatus invoke_kernel(TfLiteContext* context, TfLiteNode* node) {
  return reported(context, static_cast<NodeKernel*>(node->user_data)->invoke(*context));
}

/// The numbers of the nodes that the delegate takes.
TfLiteStatus find_nodes(TfLiteContext* context, std::vector<int>& found) {
  TfLiteIntArray* plan = nullptr;
  if (context->GetExecutionPlan(context, &plan) != kTfLiteOk) return kTfLiteError;
  std::vector<int> nodes;
  for (int i = 0; i < plan->size; ++i)
    nodes.push_back(plan->data[i]);  // -Wfree-nonheap-object warns of a range in GCC 12
  for (const int index : nodes) {
    TfLiteNode* node = nullptr;
    TfLiteRegistration* registration = nullptr;
    if (context->GetNodeAndRegistration(context, index, &node, &registration) != kTfLiteOk) return kTfLiteError;
    const Op* op = op_of(registration->custom_name);
    if (!op) continue;
    if (has_strings(op->signature)) {
      return reported(context, Status::invalid(full_name(*op) + ": LiteRT's delegates can't have tensors of strings"));
    }
    found.push_back(index);
  }
  return kTfLiteOk;
}

/// Fails if the tensors of this LiteRT don't lie as in the headers: a later version may have others, and nothing that a
/// delegate can ask tells its version. Then there are numbers where pointers must be, or a type that is none.
Status check_tensors(const TfLiteContext& context) {
  const auto pointer = [](const void* value) { return !value || reinterpret_cast<std::uintptr_t>(value) >= 4096; };
  const auto small = [](int value) { return value >= 0 && value < 64; };
  for (std::size_t i = 0; i < context.tensors_size; ++i) {
    const TfLiteTensor& tensor = context.tensors[i];
    if (!small(tensor.type) || !small(tensor.allocation_type) || !pointer(tensor.data.raw) || !pointer(tensor.dims) ||
        !pointer(tensor.name) || !pointer(tensor.allocation)) {
      return Status::internal("op library '" + std::string(Table::domain()) +
                              "' fits LiteRT " OPGATE_LITERT_FITS
                              ", and the tensors of this one lie otherwise: build it with the headers of this LiteRT");
    }
  }
  return {};
}

/// Takes the nodes one by one: LiteRT then holds the tensors between two of them.
TfLiteStatus take_nodes(TfLiteContext* context, TfLiteDelegate* delegate) {
  auto& own = *static_cast<Delegate*>(delegate);
  if (const auto& errors = Table::instance().errors(); !errors.empty())
    return reported(context, Status::internal("op library '" + std::string(Table::domain()) + "': " + errors[0]));
  if (const Status fits = check_tensors(*context); !fits.ok()) return reported(context, fits);
  if (!own.threads) {
    const int wanted = context->recommended_num_threads;
    own.threads = std::make_unique<Threads>(wanted > 0 ? static_cast<std::size_t>(wanted)
                                                       : std::max(1u, std::thread::hardware_concurrency()));
  }
  TfLiteRegistration registration{};
  registration.init = make_kernel;
  registration.free = [](TfLiteContext*, void* kernel) { delete static_cast<NodeKernel*>(kernel); };
  registration.prepare = prepare_kernel;
  registration.invoke = invoke_kernel;
  registration.custom_name = Table::domain();
  registration.version = 1;
  std::vector<int> nodes;
  if (find_nodes(context, nodes) != kTfLiteOk) return kTfLiteError;
  for (const int index : nodes) {
    const std::unique_ptr<TfLiteIntArray, void (*)(void*)> one(
        static_cast<TfLiteIntArray*>(std::malloc(sizeof(TfLiteIntArray) + sizeof(int))), std::free);
    if (!one) return kTfLiteError;
    one->size = 1;
    one->data[0] = index;
    if (context->ReplaceNodeSubsetsWithDelegateKernels(context, registration, one.get(), delegate) != kTfLiteOk)
      return kTfLiteError;
  }
  return kTfLiteOk;
}

}  // namespace
}  // namespace opgate::litert

extern "C" __attribute__((visibility("default"))) TfLiteDelegate* tflite_plugin_create_delegate(
    const char* const* keys, const char* const*, std::size_t count, void (*report_error)(const char*)) {
  if (count > 0) {
    if (report_error) report_error(("the delegate takes no options, got '" + std::string(keys[0]) + "'").c_str());
    return nullptr;
  }
  auto* delegate = new opgate::litert::Delegate{};
  delegate->Prepare = opgate::litert::take_nodes;
  delegate->flags = kTfLiteDelegateFlagsAllowDynamicTensors;
  return delegate;
}

extern "C" __attribute__((visibility("default"))) void tflite_plugin_destroy_delegate(TfLiteDelegate* delegate) {
  delete static_cast<opgate::litert::Delegate*>(delegate);
}
