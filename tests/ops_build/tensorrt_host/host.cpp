// Calls the plugin library without TensorRT: creates plugins as for a model, clones and serializes them, and asks for
// their formats, types and shapes. The headers decide which TensorRT it calls like. Reads trials from standard input
// and writes a line of JSON for each. A trial has these lines:
//
//   op NAME
//   int NAME VALUE..., float NAME VALUE... or char NAME TEXT for each attribute
//   in SIZE... for each input: its dims
//   scalar VALUE for each input that is read on the host
//   run
#include <NvInferRuntime.h>
#include <dlfcn.h>

#include <cstring>
#include <deque>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "adapters/tensorrt/constant_shapes.h"

using namespace nvinfer1;

/// What a plugin asks to find out in which TensorRT it is.
extern "C" std::int32_t getInferLibMajorVersion() noexcept { return NV_TENSORRT_MAJOR; }

namespace {

std::vector<std::string> errors;

class Logger final : public ILogger {
 public:
  void log(Severity, const char* message) noexcept override { errors.emplace_back(message); }
} logger;

class Finder final : public ILoggerFinder {
 public:
  ILogger* findLogger() override { return &logger; }
} finder;

struct Trial {
  std::string op;
  std::deque<std::string> bytes;  // the data of the fields
  std::deque<std::string> names;
  std::vector<PluginField> fields;
  std::vector<std::vector<std::int64_t>> inputs;
  std::vector<std::int64_t> scalars;
  bool workspace = false;  ///< whether to ask for the workspace, for f32 inputs
};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) out += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return out + "\"";
}

template <typename Range, typename Write>
std::string list(const Range& range, Write&& write) {
  std::string out = "[";
  for (const auto& element : range) out += (out.size() > 1 ? ", " : "") + write(element);
  return out + "]";
}

/// Returns the serialized fields of a plugin as one text.
std::string serialized(IPluginV3& plugin) {
  auto* runtime = static_cast<IPluginV3OneRuntime*>(plugin.getCapabilityInterface(PluginCapabilityType::kRUNTIME));
  const PluginFieldCollection* fields = runtime->getFieldsToSerialize();
  std::ostringstream out;
  for (int i = 0; i < fields->nbFields; ++i) {
    const PluginField& field = fields->fields[i];
    const std::size_t size = field.type == PluginFieldType::kCHAR ? 1 : field.type == PluginFieldType::kINT64 ? 8 : 4;
    out << field.name << ":" << static_cast<int>(field.type) << ":";
    for (std::size_t b = 0; b < size * field.length; ++b)
      out << static_cast<int>(static_cast<const unsigned char*>(field.data)[b]) << ",";
    out << ";";
  }
  return out.str();
}

IPluginV3OneBuild& building(IPluginV3& plugin) {
  return *static_cast<IPluginV3OneBuild*>(plugin.getCapabilityInterface(PluginCapabilityType::kBUILD));
}

/// Returns, for each type that the first tensor may have, the types that every tensor may have in a linear layout. All
/// tensors before it then have the first type that they may have. `other_formats` counts the accepted layouts that are
/// not linear.
std::string formats(IPluginV3& plugin, int inputs, int& other_formats) {
  constexpr const char* kNames[] = {"FLOAT", "HALF", "INT8", "INT32", "BOOL", "UINT8", "FP8", "BF16", "INT64"};
  IPluginV3OneBuild& build = building(plugin);
  const int outputs = build.getNbOutputs();
  std::string out;
  for (int first = 0; first < 9; ++first) {
    std::vector<DynamicPluginTensorDesc> tensors(static_cast<std::size_t>(inputs + outputs));
    std::string row;
    for (int position = 0; position < inputs + outputs; ++position) {
      int chosen = -1;
      std::string types;
      for (int type = 0; type < 9; ++type) {
        tensors[position].desc.type = static_cast<DataType>(type);
        if (position == 0 && type != first) continue;
        for (int format = 0; format < EnumMax<TensorFormat>(); ++format) {
          tensors[position].desc.format = static_cast<TensorFormat>(format);
          if (!build.supportsFormatCombination(position, tensors.data(), inputs, outputs)) continue;
          if (tensors[position].desc.format != TensorFormat::kLINEAR) {
            ++other_formats;
            continue;
          }
          types += (types.empty() ? "" : ", ") + quoted(kNames[type]);
          if (chosen < 0) chosen = type;
        }
      }
      if (chosen < 0) {
        row.clear();
        break;
      }
      tensors[position].desc.type = static_cast<DataType>(chosen);
      tensors[position].desc.format = TensorFormat::kLINEAR;
      row += (row.empty() ? "[" : ", [") + types + "]";
    }
    if (!row.empty()) out += (out.empty() ? "" : ", ") + quoted(kNames[first]) + ": [" + row + "]";
  }
  return "{" + out + "}";
}

