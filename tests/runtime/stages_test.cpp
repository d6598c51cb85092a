#include "ir/plan/check.h"
#include "ir/plan/serialize.h"
#include "ir/plan/summary.h"
#include "ir/support/strings.h"
#include "ir/support/units.h"
#include "runtime/comm/thread_ranks.h"
#include "tests/support/pipeline_plans.h"
#include "tests/support/rank_trainer.h"

#include <doctest/doctest.h>

#include <thread>

// Plans of pipelines run as one rank's plan does, and are predicted as published.

namespace plimsoll {
namespace {

using namespace testing;

int64_t trained_states(const Plan& plan) {
  return llvm::count_if(plan.states, [](const PlanState& state) { return state.trained; });
}

// The states of the model by name, as the first rank reads them.
std::map<std::string, Tensor> states_of(Session& session) {
  std::map<std::string, Tensor> states;
  if (session.rank() != 0) {
    llvm::cantFail(session.serve_pieces());
    return states;
  }
  for (const WholeState& state : session.whole_states())
    llvm::cantFail(session.read_whole_state(state, [&](const TensorView& bytes) {
      states[state.name] = Tensor(bytes.type, bytes.data);
      return Status::success();
    }));
  llvm::cantFail(session.end_serving());
  return states;
}

void check_runs_as_alone(TrainingRequest request, llvm::StringRef model = tied_attention) {
  RandomValues values;
  values.add_for(parsed(model));
  TrainingRequest alone = request;
  alone.mesh = {};
  alone.budget_bytes = 0;
  std::unique_ptr<Session> one = llvm::cantFail(Session::create(plan_for(parsed(model), alone), {1, true}));
  const std::vector<double> want = losses_of(*one, values, 3);
  const Plan plan = plan_for(parsed(model), request);
  REQUIRE_FALSE(bool(check_plan(plan)));
  const Plan read = llvm::cantFail(plan_from_bytes(llvm::cantFail(plan_to_bytes(plan))));
  auto ranks = make_thread_ranks(plan.mesh.ranks(), 30);
  std::vector<std::vector<double>> losses(ranks.size());
  std::map<std::string, Tensor> states;
  std::vector<std::thread> threads;
  for (auto& rank : ranks)
    threads.emplace_back([&, own = rank.get()] {
      std::unique_ptr<Session> session = llvm::cantFail(Session::create(read, {1, true, false, own}));
      losses[static_cast<size_t>(own->rank())] = losses_of(*session, values, 3);
      std::map<std::string, Tensor> got = states_of(*session);
      if (own->rank() == 0) states = std::move(got);
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<double>& each : losses)
    for (size_t i = 0; i < want.size(); ++i) CHECK(each[i] == doctest::Approx(want[i]).epsilon(1e-9));
  for (const auto& [name, tensor] : states_of(*one)) {
    CAPTURE(name);
    REQUIRE(states.count(name) == 1);
    for (int64_t i = 0; i < tensor.type().elements(); ++i)
      CHECK(states.at(name).get(i) == doctest::Approx(tensor.get(i)).epsilon(1e-7));
  }
}

// Equal layers, each of which hands a gradient on; what a stage has besides is small.
Graph layers(int count) {
  const std::string rows = "f32[4096,2048]", matrix = "f32[2048,2048]";
  std::string text = "graph @layers(%x: " + rows + ") state(%s: f32[2048] parameter trained";
  for (int i = 0; i < count; ++i) text += ", %w" + std::to_string(i) + ": " + matrix + " parameter trained";
  text += ") {\n  %g = mul(%x, %s) : " + rows + "\n";
  std::string last = "%g";
  for (int i = 0; i < count; ++i) {
    const std::string n = std::to_string(i);
    text += "  %h" + n + " = linear(" + last + ", %w" + n + ") : " + rows + "\n  %g" + n + " = gelu(%h" + n +
            ") {approximate=\"tanh\"} : " + rows + "\n";
    last = "%g" + n;
  }
  text += "  %loss = reduce_mean(" + last + ") {axes=[0,1], keep_dims=0} : f32[]\n  return loss=%loss\n}\n";
  return parsed(text);
}

// Equal layers as a transformer's are: what is between their two matmuls is eight times as wide as what goes on.
Graph wide_layers(int count) {
  const std::string rows = "f32[4096,1024]", wide = "f32[4096,8192]";
  std::string text = "graph @layers(%x: " + rows + ") state(%s: f32[1024] parameter trained";
  for (int i = 0; i < count; ++i)
    text += ", %up" + std::to_string(i) + ": f32[1024,8192] parameter trained, %down" + std::to_string(i) +
            ": f32[8192,1024] parameter trained";
  text += ") {\n  %y = mul(%x, %s) : " + rows + "\n";
  std::string last = "%y";
  for (int i = 0; i < count; ++i) {
    const std::string n = std::to_string(i);
    text += "  %h" + n + " = linear(" + last + ", %up" + n + ") : " + wide + "\n  %g" + n + " = gelu(%h" + n +
            ") {approximate=\"tanh\"} : " + wide + "\n  %y" + n + " = linear(%g" + n + ", %down" + n + ") : " + rows +
            "\n";
    last = "%y" + n;
  }
  text += "  %loss = reduce_mean(" + last + ") {axes=[0,1], keep_dims=0} : f32[]\n  return loss=%loss\n}\n";
  return parsed(text);
}

// The most bytes that gelus' results, which backward reads, take at any time.
int64_t most_gelu_bytes(const Plan& plan) {
  const PlanFunction& function = plan.functions.front();
  std::vector<int64_t> change(function.instructions.size() + 1, 0);
  for (const Slot& slot : plan.slots)
    if (slot.function == 0 && slot.category == Category::Saved && starts_with(slot.name, "g")) {
      change[static_cast<size_t>(slot.first)] += slot.bytes;
      change[static_cast<size_t>(slot.last) + 1] -= slot.bytes;
    }
  int64_t now = 0, most = 0;
  for (int64_t each : change) most = std::max(most, now += each);
  return most;
}

TEST_SUITE("unit") {
  TEST_CASE("plans of pipelines run as one rank's plan does, dead bytes poisoned") {
    check_runs_as_alone(on_mesh("stage=2", 1));
    check_runs_as_alone(on_mesh("stage=2", 2));
    check_runs_as_alone(on_mesh("stage=3", 2));
    check_runs_as_alone(on_mesh("stage=3", 2, PipelineSchedule::ZeroBubble));
    check_runs_as_alone(on_mesh("stage=2", 2, PipelineSchedule::Interleaved));
    check_runs_as_alone(on_mesh("stage=2", 1, PipelineSchedule::V));
    check_runs_as_alone(on_mesh("stage=2", 2, PipelineSchedule::V));
    check_runs_as_alone(on_mesh("data=2,stage=2", 1, PipelineSchedule::V));
    TrainingRequest request = on_mesh("stage=2", 2);
    request.accumulate = 2;
    check_runs_as_alone(request);
    for (int zero : {0, 1, 3}) {
      request = on_mesh("data=2,stage=2", 1);
      request.zero = zero;
      check_runs_as_alone(request);
    }
    check_runs_as_alone(on_mesh("tensor=2,stage=2", 2), packed_blocks);
    request = on_mesh("data=2,tensor=2,stage=2", 1);
    request.zero = 3;
    check_runs_as_alone(request, packed_blocks);
  }

  TEST_CASE("each stage of a pipeline is fitted within the budget, and runs as alone") {
    TrainingRequest request = on_mesh("stage=2", 2);
    const Plan plain = plan_for(parsed(tied_attention), request);
    int64_t rematerialised = 0;
    for (double share : {0.95, 0.9, 0.8}) {
      CAPTURE(share);
      request.budget_bytes = 0;
      for (const Plan* stage : plain.stages()) {
        const Arena& arena = stage->arenas.front();
        const auto live = static_cast<double>(arena.bytes - arena.persistent_bytes);
        request.budget_bytes =
            std::max(request.budget_bytes, stage->promised_bytes() - static_cast<int64_t>((1 - share) * live));
      }
      Result<CompileResult> result = compiled(parsed(tied_attention), request);
      REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
      if (!result->fits) continue;
      for (const Plan* stage : result->plan.stages()) {
        CHECK(stage->promised_bytes() <= request.budget_bytes);
        rematerialised += stage->fit.rematerialised;
        CHECK(llvm::any_of(stage->functions[0].instructions,
                           [](const Instruction& each) { return each.attrs.has("peer") && each.done >= 0; }));
      }
      check_runs_as_alone(request);
    }
    CHECK(rematerialised > 0);
  }

  // Eight equal layers are four and four. Where the last stage has room for three quarters of what its four need, and
  // may compute nothing again, it has fewer: one micro-batch's values and the states are what it holds, layer by layer.
  TEST_CASE("the stage with less room has fewer layers, and remats where these take less time") {
    TrainingRequest request = on_mesh("stage=2", 4);
    request.recompute = request.offload = false;
    const Plan even = plan_for(layers(8), request);
    REQUIRE(trained_states(even) == 5);  // with the scales
    REQUIRE(trained_states(even.later_stages.front()) == 4);
    const Plan& last = even.later_stages.front();
    request.stage_budgets = {0, last.promised_bytes() - last.promised_bytes() / 4};
    const Plan uneven = plan_for(layers(8), request);
    CHECK(trained_states(uneven) > 5);
    CHECK(uneven.later_stages.front().promised_bytes() <= request.stage_budgets[1]);
    CHECK(uneven.later_stages.front().arenas.front().budget_bytes == request.stage_budgets[1]);
    CHECK(uneven.predicted_step_us > 1.1 * even.predicted_step_us);
    // A tenth less room costs less by remats of activations than by a fifth layer on the first stage.
    request.recompute = true;
    request.stage_budgets[1] = last.promised_bytes() - (int64_t{40} << 20);
    const Plan tight = plan_for(layers(8), request);
    CHECK(trained_states(tight) == 5);
    CHECK(tight.later_stages.front().fit.rematerialised > 0);
    CHECK(tight.predicted_step_us < uneven.predicted_step_us);
  }

  TEST_CASE("tables of blocks foresee what the plans of stages need") {
    for (int64_t stages : {2, 4})
      for (int64_t micro_batches : {1, 4, 8})
        for (PipelineSchedule schedule : {PipelineSchedule::OneForwardOneBackward, PipelineSchedule::ZeroBubble}) {
          TrainingRequest request = on_mesh("stage=" + std::to_string(stages), micro_batches, schedule);
          request.clip_grad_norm = 0.5;  // as compiled() has it
          const CpuCatalog catalog;
          const DerivedStages derived =
              llvm::cantFail(derive_stages(forward_of(layers(8), request), request, runs_of_schedule(schedule, stages),
                                           StageDevices(cpu_device(), catalog), {}));
          const Plan plan = plan_for(layers(8), request);
          for (const Plan* stage : plan.stages()) {
            CAPTURE(stages);
            CAPTURE(micro_batches);
            CAPTURE(schedule_names[static_cast<size_t>(schedule)].str());
            CAPTURE(stage->stage);
            const double foreseen = static_cast<double>(derived.cuts[static_cast<size_t>(stage->stage)].needs_bytes) /
                                    static_cast<double>(stage->arenas.front().bytes);
            CHECK(foreseen >= 0.9);
            // What waits for its gradients of weights counts whole, though some of it is gone by then.
            CHECK(foreseen <= (schedule == PipelineSchedule::ZeroBubble ? 1.3 : 1.15));
          }
        }
  }

  // Eight layers of t on the one device take 3 t each on the other: six and two take 6 t both.
  TEST_CASE("stages on unlike devices have layers by their speed, and plans of their own") {
    TrainingRequest request = on_mesh("stage=2", 4);
    request.optimizer.kind = OptimizerKind::Sgd;
    const DeviceDescription quick = cpu_device(), slow = slower(3);
    const Plan plan = llvm::cantFail(compiled_on({quick, slow}, layers(8), request)).plan;
    const Plan& last = plan.later_stages.front();
    CHECK(trained_states(plan) == 7);  // with the scales
    CHECK(trained_states(last) == 2);
    CHECK(plan.device.name == "cpu");
    CHECK(last.device.name == "slow");
    CHECK(plan.device_of(1).name == "slow");
    CHECK_FALSE(plan.has_one_device());
    const Plan turned = llvm::cantFail(compiled_on({slow, quick}, layers(8), request)).plan;
    CHECK(trained_states(turned) == 3);
    // Both compute as long, but for the bubble of 1 in 5.
    for (const TimeSummary& stage : summarize_stages(plan))
      CHECK(stage.awaited_us / plan.predicted_step_us == doctest::Approx(0.2).epsilon(0.1));
    // An instruction's time is that of its stage's device.
    const auto linear_us = [](const Plan& stage) {
      for (const Instruction& each : stage.functions.front().instructions)
        if (each.op == "linear") return each.predicted_us;
      return 0.0;
    };
    CHECK(linear_us(last) == doctest::Approx(3 * linear_us(plan)).epsilon(0.01));
    const Plan read = llvm::cantFail(plan_from_bytes(llvm::cantFail(plan_to_bytes(plan))));
    REQUIRE_FALSE(bool(check_plan(read)));
    CHECK(to_json(read.later_stages.front().device) == to_json(last.device));
  }

  // States of AdamW are 3 x 16 MiB per layer, 384 MiB in all, and the stages have room for 336 + 36.
  TEST_CASE("a refused pipeline says which stage lacks how much, and which budgets would do") {
    TrainingRequest request = on_mesh("stage=2", 2);
    request.stage_budgets = {int64_t{400} << 20, int64_t{100} << 20};
    const std::vector<DeviceDescription> devices{cpu_device(), slower(2)};
    const CompileResult refused = llvm::cantFail(compiled_on(devices, layers(8), request));
    REQUIRE_FALSE(refused.fits);
    const std::string text = shortfall(refused);
    CAPTURE(text);
    const bool first = refused.plan.stage == 0;
    CHECK(starts_with(text, first ? "stage 0 (rank 0, cpu) needs " : "stage 1 (rank 1, slow) needs "));
    CHECK(llvm::StringRef(text).contains(first ? ", the budget is 400 MiB" : ", the budget is 100 MiB"));
    CHECK(llvm::StringRef(text).contains("; budgets of "));
    REQUIRE(refused.stages.size() == 2);
    for (size_t i = 0; i < 2; ++i)
      request.stage_budgets[i] = std::max(request.stage_budgets[i], round_up_readable(refused.stages[i].needs_bytes));
    CHECK(llvm::cantFail(compiled_on(devices, layers(8), request)).fits);
    // One budget for all: the least that works for the stage that needs most.
    request.stage_budgets.clear();
    request.budget_bytes = int64_t{100} << 20;
    const CompileResult both = llvm::cantFail(compiled_on(devices, layers(8), request));
    REQUIRE_FALSE(both.fits);
    CHECK(ends_with(shortfall(both), " would be enough for every stage"));
    request.budget_bytes = 0;
    for (const StageNeed& stage : both.stages)
      request.budget_bytes = std::max(request.budget_bytes, round_up_readable(stage.needs_bytes));
    CHECK(llvm::cantFail(compiled_on(devices, layers(8), request)).fits);
  }

  TEST_CASE("the predicted bubble and the kept activations of equal stages are those of the closed forms") {
    const int layer_count = 8;
    for (int64_t stages : {2, 4})
      for (int64_t micro_batches : {4, 8, 16}) {
        CAPTURE(stages);
        CAPTURE(micro_batches);
        const auto following = static_cast<double>(stages - 1), all = static_cast<double>(micro_batches);
        // `per_stage` runs, and what the stages keep at the most: micro-batches times runs.
        auto check_plans = [&](PipelineSchedule schedule, int64_t per_stage, double bubble, auto kept_on) {
          CAPTURE(per_stage);
          TrainingRequest request = on_mesh("stage=" + std::to_string(stages), micro_batches, schedule);
          request.optimizer.kind = OptimizerKind::Sgd;
          request.runs_per_stage = schedule == PipelineSchedule::Interleaved ? per_stage : 0;
          const Plan plan = plan_for(layers(layer_count), request), wide = plan_for(wide_layers(layer_count), request);
          CHECK(plan.pipeline.schedule == name_of({schedule, stages, per_stage}));
          double worst = 0;
          for (const TimeSummary& stage : summarize_stages(plan))
            worst = std::max(worst, stage.awaited_us / plan.predicted_step_us);
          // Of zero-bubble the greedy order sees no transfers.
          const double limit = schedule == PipelineSchedule::ZeroBubble ? 0.04 : 0.02;
          CHECK(std::abs(worst - bubble / (1 + bubble)) < limit);
          const double run_bytes = 4096.0 * 8192 * 4 / all * layer_count / static_cast<double>(stages * per_stage);
          for (const Plan* stage : wide.stages())
            CHECK(static_cast<double>(most_gelu_bytes(*stage)) / run_bytes ==
                  doctest::Approx(static_cast<double>(kept_on(stage->stage))).epsilon(0.02));
        };
        check_plans(PipelineSchedule::OneForwardOneBackward, 1, following / all,
                    [&](int64_t stage) { return std::min(stages - stage, micro_batches); });
        for (int64_t per_stage : {2, 4}) {
          if (stages * per_stage > layer_count) continue;
          check_plans(PipelineSchedule::Interleaved, per_stage, following / all / static_cast<double>(per_stage),
                      [&](int64_t stage) {
                        return std::min(2 * (stages - stage - 1) + (per_stage - 1) * stages + 1,
                                        per_stage * micro_batches);
                      });
        }
        // A third of the usual bubble, as forward, gradients of inputs and gradients of weights take about as long.
        check_plans(PipelineSchedule::ZeroBubble, 1, following / all / 3,
                    [&](int64_t) { return std::min(stages, micro_batches); });
        if (micro_batches < 2 * stages - 1) continue;
        // Only the first micro-batch is waited for, half a stage's forward at each of the others.
        check_plans(PipelineSchedule::V, 2, following / all / 6, [&](int64_t) { return 2 * stages; });
      }
  }

  TEST_CASE("a model that cannot be cut as asked is refused") {
    auto refusal = [](const Graph& forward, llvm::StringRef mesh, int64_t micro_batches) {
      Result<CompileResult> result = compiled(forward, on_mesh(mesh, micro_batches));
      REQUIRE_FALSE(bool(result));
      return take_diag(result.takeError()).text();
    };
    CHECK(refusal(layers(2), "stage=2", 5) == "--micro-batches 5: a rank's batch of 4096 does not divide");
    CHECK(starts_with(refusal(layers(2), "stage=9", 0), "the model cannot be cut into 9 stages"));
  }
}

}  // namespace
}  // namespace plimsoll
