#include "ir/plan/adapters.h"
#include "passes/budget/budget_report.h"
#include "tests/support/rank_trainer.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

// Adapters in whole training steps: the same losses whatever ranks, micro-batches and budgets do, and first values that
// leave the frozen model's loss as it was.

namespace plimsoll {
namespace {

using namespace testing;

// A gated layer, whose two adapters of rank 1 read one operand that is wide enough for a joined product.
constexpr llvm::StringLiteral gated_block = R"(
graph @gated(%ids: i64[4,3], %labels: i64[12]) state(
    %table: f64[30,48] parameter trained, %gate: f64[24,48] parameter trained, %up: f64[24,48] parameter trained,
    %down: f64[48,24] parameter trained
) {
  %x = gather(%table, %ids) {axis=0} : f64[4,3,48]
  %g0 = linear(%x, %gate) {transpose_w=1} : f64[4,3,24]
  %g = silu(%g0) : f64[4,3,24]
  %u = linear(%x, %up) {transpose_w=1} : f64[4,3,24]
  %m = mul(%g, %u) : f64[4,3,24]
  %d = linear(%m, %down) {transpose_w=1} : f64[4,3,48]
  %y = add(%x, %d) : f64[4,3,48]
  %logits = linear(%y, %table) {transpose_w=1} : f64[4,3,30]
  %rows = reshape(%logits) {shape=[12,30]} : f64[12,30]
  %loss, %l, %weight = cross_entropy(%rows, %labels) {reduction="mean"} : f64[], f64[12], f64[]
  return loss=%loss
}
)";

// The same with gate and values in one product, whose parts are wide enough for products of their own.
constexpr llvm::StringLiteral gated_at_once = R"(
graph @gated(%ids: i64[4,3], %labels: i64[12]) state(
    %table: f64[30,8] parameter trained, %both: f64[512,8] parameter trained, %down: f64[8,256] parameter trained
) {
  %x = gather(%table, %ids) {axis=0} : f64[4,3,8]
  %whole = linear(%x, %both) {transpose_w=1} : f64[4,3,512]
  %u, %g0 = split(%whole) {axis=2, sizes=[256,256]} : f64[4,3,256], f64[4,3,256]
  %g = silu(%g0) : f64[4,3,256]
  %m = mul(%g, %u) : f64[4,3,256]
  %d = linear(%m, %down) {transpose_w=1} : f64[4,3,8]
  %y = add(%x, %d) : f64[4,3,8]
  %logits = linear(%y, %table) {transpose_w=1} : f64[4,3,30]
  %rows = reshape(%logits) {shape=[12,30]} : f64[12,30]
  %loss, %l, %weight = cross_entropy(%rows, %labels) {reduction="mean"} : f64[], f64[12], f64[]
  return loss=%loss
}
)";

TrainingRequest adapted(double dropout) {
  TrainingRequest request;
  request.adapters.rank = 2;
  request.adapters.alpha = 6;
  request.adapters.dropout = dropout;
  return request;
}

Plan planned(const TrainingRequest& request, llvm::StringRef model = packed_blocks, const CompileHooks& hooks = {}) {
  CpuCatalog catalog;
  Result<Plan> plan = fitting_plan(compile_training(parsed(model), request, cpu_device(), catalog, hooks));
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  return std::move(*plan);
}

// The losses of three steps from random values, adapters included.
std::vector<double> losses_on(const TrainingRequest& request, llvm::StringRef model = packed_blocks) {
  const ForwardModel forward = forward_of(parsed(model), request);
  Result<Program> program = make_program(forward, {}, request);
  REQUIRE_MESSAGE(bool(program), llvm::toString(program.takeError()));
  RandomValues values;
  TrainingRequest of_one_rank = adapted(0);
  of_one_rank.adapters.rank = request.adapters.rank;
  values.add_for(forward_of(parsed(model), of_one_rank).graph);
  RankTrainer trainer(std::move(*program), request.mesh, values);
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) losses.push_back(trainer.step(request.accumulate).front());
  return losses;
}