std::string shapes(IPluginV3& plugin, const Trial& trial) {
  opgate::tensorrt::ConstantBuilder builder;
  std::vector<DimsExprs> inputs, scalars, outputs(static_cast<std::size_t>(building(plugin).getNbOutputs()));
  for (const auto& sizes : trial.inputs) inputs.push_back(builder.dims(sizes.data(), sizes.size()));
  for (const std::int64_t value : trial.scalars) scalars.push_back(builder.dims(&value, 1));
  const int failed = building(plugin).getOutputShapes(inputs.data(), static_cast<int>(inputs.size()), scalars.data(),
                                                      static_cast<int>(scalars.size()), outputs.data(),
                                                      static_cast<int>(outputs.size()), builder);
  if (failed) return "null";
  return list(outputs, [](const DimsExprs& dims) {
    return list(std::vector(dims.d, dims.d + dims.nbDims), [](const IDimensionExpr* size) {
      return (size->isSizeTensor() ? "-" : "") + std::to_string(size->getConstantValue());
    });
  });
}

/// Returns the bytes of the workspace for inputs of at most the trial's dims.
std::size_t workspace(IPluginV3& plugin, const Trial& trial) {
  std::vector<DynamicPluginTensorDesc> inputs,
      outputs(static_cast<std::size_t>(building(plugin).getNbOutputs()), DynamicPluginTensorDesc{});
  for (const auto& sizes : trial.inputs) {
    DynamicPluginTensorDesc& input = inputs.emplace_back();
    input.max.nbDims = static_cast<std::int32_t>(sizes.size());
    std::ranges::copy(sizes, input.max.d);
  }
  return building(plugin).getWorkspaceSize(inputs.data(), static_cast<int>(inputs.size()), outputs.data(),
                                           static_cast<int>(outputs.size()));
}

void run(Trial& trial, IPluginCreatorInterface* const* creators, int count) {
  errors.clear();
  IPluginCreatorV3One* creator = nullptr;
  for (int i = 0; i < count; ++i) {
    auto* candidate = static_cast<IPluginCreatorV3One*>(creators[i]);
    if (trial.op == candidate->getPluginName()) creator = candidate;
  }
  const PluginFieldCollection fields{static_cast<int>(trial.fields.size()), trial.fields.data()};
  std::unique_ptr<IPluginV3> plugin(creator ? creator->createPlugin("node", &fields, TensorRTPhase::kBUILD) : nullptr);
  std::cout << "{\"op\": " << quoted(trial.op) << ", \"known\": " << (creator ? "true" : "false");
  if (plugin) {
    std::unique_ptr<IPluginV3> copy(plugin->clone());
    const auto* stored = static_cast<IPluginV3OneRuntime*>(copy->getCapabilityInterface(PluginCapabilityType::kRUNTIME))
                             ->getFieldsToSerialize();
    std::unique_ptr<IPluginV3> revived(creator->createPlugin("node", stored, TensorRTPhase::kRUNTIME));
    const std::string before = serialized(*plugin);
    int other_formats = 0;
    const std::string supported = formats(*revived, static_cast<int>(trial.inputs.size()), other_formats);
    std::cout << ", \"clone\": " << (serialized(*copy) == before ? "true" : "false")
              << ", \"revived\": " << (serialized(*revived) == before ? "true" : "false")
              << ", \"formats\": " << supported << ", \"other_formats\": " << other_formats;
    plugin.reset();  // the clones must not need it
    std::cout << ", \"shapes\": " << shapes(*revived, trial);
    if (trial.workspace) std::cout << ", \"workspace\": " << workspace(*revived, trial);
  }
  std::cout << ", \"errors\": " << list(errors, quoted) << "}\n";
}

}  // namespace

int main(int count, char** arguments) {
  void* library = count == 2 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
  if (!library) {
    std::cerr << (count == 2 ? dlerror() : "usage: host LIBRARY") << "\n";
    return 2;
  }
  reinterpret_cast<void (*)(ILoggerFinder*)>(dlsym(library, "setLoggerFinder"))(&finder);
  std::int32_t creators = 0;
  auto* const* const creator =
      reinterpret_cast<IPluginCreatorInterface* const* (*)(std::int32_t&)>(dlsym(library, "getCreators"))(creators);
  Trial trial;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string kind, name;
    words >> kind;
    if (kind == "run") {
      run(trial, creator, creators);
      trial = Trial();
    } else if (kind == "op") {
      words >> trial.op;
    } else if (kind == "in") {
      trial.inputs.emplace_back();
      for (std::int64_t size = 0; words >> size;) trial.inputs.back().push_back(size);
    } else if (kind == "workspace") {
      trial.workspace = true;
    } else if (kind == "scalar") {
      words >> trial.scalars.emplace_back();
    } else {
      words >> trial.names.emplace_back();
      std::string& bytes = trial.bytes.emplace_back();
      int length = 0;
      const auto append = [&](auto value) {
        bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
        ++length;
      };
      PluginFieldType type = PluginFieldType::kCHAR;
      if (kind == "int") {
        type = PluginFieldType::kINT32;  // as TensorRT's parser passes an ONNX integer
        for (std::int32_t value = 0; words >> value;) append(value);
      } else if (kind == "float") {
        type = PluginFieldType::kFLOAT32;
        for (float value = 0; words >> value;) append(value);
      } else {
        std::getline(words >> std::ws, bytes);
        length = static_cast<int>(bytes.size());
      }
      trial.fields.emplace_back(trial.names.back().c_str(), bytes.data(), type, length);
    }
  }
  std::cout.flush();
  dlclose(library);
  return 0;
}
