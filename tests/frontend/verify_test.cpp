#include "frontend/api/verify.h"

#include "ir/builder.h"
#include "ir/support/strings.h"
#include "passes/budget/budget_report.h"
#include "passes/train/training_step.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/small_training.h"

// verify agrees with a right plan, and names a rewrite, a layout and an update that are wrong on purpose.

namespace plimsoll {
namespace {

using namespace testing;

constexpr llvm::StringLiteral model = R"(
graph @mlp(%x: f32[4,6], %labels: i64[4]) state(%w1: f32[6,8] parameter trained, %b1: f32[8] parameter trained, %w2: f32[8,3] parameter trained, %rng: i64[2] counter fill=0.0) {
  %h0 = matmul(%x, %w1) : f32[4,8]
  %h = add(%h0, %b1) : f32[4,8]
  %d = dropout(%h, %rng) {id=0, ratio=0.3} : f32[4,8]
  %g = gelu(%d) {approximate="none"} : f32[4,8]
  %y = matmul(%g, %w2) : f32[4,3]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {reduction="mean"} : f32[], f32[4], f32[]
  return loss=%loss
}
)";

RandomValues values_of_model() {
  RandomValues values;
  values.add_for(parsed(model));
  return values;
}

// Starts as `started` of small_training.h does.
StepStart start_of(const RandomValues& values, int64_t batches = 1) {
  StepStart start;
  start.seed = 1;
  start.load = [&values](llvm::StringRef name, const TensorView& into) {
    std::memcpy(into.data, values.tensors.at(name.str()).data(), static_cast<size_t>(into.type.bytes()));
    return Status::success();
  };
  NamedTensors batch;
  for (const char* input : {"x", "labels"}) batch.emplace(input, values.tensors.at(input));
  start.batches.assign(static_cast<size_t>(batches), batch);
  return start;
}

Plan compiled(const TrainingRequest& request) {
  CpuCatalog catalog;
  return llvm::cantFail(fitting_plan(compile_training(parsed(model), request, cpu_device(), catalog)));
}

// Turns the first sum into a difference.
Result<bool> plant(Graph& graph, PassContext&) {
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (node.op->name != "add") continue;
    Builder b(graph, id);
    graph.replace_uses(node.results[0], b.emit("sub", node.operands));
    return true;
  }
  return false;
}

constinit const PassInfo pass_planted{.name = "planted", .summary = "wrong on purpose", .run = plant};