TEST_SUITE("unit") {
  TEST_CASE("adapters: only they are trained, and what is named beside them") {
    TrainingRequest request = adapted(0);
    const auto trained = [&] {
      std::vector<std::string> names;
      for (const State& state : forward_of(parsed(packed_blocks), request).graph.states)
        if (state.trained) names.push_back(state.init.source);
      return names;
    };
    // Four linear layers; the head makes the scores of the loss.
    CHECK(trained() ==
          std::vector<std::string>{"base_model.model.wqkv.lora_A.weight", "base_model.model.wqkv.lora_B.weight",
                                   "base_model.model.wo.lora_A.weight", "base_model.model.wo.lora_B.weight",
                                   "base_model.model.w1.lora_A.weight", "base_model.model.w1.lora_B.weight",
                                   "base_model.model.w2.lora_A.weight", "base_model.model.w2.lora_B.weight"});
    request.train = {"^b1$"};
    CHECK(trained().size() == 9);
    CHECK(trained().front() == "b1");
  }

  TEST_CASE("adapters: ranks along the data axis train as one rank does") {
    for (llvm::StringRef model : {packed_blocks, gated_block})
      for (double dropout : {0.0, 0.25}) {
        TrainingRequest request = adapted(dropout);
        if (model == gated_block) request.adapters.rank = 1;
        const std::vector<double> alone = losses_on(request, model);
        CHECK(alone[1] != alone[0]);
        request.mesh[MeshAxis::Data] = 2;
        for (int zero : {0, 1, 2, 3}) {
          request.zero = zero;
          const std::vector<double> together = losses_on(request, model);
          for (size_t i = 0; i < alone.size(); ++i) CHECK(together[i] == doctest::Approx(alone[i]).epsilon(1e-9));
        }
      }
  }

  TEST_CASE("adapters: parts of tensors train as one rank does") {
    for (llvm::StringRef model : {packed_blocks, gated_block}) {
      TrainingRequest request = adapted(0);
      if (model == gated_block) request.adapters.rank = 1;
      const std::vector<double> alone = losses_on(request, model);
      request.mesh[MeshAxis::Tensor] = 2;
      const std::vector<double> together = losses_on(request, model);
      for (size_t i = 0; i < alone.size(); ++i) CHECK(together[i] == doctest::Approx(alone[i]).epsilon(1e-9));
    }
  }
}

