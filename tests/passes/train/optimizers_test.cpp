#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "passes/train/optimizer_settings.h"
#include "passes/train/update_rules.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/passes/train/optimizer_numbers.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>
#include <cmath>

// Planned steps of every optimizer give the numbers of PyTorch's, in a poisoned arena.

namespace plimsoll {
namespace {

using namespace testing;

// The gradient of each parameter is its x times itself.
constexpr llvm::StringLiteral model = R"(
graph @squares(%x_tall: f32[3,2], %x_wide: f32[2,4], %x_bias: f32[3], %x_cube: f32[2,2,3]) state(%tall: f32[3,2] parameter trained, %wide: f32[2,4] parameter trained, %bias: f32[3] parameter trained, %cube: f32[2,2,3] parameter trained) {
  %half = constant() {value=f32[]<0.5>} : f32[]
  %tall_x = mul(%tall, %x_tall) : f32[3,2]
  %tall_xx = mul(%tall_x, %tall) : f32[3,2]
  %tall_sum = reduce_sum(%tall_xx) {axes=[0,1], keep_dims=0} : f32[]
  %wide_x = mul(%wide, %x_wide) : f32[2,4]
  %wide_xx = mul(%wide_x, %wide) : f32[2,4]
  %wide_sum = reduce_sum(%wide_xx) {axes=[0,1], keep_dims=0} : f32[]
  %bias_x = mul(%bias, %x_bias) : f32[3]
  %bias_xx = mul(%bias_x, %bias) : f32[3]
  %bias_sum = reduce_sum(%bias_xx) {axes=[0], keep_dims=0} : f32[]
  %cube_x = mul(%cube, %x_cube) : f32[2,2,3]
  %cube_xx = mul(%cube_x, %cube) : f32[2,2,3]
  %cube_sum = reduce_sum(%cube_xx) {axes=[0,1,2], keep_dims=0} : f32[]
  %sum = add_n(%tall_sum, %wide_sum, %bias_sum, %cube_sum) : f32[]
  %loss = mul(%sum, %half) : f32[]
  return loss=%loss
}
)";
constexpr const char* parameters[] = {"tall", "wide", "bias", "cube"};

// As in tests/golden/make_optimizer_numbers.py.
RandomValues start_values() {
  RandomValues values;
  const Graph graph = parsed(model);
  for (size_t p = 0; p < std::size(parameters); ++p)
    for (const auto& [prefix, phase] : {std::pair("", 0.5), std::pair("x_", 2.0)}) {
      const std::string name = std::string(prefix) + parameters[p];
      Tensor tensor(graph.type(graph.find_value(name)));
      for (int64_t i = 0; i < tensor.type().elements(); ++i)
        tensor.view().set(i, std::sin(1.3 * static_cast<double>(i) + static_cast<double>(p) + phase));
      values.tensors[name] = tensor;
    }
  return values;
}

TrainingRequest request_for(OptimizerKind kind, double learning_rate) {
  TrainingRequest request;
  request.optimizer = default_optimizer(kind);
  request.optimizer.learning_rate = learning_rate;
  request.optimizer.weight_decay = 0.1;
  request.groups = {{.pattern = "^bias$", .weight_decay = 0}};
  return request;
}

Plan planned(const TrainingRequest& request) {
  CpuCatalog catalog;
  Result<Plan> plan = fitting_plan(compile_training(parsed(model), request, cpu_device(), catalog));
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  return std::move(*plan);
}

// All parameters after four steps, or their states of that suffix.
std::vector<double> trained(const TrainingRequest& request, const std::string& suffix = "") {
  const RandomValues values = start_values();
  std::unique_ptr<Session> session = started(planned(request), values);
  OneBatch data(values, session->inputs());
  for (int step = 0; step < 4; ++step) REQUIRE(bool(session->step(data)));
  std::vector<double> all;
  for (const char* name : parameters) {
    Status failed = session->read_state(name + suffix, [&](const TensorView& state) {
      for (int64_t i = 0; i < state.elements(); ++i) all.push_back(state.get(i));
      return Status::success();
    });
    REQUIRE_FALSE(bool(failed));
  }
  return all;
}

void check_close(const std::vector<double>& got, const std::string& name, double tolerance) {
  const std::vector<double>& want = optimizer_numbers.at(name);
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(name);
    CAPTURE(i);
    CHECK(std::abs(got[i] - want[i]) <= tolerance);
  }
}

constexpr double in_f32 = 3e-6;  // parameters are near 1, and four steps round a few times each

