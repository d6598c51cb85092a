#include "ir/text.h"
#include "runtime/first_values.h"
#include "tests/support/compiled_plans.h"
#include "tests/support/rank_trainer.h"

#include <doctest/doctest.h>

#include <numeric>

// Whole training steps whose 8-bit operands have a scale for each row or block.

namespace plimsoll {
namespace {

using namespace testing;

// A block of a transformer: 128 rows, sizes that are whole blocks but for the gates' 208.
constexpr llvm::StringLiteral model = R"(
graph @transformer(%x: f32[4,32,128], %labels: i64[128]) state(%qkv: f32[128,384] parameter trained, %bq: f32[384] parameter trained, %o: f32[128,128] parameter trained, %s1: f32[128] parameter trained, %s2: f32[128] parameter trained, %up: f32[256,128] parameter trained, %gate: f32[208,128] parameter trained, %down: f32[256,128] parameter trained, %low: f32[208,128] parameter trained, %head: f32[16,128] parameter trained) {
  %n, %rstd = rms_norm(%x, %s1) {axis=2, eps=1e-05} : f32[4,32,128], f32[4,32,1]
  %q = linear(%n, %qkv, %bq) : f32[4,32,384]
  %y, %lse = attention(%q, _, _) {causal=1, heads=4, kv_heads=4, packed=1, scale=0.176} : f32[4,32,128], f32[4,4,32]
  %p = linear(%y, %o) {transpose_w=1} : f32[4,32,128]
  %h = add(%p, %x) : f32[4,32,128]
  %m, %rstd2 = rms_norm(%h, %s2) {axis=2, eps=1e-05} : f32[4,32,128], f32[4,32,1]
  %u = linear(%m, %up) {transpose_w=1} : f32[4,32,256]
  %g = gelu(%u) {approximate="tanh"} : f32[4,32,256]
  %d = linear(%g, %down) : f32[4,32,128]
  %v = linear(%m, %gate) {transpose_w=1} : f32[4,32,208]
  %a = silu(%v) : f32[4,32,208]
  %l = linear(%a, %low) : f32[4,32,128]
  %sum = add_n(%h, %d, %l) : f32[4,32,128]
  %rows = reshape(%sum) {shape=[128,128]} : f32[128,128]
  %z = linear(%rows, %head) {transpose_w=1} : f32[128,16]
  %loss, %row_lse, %weight = cross_entropy(%z, %labels) {reduction="mean"} : f32[], f32[128], f32[]
  return loss=%loss
}
)";

TrainingRequest request_for(const char* precision, const char* rules = "") {
  TrainingRequest request;
  request.precision = precision;
  request.precision_rules = rules;
  request.optimizer.learning_rate = 1e-4;
  return request;
}

Plan must_compile(const TrainingRequest& request, const char* device = nullptr) {
  Result<Plan> plan = compiled(model, request, device);
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  return std::move(*plan);
}

int64_t count(const Plan& plan, llvm::StringRef op, llvm::StringRef by = "") {
  int64_t found = 0;
  for (const PlanFunction& function : plan.functions)
    found += llvm::count_if(function.instructions, [&](const Instruction& each) {
      return each.op == op && (by.empty() || each.attrs.get_string("by") == by);
    });
  return found;
}

// Weights as layers have them at first, so that scores are of order 1.
RandomValues model_values() {
  RandomValues values;
  values.add_for(parsed(model));
  for (auto& [name, tensor] : values.tensors)
    for (int64_t i = 0; i < tensor.type().elements(); ++i) {
      if (tensor.type().rank() == 2) tensor.view().set(i, 0.04 * tensor.get(i));
      if (name == "s1" || name == "s2") tensor.view().set(i, 1);
    }
  return values;
}

std::vector<double> losses(const TrainingRequest& request, int steps) {
  const RandomValues values = model_values();
  std::unique_ptr<Session> session = started(must_compile(request), values);
  OneBatch data(values, session->inputs());
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) losses.push_back(llvm::cantFail(session->step(data, nullptr)).loss);
  return losses;
}

// Means over ranks that share the batch.
std::vector<double> losses_on_ranks(const TrainingRequest& plain, const char* mesh, int steps) {
  TrainingRequest request = plain;
  request.mesh = llvm::cantFail(parse_mesh(mesh));
  const CpuCatalog catalog;
  Result<Derived> derived = derive_program(forward_of(parsed(model), request), {}, request, cpu_device(), catalog, {});
  REQUIRE_MESSAGE(bool(derived), llvm::toString(derived.takeError()));
  const RandomValues values = model_values();
  RankTrainer trainer(std::move(derived->draft.program), request.mesh, values);
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    const std::vector<double> all = trainer.step(1);
    losses.push_back(std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size()));
  }
  return losses;
}

double largest_distance(llvm::ArrayRef<double> a, llvm::ArrayRef<double> b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]) / b[i]);
  return largest;
}