TEST_SUITE("unit") {
  TEST_CASE("verify agrees with right plans") {
    const RandomValues values = values_of_model();
    TrainingRequest adam, accumulating, clipped;
    accumulating.accumulate = 2;
    accumulating.optimizer.kind = OptimizerKind::Sgd;
    accumulating.optimizer.momentum = 0.9;
    clipped.clip_grad_norm = 0.01;
    for (const TrainingRequest& request : {adam, accumulating, clipped}) {
      std::unique_ptr<Session> session = started(compiled(request), values);
      OneBatch data(values, session->inputs());
      const Program program = llvm::cantFail(make_reference_program(parsed(model), request));
      const StepComparison comparison =
          llvm::cantFail(compare_step(*session, data, program, start_of(values, request.accumulate)));
      CHECK(comparison.agrees());
      CHECK(comparison.loss == doctest::Approx(comparison.reference_loss).epsilon(1e-6));
      // The loss, three gradients, and what the step leaves of every state.
      CHECK(comparison.tensors.size() >= 1 + 3 + 3);
      CHECK_FALSE(llvm::cantFail(find_wrong_instruction(*started(compiled(request), values), data)).has_value());
    }
  }

  TEST_CASE("a plan records its job: groups, rates by layer, loss and loss scale") {
    const RandomValues values = values_of_model();
    TrainingRequest request;
    request.loss = "loss";
    request.optimizer.weight_decay = 0.5;
    request.groups = {{"^w1$", 0.1, std::nullopt, std::nullopt, 0}, {"", std::nullopt, 0.0, std::nullopt, 2}};
    request.ema = 0.9;
    const Plan plan = compiled(request);
    const TrainingRequest recorded = request_of(plan);
    CHECK(recorded.loss == "loss");
    CHECK(recorded.groups == request.groups);
    const auto agrees_with = [&](const TrainingRequest& of_reference) {
      std::unique_ptr<Session> session = started(Plan(plan), values);
      OneBatch data(values, session->inputs());
      const Program program = llvm::cantFail(make_reference_program(parsed(model), of_reference));
      return llvm::cantFail(compare_step(*session, data, program, start_of(values))).agrees();
    };
    CHECK(agrees_with(recorded));
    TrainingRequest without = recorded;
    without.groups.clear();
    CHECK_FALSE(agrees_with(without));
    request.precision = "fp16";
    request.first_loss_scale = 1024;
    CHECK(request_of(compiled(request)).first_loss_scale == 1024);
  }

  TEST_CASE("a plan's job names all of its weights, however long their names are together") {
    const std::string prefix(6000, 'a');
    std::string named = model.str();
    for (const char* weight : {"%w1", "%b1", "%w2"})
      for (size_t at = 0; (at = named.find(weight, at)) != std::string::npos;) named.insert(at + 1, prefix);
    CpuCatalog catalog;
    TrainingRequest request;
    request.freeze = {"b1$"};
    const Plan plan = llvm::cantFail(fitting_plan(compile_training(parsed(named), request, cpu_device(), catalog)));
    const TrainingRequest recorded = request_of(plan);
    Graph graph = parsed(named);
    llvm::cantFail(select_trained(graph, recorded.train, recorded.freeze));
    for (const State& state : graph.states)
      CHECK(state.trained == llvm::StringRef(graph.value(state.value).name).contains("w"));
  }

  TEST_CASE("verify tells gradients that differ from updates that differ") {
    const RandomValues values = values_of_model();
    TrainingRequest request, other;
    other.optimizer.learning_rate = 2 * request.optimizer.learning_rate;
    const Program program = llvm::cantFail(make_reference_program(parsed(model), request));
    std::unique_ptr<Session> session = started(compiled(other), values);
    OneBatch data(values, session->inputs());
    const StepComparison comparison = llvm::cantFail(compare_step(*session, data, program, start_of(values)));
    CHECK_FALSE(comparison.agrees());
    for (const TensorDifference& each : comparison.tensors) {
      const bool is_parameter = each.name == "w1" || each.name == "w2" || each.name == "b1";
      CHECK(each.agrees() ==
            !(each.kind == TensorDifference::Kind::State && (is_parameter || each.name == "learning_rate")));
    }
  }

  TEST_CASE("a wrong rewrite among right ones is found by its name") {
    const RandomValues values = values_of_model();
    TrainingRequest request;
    Graph graph = parsed(model);
    std::vector<ProgramAfter> programs{{"import", llvm::cantFail(make_reference_program(graph, request))}};
    const auto run = [&](const PassInfo& pass) {
      PassManager passes;
      llvm::cantFail(passes.run(graph, Pipeline{{{&pass, {}}}}));
      programs.push_back({pass.name.str(), llvm::cantFail(make_reference_program(graph, request))});
    };
    for (const char* pass : {"fold-constants", "simplify", "cse", "recover-activations"}) run(*find_pass(pass));
    CHECK_FALSE(llvm::cantFail(find_wrong_pass(programs, start_of(values), 1e-4)).has_value());
    run(pass_planted);
    for (const char* pass : {"dce", "recover-linear", "simplify"}) run(*find_pass(pass));
    const std::optional<Culprit> culprit = llvm::cantFail(find_wrong_pass(programs, start_of(values), 1e-4));
    REQUIRE(culprit.has_value());
    CHECK(culprit->what == "pass planted");
    // %d is the first value that both have.
    CHECK_MESSAGE(ends_with(culprit->detail, "the first value that changed is %d"), culprit->detail);
    CHECK(llvm::StringRef(culprit->text).contains("sub("));
    CHECK(culprit->tensors.count("x") == 1);
    CHECK(culprit->tensors.count("w1") == 1);
  }

  // No pass changes the forward graph, and a gradient has the name of an output that accumulation reads.
  TEST_CASE("verify of a model that is clean, with a weight called weight") {
    constexpr llvm::StringLiteral clean = R"(
graph @clean(%x: f32[4,3], %labels: i64[4]) state(%weight: f32[3,2] parameter trained) {
  %y = linear(%x, %weight) {transpose_w=0} : f32[4,2]
  %loss, %lse, %count = cross_entropy(%y, %labels) {reduction="mean"} : f32[], f32[4], f32[]
  return loss=%loss
}
)";
    RandomValues values;
    values.add_for(parsed(clean));
    const TrainingRequest request;
    CpuCatalog catalog;
    const Plan plan = llvm::cantFail(fitting_plan(compile_training(parsed(clean), request, cpu_device(), catalog)));
    std::unique_ptr<Session> session = started(Plan(plan), values);
    OneBatch data(values, session->inputs());
    const Program program = llvm::cantFail(make_reference_program(parsed(clean), request));
    CHECK(llvm::cantFail(compare_step(*session, data, program, start_of(values))).agrees());
    const std::vector<ProgramAfter> programs = llvm::cantFail(programs_of_passes(parsed(clean), plan, request));
    CHECK(programs.size() > 1);
    for (const ProgramAfter& each : programs) CHECK_MESSAGE(each.program.functions.size() == 1, each.pass);
    CHECK_FALSE(llvm::cantFail(find_wrong_pass(programs, start_of(values), 1e-4)).has_value());
  }

  // Two layers in a row, so that gradients read what is made again.
  constexpr llvm::StringLiteral deep = R"(