TEST_SUITE("unit") {
  TEST_CASE("every optimizer gives PyTorch's numbers") {
    TrainingRequest sgd = request_for(OptimizerKind::Sgd, 0.1);
    sgd.optimizer.momentum = 0.9;
    sgd.optimizer.nesterov = true;
    check_close(trained(sgd), "sgd", in_f32);
    check_close(trained(request_for(OptimizerKind::Adam, 0.05)), "adam", in_f32);
    check_close(trained(request_for(OptimizerKind::AdamW, 0.05)), "adamw", in_f32);
    check_close(trained(request_for(OptimizerKind::Adafactor, 0.1)), "adafactor", in_f32);
    check_close(trained(request_for(OptimizerKind::Lion, 0.05)), "lion", in_f32);
    TrainingRequest rmsprop = request_for(OptimizerKind::RmsProp, 0.02);
    rmsprop.optimizer.momentum = 0.5;
    check_close(trained(rmsprop), "rmsprop", in_f32);
    check_close(trained(request_for(OptimizerKind::Adagrad, 0.1)), "adagrad", in_f32);
    check_close(trained(request_for(OptimizerKind::Lamb, 0.05)), "lamb", in_f32);
  }

  // An update is 0.05 * 0.2 * sqrt(4) times singular values near 1; bf16 keeps two to three digits of them.
  TEST_CASE("muon updates matrices as PyTorch's and everything else as adamw") {
    TrainingRequest muon = request_for(OptimizerKind::Muon, 0.05);
    muon.groups.push_back({.pattern = "tall|wide", .optimizer = OptimizerKind::Muon});
    const std::vector<double> got = trained(muon);
    check_close(got, "muon", 3e-3);
    const std::vector<double>& want = optimizer_numbers.at("muon");
    for (size_t i = 14; i < want.size(); ++i) CHECK(std::abs(got[i] - want[i]) <= in_f32);  // behind tall and wide
    // Nothing says that these are matrices of hidden layers, so without the group all of them have adamw.
    TrainingRequest adamw = request_for(OptimizerKind::AdamW, 0.05);
    muon.groups.pop_back();
    CHECK(trained(muon) == trained(adamw));
  }

  TEST_CASE("gradients are clipped by value, then by norm") {
    TrainingRequest request = request_for(OptimizerKind::Sgd, 0.1);
    request.optimizer.momentum = 0.9;
    request.optimizer.nesterov = true;
    request.clip_grad_value = 0.6;
    request.clip_grad_norm = 1.5;
    check_close(trained(request), "clipped", in_f32);
    // Sums of two equal micro-batches, divided by their weight, are the same gradients.
    request.accumulate = 2;
    check_close(trained(request), "clipped", in_f32);
  }

  TEST_CASE("a group has a rate and a decay of its own") {
    TrainingRequest request = request_for(OptimizerKind::AdamW, 0.05);
    request.groups = {{.pattern = "^b", .rate = 0.1}, {.pattern = "b", .rate = 0.5}};
    request.groups[1].pattern = "^bias$";  // the first that matches decides
    check_close(trained(request), "slow bias", in_f32);
    request.groups = {{.pattern = "nothing", .rate = 2}};
    CpuCatalog catalog;
    Result<Plan> refused = fitting_plan(compile_training(parsed(model), request, cpu_device(), catalog));
    REQUIRE_FALSE(bool(refused));
    CHECK(take_diag(refused.takeError()).text() == "the group 'nothing' matches the name of no trained parameter");
  }

  TEST_CASE("the running mean of the weights is PyTorch's EMA") {
    TrainingRequest request = request_for(OptimizerKind::AdamW, 0.05);
    request.ema = 0.75;
    check_close(trained(request), "adamw", in_f32);
    check_close(trained(request, ".ema"), "ema", in_f32);
  }

  TEST_CASE("an overflow under a loss scale changes no parameter and no state of an optimizer") {
    for (size_t kind = 0; kind < std::size(optimizer_names); ++kind) {
      CAPTURE(optimizer_names[kind].str());
      TrainingRequest request = request_for(static_cast<OptimizerKind>(kind), 0.1);
      request.precision = "fp16";
      request.optimizer.momentum = 0.5;
      request.ema = 0.9;
      request.clip_grad_value = 1;
      if (request.optimizer.kind == OptimizerKind::Muon)
        request.groups.push_back({.pattern = "tall", .optimizer = OptimizerKind::Muon});
      RandomValues values = start_values();
      Plan plan = planned(request);
      std::vector<std::string> kept;
      for (const PlanState& state : plan.states)
        if (state.role == StateRole::Optimizer || state.role == StateRole::Parameter)
          kept.push_back(plan.slots[static_cast<size_t>(state.slot)].name);
      std::unique_ptr<Session> session = started(std::move(plan), values);
      auto states = [&] {
        std::vector<double> all;
        for (const std::string& name : kept)
          llvm::cantFail(session->read_state(name, [&](const TensorView& state) {
            for (int64_t i = 0; i < state.elements(); ++i) all.push_back(state.get(i));
            return Status::success();
          }));
        return all;
      };
      OneBatch data(values, session->inputs());
      REQUIRE(bool(session->step(data)));
      const std::vector<double> before = states();
      const TensorView x = values.tensors.at("x_wide").view();
      const double usual = x.get(0);
      x.set(0, INFINITY);
      REQUIRE(bool(session->step(data)));
      CHECK(states() == before);
      x.set(0, usual);
      REQUIRE(bool(session->step(data)));
      CHECK(states() != before);
    }
  }

  // Of two layers below a head: the embedding is decayed three times, the head not at all.
  TEST_CASE("rates fall from layer to layer") {
    TrainingRequest request;
    request.layer_rate = 0.5;
    const UpdateRules rules = find_update_rules(parsed(R"(
graph @layers(%ids: i64[4]) state(
    %head.bias: f32[8] parameter trained,
    %h.1.w: f32[8,8] parameter trained,
    %h.0.w: f32[8,8] parameter trained,
    %embed: f32[9,8] parameter trained) {
  %e = gather(%embed, %ids) {axis=0} : f32[4,8]
  %a = linear(%e, %h.0.w) : f32[4,8]
  %b = linear(%a, %h.1.w) : f32[4,8]
  %c = add(%b, %head.bias) : f32[4,8]
  %loss = reduce_mean(%c) {axes=[0,1], keep_dims=0} : f32[]
  return loss=%loss
})"),
                                                request);
    CHECK(rules.lookup("embed").rate == 0.125);
    CHECK(rules.lookup("h.0.w").rate == 0.25);
    CHECK(rules.lookup("h.1.w").rate == 0.5);
    CHECK(rules.lookup("head.bias").rate == 1);
  }
}

}  // namespace
}  // namespace plimsoll
