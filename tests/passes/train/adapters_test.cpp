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

TrainingRequest adapted(double dropout) {
  TrainingRequest request;
  request.adapters.rank = 2;
  request.adapters.alpha = 6;
  request.adapters.dropout = dropout;
  return request;
}

Plan planned(const TrainingRequest& request) {
  CpuCatalog catalog;
  Result<Plan> plan = fitting_plan(compile_training(parsed(packed_blocks), request, cpu_device(), catalog));
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  return std::move(*plan);
}

// The losses of three steps from random values, adapters included.
std::vector<double> losses_on(const TrainingRequest& request) {
  const ForwardModel forward = forward_of(parsed(packed_blocks), request);
  Result<Program> program = make_program(forward, {}, request);
  REQUIRE_MESSAGE(bool(program), llvm::toString(program.takeError()));
  RandomValues values;
  values.add_for(forward_of(parsed(packed_blocks), adapted(0)).graph);
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
    for (double dropout : {0.0, 0.25}) {
      const std::vector<double> alone = losses_on(adapted(dropout));
      CHECK(alone[1] != alone[0]);
      for (int zero : {0, 1, 2, 3}) {
        TrainingRequest request = adapted(dropout);
        request.mesh[MeshAxis::Data] = 2;
        request.zero = zero;
        const std::vector<double> together = losses_on(request);
        for (size_t i = 0; i < alone.size(); ++i) CHECK(together[i] == doctest::Approx(alone[i]).epsilon(1e-9));
      }
    }
  }

  TEST_CASE("adapters: parts of tensors train as one rank does") {
    const std::vector<double> alone = losses_on(adapted(0));
    TrainingRequest request = adapted(0);
    request.mesh[MeshAxis::Tensor] = 2;
    const std::vector<double> together = losses_on(request);
    for (size_t i = 0; i < alone.size(); ++i) CHECK(together[i] == doctest::Approx(alone[i]).epsilon(1e-9));
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