TEST_SUITE("unit") {
  TEST_CASE("fp8 scales: a plan has what the rule asks for, where sizes suit it, and says so") {
    const Plan rows = must_compile(request_for("fp8", "scales = rows")),
               blocks = must_compile(request_for("fp8", "scales = blocks"));
    CHECK(count(rows, "linear_f8") == 18);
    CHECK(count(rows, "f8_scale") == 0);
    CHECK(count(rows, "to_scaled_f8", "rows") == count(rows, "to_scaled_f8"));
    CHECK(decides(rows, "mark-f8", "linear layers", "fp8", "scales of rows"));
    CHECK(decides(rows, "expand-f8", "forward products", "f8e4m3 x f8e4m3 by rows", "6 products"));
    // Layers with 208 gates have scales of rows.
    CHECK(count(blocks, "linear_f8") == 18);
    CHECK(count(blocks, "to_scaled_f8", "tiles") == 4);
    CHECK(decides(blocks, "expand-f8", "forward products", "f8e4m3 x f8e4m3 by blocks", "4 products"));
    CHECK(decides(blocks, "expand-f8", "forward products", "scales of rows",
                  "1 product, v: outputs are 208, no multiple of 128"));
    CHECK(decides(blocks, "expand-f8", "forward products", "scales of rows",
                  "1 product, l: inputs are 208, no multiple of 128"));
    CHECK(decides(blocks, "expand-f8", "gradients of weights", "scales of rows", "1 product"));
  }

  TEST_CASE("fp8 scales: losses of 30 steps stay within a few per mille of bf16's") {
    const std::vector<double> half = losses(request_for("bf16"), 30);
    for (const char* rules : {"scales = rows", "scales = blocks", "scales = rows; gradients = f8e4m3"}) {
      CAPTURE(rules);
      const std::vector<double> eight = losses(request_for("fp8", rules), 30);
      CHECK(eight.back() < 0.9 * eight.front());
      CHECK(largest_distance(eight, half) < 5e-3);
    }
  }

  TEST_CASE("fp8 scales: chunks, ranks and budgets that repeat codes train as the plain step does") {
    for (const char* rules : {"scales = rows", "scales = blocks"}) {
      CAPTURE(rules);
      const TrainingRequest plain = request_for("fp8", rules);
      const std::vector<double> wanted = losses(plain, 2);
      TrainingRequest request = plain;
      // Forward shares nothing between samples; means of two losses are rounded once more.
      request.split = 2;
      for (const std::vector<double>& divided : {losses(request, 2), losses_on_ranks(plain, "data=2", 2)}) {
        CHECK(divided.front() == doctest::Approx(wanted.front()).epsilon(1e-6));
        CHECK(largest_distance(divided, wanted) < 1e-3);
      }
      const Plan whole = must_compile(plain);
      request.split = 1;
      int64_t within_budgets = 0;
      for (int64_t saved : {1, 4}) {
        request.budget_bytes = whole.promised_bytes() - saved * 16384;
        Result<Plan> tight = compiled(model, request);
        if (!tight) {
          llvm::consumeError(tight.takeError());
          break;
        }
        ++within_budgets;
        CHECK(losses(request, 2) == wanted);
      }
      CHECK(within_budgets > 0);
    }
  }

  TEST_CASE("fp8 scales: Hopper has kernels for all of it, other cards are refused") {
    for (const char* rules : {"scales = rows", "scales = blocks"}) {
      const Plan plan = must_compile(request_for("fp8", rules), "h200");
      CHECK(count(plan, "linear_f8") == 18);
      for (const Instruction& each : plan.functions.front().instructions)
        if (llvm::StringRef(each.op).contains("f8")) CHECK(each.kernel != "reference");
    }
    CHECK(
        take_diag(compiled(model, request_for("fp8", "scales = blocks"), "rtx4090").takeError()).text() ==
        "scales = blocks: such products run on cards of compute capability 9.0, rtx4090 has 8.9; scales = tensor works "
        "there");
    CHECK(take_diag(compiled(model, request_for("bf16", "scales = rows")).takeError()).text() ==
          "'scales = rows': 8 bits need precision fp8, not bf16");
    CHECK(count(must_compile(request_for("fp8", "scales = tensor"), "rtx4090"), "f8_scale") > 0);
  }

  TEST_CASE("fp8 scales: weights that are read as codes are drawn as those of their layers") {
    const auto eight = first_values_of(must_compile(request_for("fp8", "scales = blocks"))),
               half = first_values_of(must_compile(request_for("bf16")));
    for (const char* name : {"qkv", "bq", "o", "up", "gate", "down", "low"}) {
      CAPTURE(name);
      CHECK(eight.lookup(name).kind == FirstValue::Kind::Uniform);
      CHECK(eight.lookup(name).scale == half.lookup(name).scale);
    }
  }
}

}  // namespace
}  // namespace plimsoll
