#include "passes/pipelines.h"

#include "passes/pass/pass_manager.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/ScopedPrinter.h"

#include <algorithm>

namespace plimsoll {

const llvm::StringLiteral clean_pipeline =
    "fold-constants, simplify, cse, dce, recover-activations, recover-norms, recover-losses, "
    "dce, recover-linear, dce, recover-rotary, recover-attention, dce";
const llvm::StringLiteral fixpoint_pipeline = "move-transposes, simplify, dce";
const llvm::StringLiteral finish_pipeline =
    "recover-linear, recover-dora, recover-attention, recover-losses, simplify, recover-split, pack-attention, cse, "
    "dce";

const llvm::StringLiteral inference_pipeline = "inference-mode, drop-detaches, dce";

const llvm::StringLiteral layout_pipeline =
    "channels-last, dce, move-transposes, fold-constants, simplify, dce, pack-attention, cse, dce";

std::string adapter_pipeline(const AdapterRequest& adapters) {
  const auto number = [](double value) { return option_text(llvm::to_string(llvm::format("%.17g", value))); };
  const std::string targets = adapters.targets.empty() ? "all-linear" : llvm::join(adapters.targets, " ");
  return "insert-adapters{rank=" + std::to_string(adapters.rank) + " alpha=" + number(adapters.alpha_or_rank()) +
         " rslora=" + (adapters.rslora ? "1" : "0") + " dora=" + (adapters.dora ? "1" : "0") +
         " dropout=" + number(adapters.dropout) + " targets=" + option_text(targets) +
         " root=" + option_text(adapters.root.value_or("")) + "}";
}

std::string quantize_pipeline(const TrainingRequest& request) {
  const QuantizeRequest& quantize = request.quantize;
  if (quantize.format == WeightFormat::AsTrained) return "";
  const bool has_one_scale = quantize.format == WeightFormat::FP8 && request.precision == "fp8";
  return "quantize-weights{format=" + option_text(format_name(quantize.format)) +
         (has_one_scale ? " one-scale=1" : "") + " skip=" + option_text(llvm::join(quantize.skip, " ")) + "}";
}

std::string forward_pipeline(const TrainingRequest& request, const KernelPreferences& preferences, Narrowed narrowed) {
  std::string text = "absorb-transposes, dce, ", mark;
  // Ranks that divide tensors pad their parts, once they have these; of a vocabulary they have aligned parts.
  const bool pads = preferences.product_multiple > 1 && request.mesh[MeshAxis::Tensor] == 1;
  const bool has_16_bits = request.precision == "bf16" || request.precision == "fp16" || request.precision == "fp8";
  if (pads)
    text += "pad-vocabulary{multiple=" + std::to_string(preferences.product_multiple) +
            (has_16_bits ? " element-bytes=2" : "") + "}, dce, ";
  if (const std::string quantize = quantize_pipeline(request); !quantize.empty()) text += quantize + ", ";
  if (request.precision != "exported" && request.precision != "fp32") {
    std::string rules = request.precision_rules;
    std::replace(rules.begin(), rules.end(), '\n', ';');  // a run: line of a reproducer is one line
    const std::string to = request.precision == "fp8" ? "bf16" : request.precision;
    text += "insert-casts{to=" + to + " rules=" + option_text(rules) + "}, ";
    if (request.precision == "fp8") mark = "mark-f8{rules=" + option_text(rules) + "}, ";
  }
  if (preferences.channels_last) text += "repeat-channels, slice-pixels, cse, dce, ";
  text += narrowed == Narrowed::Trained ? "narrow-frozen{trained=1}, " : "narrow-frozen, ";
  // 8-bit products read weights as they are stored, and ranks that divide tensors know parts of whole weights.
  if (mark.empty() && request.mesh[MeshAxis::Tensor] == 1) {
    text += "split-products, ";
    if (pads) text += "join-projections, dce, ";
  }
  text += mark + "join-narrow, dce, ";
  if (pads) {
    const int64_t left_size = preferences.left_product_size;
    if (left_size > 0) text += "multiply-from-left{size=" + std::to_string(left_size) + "}, dce, ";
    text += "pad-products" + (left_size > 0 ? "{left-size=" + std::to_string(left_size) + "}" : "") +
            ", join-pixels, pad-channels, fold-strides, dce, ";
  }
  return text + "fuse-batch-norms";
}

std::string partition_pipeline(const TrainingRequest& request, const KernelPreferences& preferences) {
  const auto among = [&](MeshAxis axis) { return "{ranks=" + std::to_string(request.mesh[axis]); };
  const bool local = request.batch_norm == Statistics::OfOwnRows;
  std::string text;
  if (request.mesh[MeshAxis::Data] > 1)
    text += "divide-batch" + among(MeshAxis::Data) + (local ? " batch-norm=local" : "") + "}, simplify, cse, dce, ";
  if (has_stages_with_parts(request)) return llvm::StringRef(text).rtrim(", ").str();
  if (request.mesh[MeshAxis::Tensor] > 1)
    text += "divide-tensors" + among(MeshAxis::Tensor) + "}, simplify, cse, dce, " +
            (preferences.product_multiple > 1 ? "pad-products, " : "");
  if (request.mesh[MeshAxis::Data] > 1 && request.zero_as_done(request.zero, request.mesh) == 3)
    text +=
        "divide-parameters" + among(MeshAxis::Data) + (request.sum_dtype == DType::BF16 ? " sums=bf16" : "") + "}, ";
  return llvm::StringRef(text).rtrim(", ").str();
}

Status check_devices(const TrainingRequest& request, const StageDevices& devices) {
  for (int64_t stage = 0; stage < request.mesh[MeshAxis::Stage] && request.precision == "fp8"; ++stage) {
    const DeviceDescription& device = devices.device(static_cast<size_t>(stage));
    std::string types;
    bool has_f8 = device.backend != "cuda";
    for (const auto& [dtype, rate] : device.matmul_tflops) {
      has_f8 |= dtype == DType::F8E4M3;
      types += (types.empty() ? "" : ", ") + dtype_name(dtype).str();
    }
    if (!has_f8)
      return usage_error("precision fp8: matrix units of " + device.name + " take no f8e4m3 but " + types +
                         "; --precision bf16 works there");
  }
  return Status::success();
}

bool has_stages_with_parts(const TrainingRequest& request) {
  return request.mesh[MeshAxis::Stage] > 1 && request.mesh[MeshAxis::Tensor] > 1;
}

// Micro-batches stay apart, so that their gradients are added in the precision of the parameter: no cse.
const llvm::StringLiteral parts_of_stages_pipeline = "simplify, dce";

const llvm::StringLiteral whole_batch_pipeline = "simplify, join-steps, dce";

ImageMoments preferred_moments(const KernelCatalog& catalog) {
  const OpDef& op = get_op("conv_moments");
  const Attrs attrs{{"channels_last", int64_t{1}}};
  const Type x(DType::BF16, {64, 56, 56, 64}), w(DType::BF16, {256, 1, 1, 64});
  const Type* types[] = {&x, &w};
  const OpCall call(op, attrs, types);
  const std::vector<KernelCandidate> kernels = catalog.candidates(op, call, llvm::cantFail(infer(call)));
  // The last one that is predicted is a convolution with a pass behind.
  double longest_us = 0;
  for (const KernelCandidate& kernel : kernels) longest_us = std::max(longest_us, kernel.predicted_us);
  const double first_us = kernels.front().predicted_us;
  return first_us > 0 && first_us < longest_us ? ImageMoments::BesideProducts : ImageMoments::InPasses;
}

std::string step_pipeline(const TrainingRequest& request, const KernelPreferences& preferences, ImageMoments moments,
                          bool joins_dropouts) {
  std::string text =
      "drop-detaches, simplify, exchange-lookups, fold-casts-into-reductions, dce, compose-moves, narrow-lookups, "
      "simplify, cse, dce, "
      "expand-f8";
  if (request.quantize.turned_bytes > 0) text += "{turned-bytes=" + std::to_string(request.quantize.turned_bytes) + "}";
  text += ", dce, fuse-batch-norms, save-pool-indices, join-cross-entropy, fuse-addends, dce, order-sums, dce";
  std::string epilogues = preferences.exact_gelu_epilogues ? "exact=1" : "";
  if (moments == ImageMoments::BesideProducts) epilogues += epilogues.empty() ? "moments=1" : " moments=1";
  if (preferences.left_product_size > 0) epilogues += epilogues.empty() ? "left=1" : " left=1";
  if (preferences.product_epilogues)
    text += ", fuse-epilogues" + (epilogues.empty() ? "" : "{" + epilogues + "}") + ", dce";
  if (preferences.apart_biases) text += ", defer-biases";
  if (joins_dropouts) text += ", join-dropouts";
  if (preferences.norms_in_bodies) text += ", expand-norms";
  return text + ", dce";
}

const llvm::StringLiteral fuse_pipeline = "fuse-elementwise, dce";

const llvm::StringLiteral schedule_pipeline = "schedule, overlap-transfers, overlap-collectives";
const llvm::StringLiteral place_pipeline = "assign-buffers, place";

}  // namespace plimsoll
