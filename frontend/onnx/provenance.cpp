#include "frontend/onnx/provenance.h"

#include "ir/support/strings.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/Path.h"

namespace plimsoll {
namespace {

llvm::StringRef metadata(const google::protobuf::RepeatedPtrField<onnx::StringStringEntryProto>& entries,
                         llvm::StringRef key) {
  for (const auto& entry : entries)
    if (entry.key() == key) return entry.value();
  return "";
}

// "['', 'm', 'm.transformer', 'slice_3']": the last entry is the operation, the one before it the module.
std::string module_of(llvm::StringRef scopes) {
  llvm::SmallVector<llvm::StringRef, 8> parts;
  scopes.trim("[] \n").split(parts, ',');
  if (parts.size() < 2) return "";
  return parts[parts.size() - 2].trim(" '\"").str();
}

bool is_library_file(llvm::StringRef path) {
  return path.contains("/site-packages/torch/") || path.contains("/dist-packages/torch/") ||
         path.contains("\\site-packages\\torch\\");
}

// Parses a Python stack, outermost call first. A frame is a line `File "path", line 12, in f` and a line of code. The
// innermost frame outside PyTorch is the user's code.
std::string source_of(llvm::StringRef stack) {
  llvm::SmallVector<llvm::StringRef, 32> lines;
  stack.split(lines, '\n');
  for (size_t i = lines.size(); i-- > 0;) {
    llvm::StringRef line = lines[i].trim();
    if (!line.consume_front("File \"")) continue;
    auto [path, rest] = line.split('"');
    if (is_library_file(path) || !rest.consume_front(", line ")) continue;
    llvm::StringRef number = rest.take_while(llvm::isDigit);
    llvm::StringRef file = path.substr(path.find_last_of("/\\") + 1);
    llvm::StringRef code = i + 1 < lines.size() ? lines[i + 1].trim() : "";
    return (file + ":" + number + (code.empty() ? "" : ": ") + code).str();
  }
  return "";
}

// A TorchScript node is named after its module: "/m/encoder/layer.0/attn/MatMul".
std::string module_of_name(llvm::StringRef name) {
  if (!name.consume_front("/")) return "";
  std::string module = name.rsplit('/').first.str();
  if (module == name) return "";
  std::replace(module.begin(), module.end(), '/', '.');
  return module;
}

}  // namespace

Origin origin_of(const onnx::NodeProto& node) {
  Origin origin;
  origin.node = !node.name().empty() || node.output_size() == 0 ? node.name() : node.output(0);
  origin.op = node.op_type();
  origin.module = module_of(metadata(node.metadata_props(), "pkg.torch.onnx.name_scopes"));
  if (origin.module.empty()) origin.module = module_of_name(node.name());
  origin.source = source_of(metadata(node.metadata_props(), "pkg.torch.onnx.stack_trace"));
  return origin;
}

// The scopes of a node and the classes of their modules are two lists of one length: ['', 'm', 'm.encoder', ...] beside
// ['__main__.Wrapper', 'transformers.models...', ...]. A wrapper's class is of no library.
std::string wrapper_prefix(const onnx::GraphProto& graph) {
  constexpr llvm::StringLiteral libraries[] = {"transformers.", "diffusers.", "timm.", "torchvision.", "peft."};
  for (const onnx::NodeProto& node : graph.node()) {
    llvm::SmallVector<llvm::StringRef, 8> scopes, classes;
    metadata(node.metadata_props(), "pkg.torch.onnx.name_scopes").trim("[] \n").split(scopes, ',');
    metadata(node.metadata_props(), "pkg.torch.onnx.class_hierarchy").trim("[] \n").split(classes, ',');
    if (scopes.size() != classes.size()) continue;
    for (size_t i = 0; i < scopes.size(); ++i) {
      const llvm::StringRef scope = scopes[i].trim(" '\""), of = classes[i].trim(" '\"");
      if (llvm::none_of(libraries, [&](llvm::StringRef library) { return starts_with(of, library); })) continue;
      return scope.empty() ? "" : (scope + ".").str();
    }
  }
  return "";
}

// Parses `... call_function[target=torch.ops.aten.cross_entropy_loss.default](args = (%x, %labels, None, 1, -100, 0.1),
// kwargs = {})`: logits, labels, weights, reduction, ignored label and smoothing, each of which may be named instead.
double recorded_label_smoothing(const onnx::NodeProto& node) {
  const llvm::StringRef call = metadata(node.metadata_props(), "pkg.torch.onnx.fx_node");
  const llvm::StringRef given = call.split("aten.cross_entropy_loss.default](args = (").second;
  const auto [by_place, by_name] = given.split("), kwargs = {");
  llvm::SmallVector<llvm::StringRef, 6> arguments;
  by_place.split(arguments, ',');
  constexpr size_t place = 5;
  const llvm::StringRef named = by_name.split("label_smoothing: ").second;
  const llvm::StringRef text =
      arguments.size() > place ? arguments[place] : named.take_until([](char c) { return c == ',' || c == '}'; });
  double smoothing = 0;
  return text.trim().getAsDouble(smoothing) ? 0 : smoothing;
}

bool is_recorded_detach(const onnx::NodeProto& node) {
  const llvm::StringRef call = metadata(node.metadata_props(), "pkg.torch.onnx.fx_node");
  return call.contains("[target=torch.ops.aten.detach.default]");
}

// Parses lines such as `p_lm_head_weight: PARAMETER target='lm_head.weight'` and
// `getitem_3: BUFFER_MUTATION target='bn1.running_mean'`.
ExportSignature ExportSignature::read(const onnx::GraphProto& graph) {
  ExportSignature signature;
  llvm::StringSet<> mutated;
  llvm::SmallVector<llvm::StringRef, 64> lines;
  metadata(graph.metadata_props(), "pkg.torch.export.ExportedProgram.graph_signature").split(lines, '\n');
  for (llvm::StringRef line : lines) {
    auto [kind, target] = line.split(": ").second.split(" target='");
    target = target.take_until([](char c) { return c == '\''; });
    bool parameter = kind == "PARAMETER";
    if (!target.empty() && (parameter || starts_with(kind, "BUFFER") || starts_with(kind, "CONSTANT")))
      signature.is_parameter_[target] = parameter;
    if ((kind == "BUFFER" && ends_with(line, "persistent=False")) || kind == "CONSTANT_TENSOR")
      signature.computed_.insert(target);
    if (kind == "BUFFER_MUTATION") mutated.insert(target);
  }
  for (const auto& name : mutated) signature.computed_.erase(name.first());
  return signature;
}

std::optional<bool> ExportSignature::is_parameter(llvm::StringRef initializer) const {
  auto at = is_parameter_.find(initializer);
  if (at == is_parameter_.end()) return std::nullopt;
  return at->second;
}

std::vector<std::string> ExportSignature::parameters() const {
  std::vector<std::string> names;
  for (const auto& entry : is_parameter_)
    if (entry.second) names.push_back(entry.first().str());
  llvm::sort(names);
  return names;
}

std::vector<std::string> ExportSignature::names() const {
  std::vector<std::string> names;
  for (const auto& entry : is_parameter_) names.push_back(entry.first().str());
  llvm::sort(names);
  return names;
}

bool is_buffer_name(llvm::StringRef name, int64_t elements) {
  bool made_up = starts_with(name, "/") || name.contains("onnx::") || name.contains("_output_") ||
                 starts_with(name, "Constant") || starts_with(name, "const_") || starts_with(name, "val_");
  if (made_up && elements <= 1) return true;
  llvm::StringRef last = name.substr(name.rfind('.') + 1);
  return llvm::StringSwitch<bool>(last)
      .Cases("inv_freq", "original_inv_freq", "cos_cached", "sin_cached", "freqs_cis", "position_ids", true)
      .Cases("running_mean", "running_var", "num_batches_tracked", true)
      .Cases("relative_position_index", "attn_mask", "causal_mask", "masked_bias", "final_logits_bias", true)
      .Default(false);
}

}  // namespace plimsoll