graph @deep(%x: f32[8,16], %labels: i64[8]) state(%w1: f32[16,16] parameter trained, %w2: f32[16,16] parameter trained) {
  %h1 = matmul(%x, %w1) : f32[8,16]
  %a1 = tanh(%h1) : f32[8,16]
  %h2 = matmul(%a1, %w2) : f32[8,16]
  %a2 = tanh(%h2) : f32[8,16]
  %a3 = exp(%a2) : f32[8,16]
  %loss, %lse, %weight = cross_entropy(%a3, %labels) {reduction="mean"} : f32[], f32[8], f32[]
  return loss=%loss
}
)";

  // The first op of that name in a fused op's body is another one.
  void plant_in_body(Attrs & attrs, const std::string& op) {
    std::string body = attrs.get_string("body").str();
    const size_t at = body.find(" " + op + "(");
    if (at != std::string::npos) body.replace(at + 1, op.size(), "neg");
    attrs.set("body", body);
  }

  TEST_CASE("a remat that reads the wrong value is found, and so is a right one") {
    RandomValues values;
    values.add_for(parsed(deep));
    TrainingRequest request;
    request.optimizer.kind = OptimizerKind::Sgd;
    CpuCatalog catalog;
    const auto compile = [&](const TrainingRequest& asked) {
      return llvm::cantFail(compile_training(parsed(deep), asked, cpu_device(), catalog));
    };
    request.split = 1;
    request.budget_bytes = 1;
    request.budget_bytes = compile(request).plan.promised_bytes();  // the least that remats reach
    Plan plan = compile(request).plan;
    REQUIRE(plan.fit.rematerialised > 0);
    const Program scheduled = llvm::cantFail(programs_of_passes(parsed(deep), plan, request)).back().program;
    const StepStart start = start_of(values);
    CHECK_FALSE(llvm::cantFail(find_wrong_schedule(plan, scheduled, start, 1e-6)).has_value());
    int planted = -1;
    for (Instruction& instruction : plan.functions.front().instructions) {
      const std::string& name = plan.slots[static_cast<size_t>(instruction.results.front())].name;
      if (name.find(".recompute") == std::string::npos) continue;
      planted = static_cast<int>(&instruction - plan.functions.front().instructions.data());
      if (instruction.op == "fused") {
        plant_in_body(instruction.attrs, "tanh");
        break;
      }
      instruction.op = instruction.op == "tanh" ? "neg" : "tanh";
      if (instruction.operands.size() > 1) instruction.operands.resize(1), instruction.attrs = {};
      break;
    }
    REQUIRE(planted >= 0);
    const std::optional<Culprit> culprit = llvm::cantFail(find_wrong_schedule(plan, scheduled, start, 1e-3));
    REQUIRE(culprit.has_value());
    CHECK_MESSAGE(starts_with(culprit->what, "instruction " + std::to_string(planted) + " of train_step"),
                  culprit->what);
    CHECK_MESSAGE(llvm::StringRef(culprit->detail).contains(".recompute differs by"), culprit->detail);
  }

  TEST_CASE("a plan in chunks is compared with its split, and a wrong split is found by its name") {
    RandomValues values;
    values.add_for(parsed(deep));
    TrainingRequest request;
    request.split = 2;
    request.split_from = "h1";
    CpuCatalog catalog;
    const Plan plan = llvm::cantFail(fitting_plan(compile_training(parsed(deep), request, cpu_device(), catalog)));
    REQUIRE(plan.fit.chunks == 2);
    std::vector<ProgramAfter> programs = llvm::cantFail(programs_of_passes(parsed(deep), plan, request));
    const StepStart start = start_of(values);
    const auto split = llvm::find_if(programs, [](const ProgramAfter& each) { return each.pass == "split-batch"; });
    REQUIRE(split != programs.end());
    CHECK_FALSE(llvm::cantFail(find_wrong_pass(programs, start, 1e-4)).has_value());
    CHECK_FALSE(llvm::cantFail(find_wrong_schedule(plan, programs.back().program, start, 1e-6)).has_value());
    for (auto later = split; later != programs.end(); ++later) {
      Graph& step = later->program.functions.front();
      for (NodeId id : step.order())
        if (step.node(id).op->name == "fused")
          plant_in_body(step.node(id).attrs, "exp");
        else if (step.node(id).op->name == "exp") {
          Builder b(step, id);
          step.replace_uses(step.node(id).results[0], b.emit("neg", step.node(id).operands));
          break;
        }
    }
    const std::optional<Culprit> culprit = llvm::cantFail(find_wrong_pass(programs, start, 1e-4));
    REQUIRE(culprit.has_value());
    CHECK(culprit->what == "pass split-batch");
  }

  TEST_CASE("with accumulation a wrong update is found, in its instruction and by its pass") {
    const RandomValues values = values_of_model();
    TrainingRequest request;
    request.accumulate = 2;
    Plan plan = compiled(request);
    const StepStart start = start_of(values, request.accumulate);
    std::vector<ProgramAfter> programs = llvm::cantFail(programs_of_passes(parsed(model), plan, request));
    CHECK_FALSE(llvm::cantFail(find_wrong_schedule(plan, programs.back().program, start, 1e-5)).has_value());
    PlanFunction& update = plan.functions[*plan.find_function(update_function)];
    const auto counts = llvm::find_if(update.instructions, [&](const Instruction& instruction) {
      return plan.slots[static_cast<size_t>(instruction.results.front())].name == "step.next";
    });
    REQUIRE(counts != update.instructions.end());
    counts->op = "mul";
    std::optional<Culprit> culprit = llvm::cantFail(find_wrong_schedule(plan, programs.back().program, start, 1e-5));
    REQUIRE(culprit.has_value());
    CHECK_MESSAGE(
        culprit->what == "instruction " + std::to_string(counts - update.instructions.begin()) + " of update, mul",
        culprit->what);

    const size_t planted = programs.size() / 2;
    std::string changed;
    for (size_t i = planted; i < programs.size(); ++i) {
      Graph& graph = *programs[i].program.find(update_function);
      for (NodeId id : graph.order())
        if (graph.node(id).op->name == "reciprocal") {
          Builder b(graph, id);
          changed = graph.value(graph.node(id).results[0]).name;
          graph.replace_uses(graph.node(id).results[0], b.emit("neg", graph.node(id).operands));
          break;
        }
    }
    REQUIRE_FALSE(changed.empty());
    culprit = llvm::cantFail(find_wrong_pass(programs, start, 1e-4));
    REQUIRE(culprit.has_value());
    CHECK_MESSAGE(culprit->what == "pass " + programs[planted].pass, culprit->what);
    CHECK_MESSAGE(llvm::StringRef(culprit->detail).contains("the first value that changed is %"), culprit->detail);
  }

  TEST_CASE("a layout that writes over a value is found at the instruction that reads it") {
    const RandomValues values = values_of_model();
    Plan plan = compiled({});
    // The value that lives longest moves onto one that is written while it lives, and onto no labels, which would no
    // longer name classes.
    SlotId longest = -1, victim = -1;
    for (size_t i = 0; i < plan.slots.size(); ++i) {
      const Slot& slot = plan.slots[i];
      if (slot.category != Category::Saved || slot.view_of >= 0) continue;
      if (longest < 0 || slot.last - slot.first > plan.slots[longest].last - plan.slots[longest].first)
        longest = static_cast<SlotId>(i);
    }
    REQUIRE(longest >= 0);
    const auto meets_labels = [&](int64_t offset) {
      return llvm::any_of(plan.slots, [&](const Slot& slot) {
        return is_integer(slot.type.dtype) && slot.offset < offset + plan.slots[longest].bytes &&
               offset < slot.offset + slot.bytes;
      });
    };
    for (size_t i = 0; i < plan.slots.size() && victim < 0; ++i) {
      const Slot& slot = plan.slots[i];
      const bool is_written_inside = slot.function == 0 && slot.view_of < 0 && slot.in_place_of < 0 &&
                                     slot.first > plan.slots[longest].first && slot.last < plan.slots[longest].last;
      if (is_written_inside && slot.bytes >= 48 && !meets_labels(slot.offset)) victim = static_cast<SlotId>(i);
    }
    REQUIRE(victim >= 0);
    plan.slots[longest].offset = plan.slots[victim].offset;
    const std::string name = plan.slots[longest].name;
    // Poison would show in the result that was moved.
    std::unique_ptr<Session> session = llvm::cantFail(Session::create(std::move(plan), {}));
    llvm::cantFail(initialise(*session, values));
    OneBatch data(values, session->inputs());
    const std::optional<Culprit> culprit = llvm::cantFail(find_wrong_instruction(*session, data));
    REQUIRE(culprit.has_value());
    CHECK_MESSAGE(llvm::StringRef(culprit->detail).contains("%" + name + " was overwritten"), culprit->detail);
  }
}

}  // namespace
}  // namespace plimsoll
