#include "ir/eight_bit_moments.h"
#include "ir/quantized_numbers.h"
#include "kernels/dynamic_map.h"
#include "passes/budget/budget_report.h"
#include "passes/train/optimizer_settings.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/passes/train/eight_bit_numbers.h"
#include "tests/support/rank_trainer.h"
#include "tests/support/small_training.h"
#include "tests/support/tensor_distance.h"

#include <doctest/doctest.h>
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

// Moments in 8 bits and in bf16: torchao's numbers, their bytes, and the same bits on every mesh.

namespace plimsoll {
namespace {

using namespace testing;

// The gradient of w is x * w; of the small one it is y * s.
constexpr llvm::StringLiteral model = R"(
graph @squares(%x: f32[24,256], %y: f32[4,256]) state(%w: f32[24,256] parameter trained, %s: f32[4,256] parameter trained) {
  %half = constant() {value=f32[]<0.5>} : f32[]
  %wx = mul(%w, %x) : f32[24,256]
  %wxx = mul(%wx, %w) : f32[24,256]
  %w_sum = reduce_sum(%wxx) {axes=[0,1], keep_dims=0} : f32[]
  %sy = mul(%s, %y) : f32[4,256]
  %syy = mul(%sy, %s) : f32[4,256]
  %s_sum = reduce_sum(%syy) {axes=[0,1], keep_dims=0} : f32[]
  %sum = add(%w_sum, %s_sum) : f32[]
  %loss = mul(%sum, %half) : f32[]
  return loss=%loss
}
)";

// As in tests/golden/make_eight_bit_numbers.py.
RandomValues start_values() {
  RandomValues values;
  for (const auto& [name, phase] :
       {std::pair("w", 0.5), std::pair("x", 2.0), std::pair("s", 0.25), std::pair("y", 1.0)}) {
    Tensor tensor(Type(DType::F32, {name[0] == 'w' || name[0] == 'x' ? 24 : 4, 256}));
    for (int64_t i = 0; i < tensor.type().elements(); ++i)
      tensor.view().set(i,
                        std::sin(1.3 * static_cast<double>(i) + phase) * std::pow(10.0, -static_cast<double>(i % 7)));
    values.tensors[name] = tensor;
  }
  return values;
}

TrainingRequest request_for(Moments moments) {
  TrainingRequest request;
  request.optimizer.learning_rate = 0.05;
  request.optimizer.weight_decay = 0.1;
  request.moments = moments;
  return request;
}

std::unique_ptr<Session> trained(const TrainingRequest& request, const RandomValues& values) {
  CpuCatalog catalog;
  Result<Plan> plan = fitting_plan(compile_training(parsed(model), request, cpu_device(), catalog));
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  std::unique_ptr<Session> session = started(std::move(*plan), values);
  OneBatch data(values, session->inputs());
  for (int step = 0; step < eight_bit_steps; ++step) REQUIRE(bool(session->step(data)));
  return session;
}

Tensor state_of(Session& session, const std::string& name) {
  Tensor copy;
  Status failed = session.read_state(name, [&](const TensorView& view) {
    copy = Tensor(view.type, view.data);
    return Status::success();
  });
  REQUIRE_FALSE(bool(failed));
  return copy;
}

// What kernels compute, against the thresholds one by one.
template <bool is_signed, typename CodeOf>
int64_t count_wrong_codes(CodeOf code_of) {
  const std::array<float, 256>& thresholds = dynamic_thresholds(is_signed);
  int64_t wrong = 0;
  const auto look = [&](float x) {
    if (!is_signed && x < 0) return;
    wrong += code_of(x) != moment_code(x, 1, is_signed);
  };
  std::mt19937 random(1);
  std::uniform_real_distribution<float> uniform(0, 1);
  for (int i = 0; i < 200000; ++i) {
    const float x = uniform(random), small = std::pow(10.0F, -9 * uniform(random));
    for (float each : {x, -x, small, -small}) look(each);
  }
  for (size_t code = 0; code + 1 < thresholds.size(); ++code)
    for (float x : {thresholds[code], std::nextafter(thresholds[code], -2.0F), std::nextafter(thresholds[code], 2.0F)})
      look(x);
  for (int decade = 0; decade < 8; ++decade)
    for (float sign : {1.0F, -1.0F}) look(sign * std::pow(10.0F, static_cast<float>(-decade)));
  look(0);
  // The first and the last number of each bin.
  for (uint32_t bits = 0; bits <= 0x3f800000; bits += 1U << 16)
    for (uint32_t each : {bits, bits - 1})
      if (std::bit_cast<float>(each) <= 1)
        for (float sign : {1.0F, -1.0F}) look(sign * std::bit_cast<float>(each));
  return wrong;
}

template <bool is_signed>
int64_t count_wrong_codes_by_arithmetic() {
  return count_wrong_codes<is_signed>(
      [](float x) { return dynamic_code<is_signed>(x, dynamic_thresholds(is_signed).data()); });
}

template <bool is_signed>
int64_t count_wrong_codes_by_table() {
  using Bins = CodeBins<is_signed>;
  std::vector<uint32_t> entries;
  for (uint32_t bin = 0; bin < Bins::count; ++bin)
    entries.push_back(Bins::entry(bin, dynamic_thresholds(is_signed).data()));
  return count_wrong_codes<is_signed>([&](float x) {
    const uint32_t key = Bins::key(x);
    return Bins::code(entries[Bins::bin(key)], key);
  });
}

TEST_SUITE("unit") {
  TEST_CASE("the first number of each code is torchao's") {
    for (bool is_signed : {false, true}) {
      const std::array<float, 256>&map = dynamic_map(is_signed), &thresholds = dynamic_thresholds(is_signed);
      for (size_t code = 0; code + 1 < map.size(); ++code) {
        const float half = (map[code + 1] - map[code]) * 0.5F, before = std::nextafter(thresholds[code], -2.0F);
        CHECK(thresholds[code] - map[code] >= half);
        CHECK(before - map[code] < half);
      }
    }
  }

  TEST_CASE("codes by arithmetic are those of the thresholds") {
    CHECK(count_wrong_codes_by_arithmetic<true>() == 0);
    CHECK(count_wrong_codes_by_arithmetic<false>() == 0);
  }

  TEST_CASE("codes by a table of a number's bits are those of the thresholds, and NaN has a bin") {
    CHECK(count_wrong_codes_by_table<true>() == 0);
    CHECK(count_wrong_codes_by_table<false>() == 0);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    CHECK(CodeBins<true>::key(nan) == std::bit_cast<uint32_t>(CodeBins<true>::least));
    CHECK(CodeBins<false>::key(nan) == std::bit_cast<uint32_t>(CodeBins<false>::least));
  }

  TEST_CASE("adamw with 8-bit moments gives torchao's numbers") {
    const RandomValues values = start_values();
    std::unique_ptr<Session> session = trained(request_for(Moments::EightBit), values);
    const Tensor w = state_of(*session, "w"), m = state_of(*session, "w.exp_avg"),
                 v = state_of(*session, "w.exp_avg_sq"), scales = state_of(*session, "w.moment_scales");
    REQUIRE(m.type() == Type(DType::U8, {24, 256}));
    REQUIRE(scales.type() == Type(DType::F32, {24, 1, 2}));
    for (size_t i = 0; i < eight_bit_weights.size(); ++i) {
      const auto at = static_cast<int64_t>(i) * sampled_every;
      CAPTURE(at);
      CHECK(w.get(at) == doctest::Approx(eight_bit_weights[i]).epsilon(1e-5));
      CHECK(m.view().get_int(at) == eight_bit_means[i]);
      CHECK(v.view().get_int(at) == eight_bit_squares[i]);
    }
    for (size_t i = 0; i < eight_bit_scales.size(); ++i)
      CHECK(scales.get(static_cast<int64_t>(i)) == doctest::Approx(eight_bit_scales[i]).epsilon(1e-6));
  }

  TEST_CASE("moments of a small parameter stay in f32, and those in bf16 have half the bytes") {
    const RandomValues values = start_values();
    std::unique_ptr<Session> f32 = trained(request_for(Moments::F32), values),
                             bf16 = trained(request_for(Moments::BF16), values),
                             eight = trained(request_for(Moments::EightBit), values);
    CHECK(state_of(*eight, "s.exp_avg").type() == Type(DType::F32, {4, 256}));
    CHECK(state_of(*eight, "s") == state_of(*f32, "s"));
    CHECK(state_of(*bf16, "s.exp_avg").type() == Type(DType::BF16, {4, 256}));
    CHECK(distance(state_of(*bf16, "s"), state_of(*f32, "s")) < 2e-3);
    CHECK_FALSE(state_of(*bf16, "s") == state_of(*f32, "s"));
  }

  TEST_CASE("8-bit moments have the same bits on ranks that divide them") {
    RandomValues values;
    for (const auto& [name, rows, columns] : {std::tuple("x", 4, 64), {"c", 4, 512}, {"w", 64, 512}}) {
      Tensor tensor(Type(DType::F32, {rows, columns}));
      for (int64_t i = 0; i < tensor.type().elements(); ++i) tensor.view().set(i, static_cast<double>(i * 7 % 13 - 6));
      values.tensors[name] = tensor;
    }
    const auto train = [&](const char* mesh, int zero) {
      TrainingRequest request = request_for(Moments::EightBit);
      request.mesh = llvm::cantFail(parse_mesh(mesh));
      request.zero = zero;
      const CpuCatalog catalog;
      Result<Derived> derived =
          derive_program(forward_of(parsed(linear_loss), request), {}, request, cpu_device(), catalog, {});
      REQUIRE_MESSAGE(bool(derived), llvm::toString(derived.takeError()));
      RankTrainer trainer(std::move(derived->draft.program), request.mesh, values);
      for (int step = 0; step < 3; ++step) trainer.step(1);
      return trainer;
    };
    const RankTrainer alone = train("data=1", 0);
    CHECK(alone.states(0).at("w.exp_avg").type() == Type(DType::U8, {64, 512}));
    for (const auto& [mesh, zero] : {std::pair("data=2", 0), {"data=2", 1}, {"data=2", 3}, {"tensor=2", 0}}) {
      const RankTrainer together = train(mesh, zero);
      for (const auto& [name, state] : alone.states(0))
        for (int64_t rank = 0; rank < 2; ++rank) {
          CAPTURE(mesh);
          CAPTURE(zero);
          CAPTURE(name);
          CHECK(together.states(static_cast<size_t>(rank)).at(name) == together.own_part(name, state, rank));
        }
    }
  }
}

}  // namespace
}  // namespace plimsoll
