#include "ir/plan/summary.h"
#include "ir/support/strings.h"
#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

// Bytes of plans for a plain transformer are those of the closed forms that people plan with.

namespace plimsoll {
namespace {

using namespace testing;

constexpr int64_t batch = 4, rows = 256, width = 512, heads = 8;
constexpr double tolerance = 0.02;

// Layers of GPT-2 in bf16: attention and a feed-forward layer, each behind a norm and ahead of a dropout.
Graph transformer(int layers) {
  const auto type = [](llvm::ArrayRef<int64_t> shape) {
    return to_string(Type(DType::BF16, Shape(shape.begin(), shape.end())));
  };
  const std::string hidden = type({batch, rows, width}), wide = type({batch, rows, 4 * width}),
                    packed = type({batch, rows, 3 * width});
  const std::string stats = "f32[" + std::to_string(batch) + "," + std::to_string(rows) + ",1]";
  std::string states = "%rng: i64[2] counter fill=0.0", nodes, last = "%x";
  for (int i = 0; i < layers; ++i) {
    const std::string n = std::to_string(i);
    const auto parameter = [&](const char* name, llvm::ArrayRef<int64_t> shape) {
      states += ", %" + (name + n) + ": " + type(shape) + " parameter trained";
    };
    const auto node = [&](const std::string& line) { nodes += "  " + line + "\n"; };
    const auto norm = [&](const char* out, const std::string& in, const char* scale) {
      node("%" + (out + n) + ", %" + (out + n) + ".mean, %" + (out + n) + ".rstd = layer_norm(" + in + ", %" +
           (scale + n) + ") {axis=2, eps=1e-05} : " + hidden + ", " + stats + ", " + stats);
    };
    parameter("s", {width}), parameter("t", {width});
    parameter("wqkv", {width, 3 * width}), parameter("wo", {width, width});
    parameter("w1", {width, 4 * width}), parameter("w2", {4 * width, width});
    norm("n", last, "s");
    node("%qkv" + n + " = linear(%n" + n + ", %wqkv" + n + ") : " + packed);
    node("%a" + n + ", %lse" + n + " = attention(%qkv" + n + ", _, _) {causal=1, heads=" + std::to_string(heads) +
         ", kv_heads=" + std::to_string(heads) + ", packed=1, scale=0.125} : " + hidden + ", f32[" +
         std::to_string(batch) + "," + std::to_string(heads) + "," + std::to_string(rows) + "]");
    node("%o" + n + " = linear(%a" + n + ", %wo" + n + ") : " + hidden);
    node("%p" + n + " = dropout(%o" + n + ", %rng) {id=" + std::to_string(2 * i) + ", ratio=0.1} : " + hidden);
    node("%h" + n + " = add(" + last + ", %p" + n + ") : " + hidden);
    norm("m", "%h" + n, "t");
    node("%u" + n + " = linear(%m" + n + ", %w1" + n + ") : " + wide);
    node("%g" + n + " = gelu(%u" + n + ") {approximate=\"tanh\"} : " + wide);
    node("%d" + n + " = linear(%g" + n + ", %w2" + n + ") : " + hidden);
    node("%q" + n + " = dropout(%d" + n + ", %rng) {id=" + std::to_string(2 * i + 1) + ", ratio=0.1} : " + hidden);
    node("%y" + n + " = add(%h" + n + ", %q" + n + ") : " + hidden);
    last = "%y" + n;
  }
  // A head, so that what follows the last layer is divided as between layers.
  states += ", %head: " + type({width, 4 * width}) + " parameter trained, %tail: " + type({4 * width, width}) +
            " parameter trained";
  nodes += "  %logits = linear(" + last + ", %head) : " + wide + "\n  %out = linear(%logits, %tail) : " + hidden +
           "\n  %wide = cast(%out) {to=f32} : f32[" + std::to_string(batch) + "," + std::to_string(rows) + "," +
           std::to_string(width) + "]\n  %loss = reduce_mean(%wide) {axes=[0,1,2], keep_dims=0} : f32[]\n";
  return parsed("graph @transformer(%x: " + hidden + ") state(" + states + ") {\n" + nodes +
                "  return loss=%loss\n}\n");
}

Plan plan_of(int layers, const TrainingRequest& request) {
  const CpuCatalog catalog;
  Result<CompileResult> result = compile_training(transformer(layers), request, cpu_device(), catalog);
  REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
  return std::move(result->plan);
}

// Of the first stage: its layers, and what it saves for all micro-batches that it keeps.
struct Saved {
  double layers, bytes;
};
Saved saved_of(int layers, const TrainingRequest& request) {
  const Plan plan = plan_of(layers, request);
  const auto own = llvm::count_if(plan.states, [&](const PlanState& state) {
    const llvm::StringRef name = plan.slots[state.slot].name;
    return starts_with(name, "wqkv") && !name.contains(".");
  });
  return {static_cast<double>(own),
          static_cast<double>(summarize_space(plan, MemorySpace::Device).largest[Category::Saved])};
}

double saved_bytes_per_layer(const TrainingRequest& request) {
  const Saved few = saved_of(4, request), many = saved_of(8, request);
  REQUIRE(many.layers > few.layers);
  return (many.bytes - few.bytes) / (many.layers - few.layers);
}

// Korthikanti et al. 2022: a layer keeps 34 bytes for each of s b h elements, if scores are made again, and a rank
// along the tensor axis its share of that. Two bytes are the masks of dropout, which are drawn again here; four are
// the inputs of the first matmuls, of which a plan keeps the gathered rows where it has room.
double layer_bytes(int64_t tensor) { return (34 - 2 - 4) / static_cast<double>(tensor) + 4; }

TEST_SUITE("unit") {
  TEST_CASE("a layer saves what Korthikanti's formula has it save, whatever the mesh") {
    const auto bytes_per_layer = [](llvm::StringRef mesh) {
      TrainingRequest request;
      request.mesh = llvm::cantFail(parse_mesh(mesh));
      return saved_bytes_per_layer(request);
    };
    const double elements = static_cast<double>(batch * rows * width);
    CHECK(bytes_per_layer("data=1") == doctest::Approx(layer_bytes(1) * elements).epsilon(tolerance));
    CHECK(bytes_per_layer("data=2") == doctest::Approx(layer_bytes(1) * elements / 2).epsilon(tolerance));
    CHECK(bytes_per_layer("tensor=2") == doctest::Approx(layer_bytes(2) * elements).epsilon(tolerance));
    CHECK(bytes_per_layer("tensor=4") == doctest::Approx(layer_bytes(4) * elements).epsilon(tolerance));
    CHECK(bytes_per_layer("data=2,tensor=2") == doctest::Approx(layer_bytes(2) * elements / 2).epsilon(tolerance));
  }

  // The first stage of S keeps its layers' values of S micro-batches.
  TEST_CASE("the first stage of a pipeline saves its layers' bytes for as many micro-batches as there are stages") {
    const auto bytes_per_layer = [](llvm::StringRef mesh) {
      TrainingRequest request;
      request.mesh = llvm::cantFail(parse_mesh(mesh));
      request.micro_batches = 4;
      request.schedule = PipelineSchedule::OneForwardOneBackward;
      return saved_bytes_per_layer(request);
    };
    const double elements = 2 * static_cast<double>(batch / 4 * rows * width);
    CHECK(bytes_per_layer("stage=2") == doctest::Approx(layer_bytes(1) * elements).epsilon(tolerance));
    CHECK(bytes_per_layer("tensor=2,stage=2") == doctest::Approx(layer_bytes(2) * elements).epsilon(tolerance));
  }

  // Rajbhandari et al. 2020, with sums of gradients in f32: 2 bytes of weights, 4 of the sum, 12 of the optimizer.
  TEST_CASE("states of ranks take the bytes of ZeRO's stages") {
    constexpr int64_t ranks = 4;
    constexpr int layers = 2;
    const double parameters = (layers * 12.0 + 8) * width * width;
    const auto persistent = [&](int zero) {
      TrainingRequest request;
      request.mesh[MeshAxis::Data] = ranks;
      request.accumulate = 2;
      request.zero = zero;
      return static_cast<double>(plan_of(layers, request).arenas.front().persistent_bytes);
    };
    CHECK(persistent(0) == doctest::Approx(parameters * (2 + 4 + 12)).epsilon(tolerance));
    CHECK(persistent(1) == doctest::Approx(parameters * (2 + 4 + 12.0 / ranks)).epsilon(tolerance));
    CHECK(persistent(2) == doctest::Approx(parameters * (2 + (4 + 12.0) / ranks)).epsilon(tolerance));
    CHECK(persistent(3) == doctest::Approx(parameters * (2 + 4 + 12.0) / ranks).epsilon(tolerance));
  }

  // The f32 weights of 16-bit copies are among the optimizer's 12 bytes. Accumulated gradients are 4 more, and a weight
  // that several micro-batches read is whole.
  TEST_CASE("ZeRO-1 divides f32 weights whose 16-bit copies a step gathers once") {
    constexpr int64_t ranks = 4;
    constexpr double parameters = 512.0 * 1024;
    const auto persistent = [&](const char* precision, int64_t accumulate) {
      TrainingRequest request;
      request.mesh[MeshAxis::Data] = ranks;
      request.zero = 1;
      request.precision = precision;
      request.accumulate = accumulate;
      Graph graph = parsed(R"(
graph @one_layer(%x: f32[4,512], %labels: i64[4]) state(%w: f32[512,1024] parameter trained) {
  %y = linear(%x, %w) : f32[4,1024]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {reduction="mean"} : f32[], f32[4], f32[]
  return loss=%loss
}
)");
      const CpuCatalog catalog;
      Result<CompileResult> result = compile_training(std::move(graph), request, cpu_device(), catalog);
      REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
      return static_cast<double>(result->plan.arenas.front().persistent_bytes);
    };
    CHECK(persistent("fp32", 1) == doctest::Approx(parameters * (4 + 8.0 / ranks)).epsilon(tolerance));
    CHECK(persistent("bf16", 1) == doctest::Approx(parameters * 12.0 / ranks).epsilon(tolerance));
    CHECK(persistent("bf16", 2) == doctest::Approx(parameters * (4 + 4 + 8.0 / ranks)).epsilon(tolerance));
  }
}

}  // namespace
}  // namespace plimsoll
