#include "engine.h"

namespace opgate {
namespace {

Status no_device_sizes() {
  return Status::internal("this engine can't carry sizes that only the kernel knows, on a device");
}

}  // namespace

Status Engine::allocate_sizes(std::size_t, std::int64_t**) { return no_device_sizes(); }
Status Engine::allocate_bounded(std::size_t, DType, std::span<const std::int64_t>, void**) { return no_device_sizes(); }
Status Engine::read_sizes(std::span<std::int64_t>) { return no_device_sizes(); }
Status Engine::trim(std::size_t, DType, std::span<const std::int64_t>) { return no_device_sizes(); }

}  // namespace opgate