TEST_SUITE("e2e") {
  TEST_CASE("adapters: the first loss is the frozen model's, and the first update moves every B") {
    RandomValues values;
    values.add_for(parsed(packed_blocks));
    TrainingRequest frozen;
    frozen.optimizer = {.kind = OptimizerKind::Sgd, .learning_rate = 0};
    const double loss = losses_of(*started(planned(frozen), values), values, 1).front();

    const Plan plan = planned(adapted(0));
    const std::optional<PlannedAdapters> adapters = adapters_of(plan);
    REQUIRE(adapters);
    CHECK(adapters->modules.size() == 4);
    CHECK(adapters->rank == 2);
    CHECK(adapters->scale(adapters->modules.front()) == 3);
    CHECK(adapters->fan_in_fan_out);  // the layers' weights are [inputs, outputs]
    std::unique_ptr<Session> session = started(plan, values);
    const auto state = [&](const std::string& name) {
      Tensor copy;
      llvm::cantFail(session->read_state(name, [&](const TensorView& view) {
        copy = Tensor(view.type, view.data);
        return Status::success();
      }));
      return copy;
    };
    const auto is_zero = [](const Tensor& tensor) {
      for (int64_t i = 0; i < tensor.type().elements(); ++i)
        if (tensor.get(i) != 0) return false;
      return true;
    };
    std::map<std::string, Tensor> first;
    for (const PlannedAdapter& each : adapters->modules) {
      CHECK(is_zero(state(each.b)));
      const Tensor a = first[each.a] = state(each.a);
      const double bound = 1 / std::sqrt(static_cast<double>(each.a_type.shape[1]));
      double largest = 0;
      for (int64_t i = 0; i < a.type().elements(); ++i) largest = std::max(largest, std::abs(a.get(i)));
      CHECK(largest <= bound);
      CHECK(largest > 0.7 * bound);  // of at least 24 numbers
    }
    OneBatch data(values, session->inputs());
    CHECK(llvm::cantFail(session->step(data)).loss == loss);
    for (const PlannedAdapter& each : adapters->modules) CHECK_FALSE(is_zero(state(each.b)));
    llvm::cantFail(session->step(data));
    for (const PlannedAdapter& each : adapters->modules) CHECK_FALSE(state(each.a) == first[each.a]);
  }

  TEST_CASE("adapters: products of one operand are joined, and train as those that are not") {
    RandomValues values;
    values.add_for(parsed(gated_block));
    TrainingRequest request = adapted(0);
    request.adapters.rank = 1;
    CompileHooks apart;
    apart.pipeline.skip = {"join-narrow"};
    const Plan joined = planned(request, gated_block), separate = planned(request, gated_block, apart);
    const auto products = [](const Plan& plan) {
      return llvm::count_if(plan.functions.front().instructions, [](const Instruction& instruction) {
        return instruction.op == "linear" || instruction.op == "linear_dw";
      });
    };
    CHECK(products(joined) == products(separate) - 2);  // the operand is not trained, so it has no gradient
    const std::vector<double> want = losses_of(*started(separate, values), values, 3);
    for (int64_t chunks : {1, 2}) {
      request.split = chunks;
      const std::vector<double> got = losses_of(*started(planned(request, gated_block), values), values, 3);
      CHECK(got[2] != got[0]);
      for (size_t i = 0; i < want.size(); ++i) CHECK(got[i] == doctest::Approx(want[i]).epsilon(1e-9));
    }
  }

  TEST_CASE("adapters: a product that is split is made in parts, and trains as the whole does") {
    RandomValues values;
    values.add_for(parsed(gated_at_once));
    TrainingRequest request = adapted(0);
    request.adapters.rank = 1;
    CompileHooks at_once;
    at_once.pipeline.skip = {"split-products"};
    const Plan parts = planned(request, gated_at_once), whole = planned(request, gated_at_once, at_once);
    const auto wide_products = [](const Plan& plan) {
      return llvm::count_if(plan.functions.front().instructions, [&](const Instruction& instruction) {
        return instruction.op == "linear" &&
               plan.slots[static_cast<size_t>(instruction.results[0])].type.shape.back() == 512;
      });
    };
    CHECK(wide_products(whole) == 2);  // the layer's and its adapter's
    CHECK(wide_products(parts) == 0);
    const std::vector<double> want = losses_of(*started(whole, values), values, 3);
    for (int64_t chunks : {1, 2}) {
      request.split = chunks;
      const std::vector<double> got = losses_of(*started(planned(request, gated_at_once), values), values, 3);
      CHECK(got[2] != got[0]);
      for (size_t i = 0; i < want.size(); ++i) CHECK(got[i] == doctest::Approx(want[i]).epsilon(1e-9));
    }
  }

  TEST_CASE("adapters: budgets, chunks and micro-batches change no loss") {
    RandomValues values;
    values.add_for(parsed(packed_blocks));
    const TrainingRequest plain = adapted(0.25);
    const Plan plan = planned(plain);
    const std::vector<double> want = losses_of(*started(plan, values), values, 3);
    TrainingRequest chunks = plain;
    chunks.split = 2;
    TrainingRequest tight = plain;
    tight.budget_bytes = plan.promised_bytes() - 512;
    for (const TrainingRequest& request : {chunks, tight}) {
      const std::vector<double> got = losses_of(*started(planned(request), values), values, 3);
      for (size_t i = 0; i < want.size(); ++i) CHECK(got[i] == doctest::Approx(want[i]).epsilon(1e-9));
    }
  }
}

}  // namespace
}  // namespace plimsoll
