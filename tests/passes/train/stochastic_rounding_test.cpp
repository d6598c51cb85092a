#include "passes/budget/budget_report.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/rank_trainer.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>
#include <cmath>

// Weights in bf16 without a master copy: right on average, and the same bits on any mesh that cuts no rows apart.

namespace plimsoll {
namespace {

using namespace testing;

RandomValues start_values() {
  RandomValues values;
  for (const auto& [name, rows, columns] : {std::tuple("x", 4, 64), {"c", 4, 512}, {"w", 64, 512}}) {
    Tensor tensor(Type(name[0] == 'w' ? DType::BF16 : DType::F32, {rows, columns}));
    for (int64_t i = 0; i < tensor.type().elements(); ++i) tensor.view().set(i, static_cast<double>(i * 7 % 13 - 6));
    values.tensors[name] = tensor;
  }
  return values;
}

TrainingRequest request_for(Moments moments) {
  TrainingRequest request;
  request.precision = "bf16";
  request.master_weights = MasterWeights::Off;
  request.moments = moments;
  return request;
}

RankTrainer trained(const TrainingRequest& request, const RandomValues& values) {
  const CpuCatalog catalog;
  Result<Derived> derived =
      derive_program(forward_of(parsed(linear_loss), request), {}, request, cpu_device(), catalog, {});
  REQUIRE_MESSAGE(bool(derived), llvm::toString(derived.takeError()));
  RankTrainer trainer(std::move(derived->draft.program), request.mesh, values);
  for (int step = 0; step < 3; ++step) trainer.step(1);
  return trainer;
}

TEST_SUITE("unit") {
  TEST_CASE("stochastic rounding: the mean of many updates is what one in f32 would be") {
    constexpr int64_t count = 1 << 16;
    const auto filled = [](DType dtype, double value) {
      Tensor tensor(Type(dtype, {count}));
      for (int64_t i = 0; i < count; ++i) tensor.view().set(i, value);
      return tensor;
    };
    // The first step of Adam moves each weight by the rate. Between 1 and 2 numbers of bf16 are 1 / 128 apart.
    const double rate = 1e-3, step_between = 1.0 / 128;
    const Tensor param = filled(DType::BF16, 1.5), grad = filled(DType::BF16, -1), zero = filled(DType::F32, 0),
                 step = Tensor::scalar_int(1), lr = Tensor::scalar(rate, DType::F32);
    const Attrs attrs{{"beta1", 0.9}, {"beta2", 0.99}, {"eps", 1e-8}, {"rounding_id", int64_t{9}}};
    const Tensor next = std::move(
        llvm::cantFail(evaluate_node(get_op("adamw"), attrs, {&param, &grad, &zero, &zero, &step, &lr})).front());
    int64_t up = 0;
    for (int64_t i = 0; i < count; ++i) {
      REQUIRE((next.get(i) == 1.5 || next.get(i) == 1.5 + step_between));
      up += next.get(i) > 1.5;
    }
    const double share = rate / step_between, deviation = std::sqrt(share * (1 - share) / count);
    CHECK(std::abs(static_cast<double>(up) / count - share) < 4 * deviation);
  }

  TEST_CASE("stochastic rounding: parameters have no master copy, and the same bits on ranks that divide them") {
    const RandomValues values = start_values();
    for (Moments moments : {Moments::F32, Moments::EightBit}) {
      const RankTrainer alone = trained(request_for(moments), values);
      CHECK(alone.states(0).at("w").type() == Type(DType::BF16, {64, 512}));
      CHECK(alone.states(0).count("w.master") == 0);
      for (int zero : {0, 1, 3}) {
        TrainingRequest request = request_for(moments);
        request.mesh[MeshAxis::Data] = 2;
        request.zero = zero;
        const RankTrainer together = trained(request, values);
        for (int64_t rank = 0; rank < 2; ++rank) {
          CAPTURE(zero);
          CHECK(together.states(static_cast<size_t>(rank)).at("w") ==
                together.own_part("w", alone.states(0).at("w"), rank));
        }
      }
    }
  }

  TEST_CASE("stochastic rounding: kernels give the reference's bits, within any budget") {
    const RandomValues values = start_values();
    const RankTrainer reference = trained(request_for(Moments::EightBit), values);
    CpuCatalog catalog;
    Result<Plan> plan =
        fitting_plan(compile_training(parsed(linear_loss), request_for(Moments::EightBit), cpu_device(), catalog));
    REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
    std::unique_ptr<Session> session = started(std::move(*plan), values);
    OneBatch data(values, session->inputs());
    for (int step = 0; step < 3; ++step) REQUIRE(bool(session->step(data)));
    int64_t differ = 0;
    llvm::cantFail(session->read_state("w", [&](const TensorView& w) {
      for (int64_t i = 0; i < w.elements(); ++i) differ += w.get(i) != reference.states(0).at("w").get(i);
      return Status::success();
    }));
    // The kernel computes the step in f32, which moves a number over its border at times.
    CHECK(differ < 64 * 512 / 1000);
  }
}

}  // namespace
}  // namespace plimsoll
