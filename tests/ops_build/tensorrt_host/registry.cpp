// A library with a plugin registry, as libnvinfer has one. registered_names() tells what was registered.
#include <NvInferRuntime.h>

#include <cstdlib>
#include <string>

using namespace nvinfer1;

namespace {

std::string names;

class Registry final : public IPluginRegistry {
 public:
  bool registerCreator(IPluginCreatorInterface& creator, const char* name_space) noexcept override {
    const std::string name = static_cast<IPluginCreatorV3One&>(creator).getPluginName();
    if ((" " + names).find(" " + name + name_space + " ") != std::string::npos) return false;
    names += name + name_space + " ";
    return true;
  }

  void setErrorRecorder(IErrorRecorder*) noexcept override {}
  IErrorRecorder* getErrorRecorder() const noexcept override { return nullptr; }
  bool isParentSearchEnabled() const override { return false; }
  void setParentSearchEnabled(bool) override {}
  PluginLibraryHandle loadLibrary(const char*) noexcept override { return nullptr; }
  void deregisterLibrary(PluginLibraryHandle) noexcept override {}
  IPluginCreatorInterface* const* getAllCreators(std::int32_t*) const noexcept override { return nullptr; }
  IPluginCreatorInterface* getCreator(const char*, const char*, const char*) noexcept override { return nullptr; }
  bool deregisterCreator(const IPluginCreatorInterface&) noexcept override { return false; }
  IPluginResource* acquirePluginResource(const char*, IPluginResource*) noexcept override { return nullptr; }
  std::int32_t releasePluginResource(const char*) noexcept override { return 0; }
  IPluginCreatorInterface* const* getAllCreatorsRecursive(std::int32_t*) noexcept override { return nullptr; }
#if NV_TENSORRT_MAJOR == 10
  bool registerCreator(IPluginCreator&, const char*) noexcept override { return false; }
  IPluginCreator* const* getPluginCreatorList(std::int32_t*) const noexcept override { return nullptr; }
  IPluginCreator* getPluginCreator(const char*, const char*, const char*) noexcept override { return nullptr; }
  bool deregisterCreator(const IPluginCreator&) noexcept override { return false; }
#endif
};

}  // namespace

extern "C" IPluginRegistry* getPluginRegistry() noexcept {
  static Registry registry;
  return &registry;
}

extern "C" std::int32_t getInferLibMajorVersion() noexcept {
  return NV_TENSORRT_MAJOR + (std::getenv("ANOTHER_VERSION") ? 10 : 0);
}

extern "C" const char* registered_names() { return names.c_str(); }
