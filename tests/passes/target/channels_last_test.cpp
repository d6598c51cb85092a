#include "ir/builder.h"
#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/cuda/cuda_catalog.h"

#include <doctest/doctest.h>

// What the layout of images costs in the training step of a whole model: ResNet-50 (He et al. 2015), built here.

namespace plimsoll {
namespace {

class ResNet50 {
 public:
  static Graph forward(int64_t batch) {
    ResNet50 model;
    model.build(batch);
    return std::move(model.graph_);
  }

 private:
  ValueId parameter(llvm::ArrayRef<int64_t> shape) {
    return graph_.add_state("w" + std::to_string(graph_.states.size()), Type(DType::F32, shape), StateRole::Parameter,
                            {}, true);
  }

  ValueId conv_norm(ValueId x, int64_t channels, int64_t kernel, int64_t stride) {
    const int64_t pad = kernel / 2;
    ValueId w = parameter({channels, b_.type(x).shape[1], kernel, kernel});
    ValueId y = b_.emit("conv", {x, w}, {{"strides", Ints{stride, stride}}, {"pads", Ints{pad, pad, pad, pad}}});
    return b_.emit("batch_norm", {y, parameter({channels}), parameter({channels})}, {{"eps", 1e-5}});
  }

  ValueId bottleneck(ValueId x, int64_t width, int64_t stride) {
    ValueId y = b_.emit("relu", {conv_norm(x, width, 1, 1)});
    y = b_.emit("relu", {conv_norm(y, width, 3, stride)});
    y = conv_norm(y, 4 * width, 1, 1);
    bool same = b_.type(x) == b_.type(y);
    return b_.emit("relu", {b_.emit("add", {y, same ? x : conv_norm(x, 4 * width, 1, stride)})});
  }

  void build(int64_t batch) {
    ValueId x = graph_.add_input("x", Type(DType::F32, {batch, 3, 224, 224}));
    ValueId labels = graph_.add_input("labels", Type(DType::I64, {batch}));
    ValueId y = b_.emit("relu", {conv_norm(x, 64, 7, 2)});
    y = b_.emit("max_pool", {y}, {{"kernel", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}});
    constexpr int64_t depths[] = {3, 4, 6, 3};
    for (int64_t stage = 0; stage < 4; ++stage)
      for (int64_t block = 0; block < depths[stage]; ++block)
        y = bottleneck(y, 64 << stage, stage > 0 && block == 0 ? 2 : 1);
    y = b_.emit("reduce_mean", {y}, {{"axes", Ints{2, 3}}, {"keep_dims", int64_t{1}}});
    y = b_.emit("linear", {b_.reshape(y, {batch, 2048}), parameter({1000, 2048}), parameter({1000})},
                {{"transpose_w", int64_t{1}}});
    ValueId loss = b_.emit("cross_entropy", {y, labels}, {{"reduction", std::string("mean")}}, "loss");
    graph_.outputs.push_back({"loss", loss});
  }

  Graph graph_;
  Builder b_{graph_};
};

struct Transposes {
  int64_t count = 0, elements = 0;
};

Transposes transposes_in(const Graph& step) {
  Transposes found;
  for (NodeId id : step.order()) {
    const Node& node = step.node(id);
    if (node.op->name != "transpose") continue;
    ++found.count;
    found.elements += step.type(node.results[0]).elements();
  }
  return found;
}

Graph training_step(ImageLayout layout, const KernelCatalog& catalog, const char* precision = "fp32") {
  TrainingRequest request;
  request.layout = layout;
  request.precision = precision;
  CompileHooks hooks;
  hooks.pipeline.stop_after = "train";
  const DeviceDescription cpu = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("cpu"));
  Result<PlanDraft> draft = compile_until(ResNet50::forward(2), request, StageDevices(cpu, catalog), hooks);
  REQUIRE_MESSAGE(bool(draft), llvm::toString(draft.takeError()));
  return std::move(draft->program.functions.front());
}

TEST_SUITE("unit") {
  // 17 weights have more than one position: 7 * 7 * 3 * 64, and 3 * 3 of 64, 128, 256 and 512 channels squared in
  // 3, 4, 6 and 3 blocks. Each is transposed on its way in, its gradient on its way back, and the image once.
  TEST_CASE("channels-last: ResNet-50 transposes its image and the weights of wide kernels, no activation") {
    constexpr int64_t weights = 7 * 7 * 3 * 64 + 9 * (3 * 64 * 64 + 4 * 128 * 128 + 6 * 256 * 256 + 3 * 512 * 512);
    CpuCatalog cpu;
    Transposes last = transposes_in(training_step(ImageLayout::ChannelsLast, cpu));
    CHECK(last.count == 2 * 17 + 1);
    CHECK(last.elements == 2 * weights + 2 * 3 * 224 * 224);
    CHECK(transposes_in(training_step(ImageLayout::ChannelsFirst, cpu)).count == 0);
  }

  TEST_CASE("channels-last: when nobody decides, tensor cores do") {
    DeviceDescription device;
    device.backend = "cuda";
    CudaCatalog card(device);
    for (const char* precision : {"tf32", "bf16", "fp16"})
      CHECK(transposes_in(training_step(ImageLayout::Auto, card, precision)).count > 0);
    for (const char* precision : {"fp32", "exported"})
      CHECK(transposes_in(training_step(ImageLayout::Auto, card, precision)).count == 0);
    CHECK(transposes_in(training_step(ImageLayout::Auto, CpuCatalog(), "bf16")).count == 0);
  }

  TEST_CASE("channels-last: 16-bit weight gradients are transposed once rounded to f32, not before") {
    Graph step = training_step(ImageLayout::ChannelsLast, CpuCatalog(), "bf16");
    for (NodeId id : step.order())
      if (step.node(id).op->name == "conv_dw") CHECK(step.type(step.node(id).results[0]).dtype == DType::F32);
  }
}

}  // namespace
}  // namespace plimsoll
