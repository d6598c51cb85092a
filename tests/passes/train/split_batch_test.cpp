#include "passes/train/split_batch.h"

#include "ir/evaluate.h"
#include "ir/support/units.h"
#include "passes/analysis/single_value_cuts.h"
#include "passes/compile.h"
#include "passes/train/training_step.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/small_training.h"

#include "llvm/Support/raw_ostream.h"

#include <doctest/doctest.h>

// Splitting the batch from any cut on keeps the loss, the gradients and the random draws of a step.

namespace plimsoll {
namespace {

using namespace testing;

Graph forward() { return parsed(tied_attention); }

struct Trained {
  double loss;
  std::map<std::string, Tensor> gradients;  // accumulated gradients if the step accumulates
};

Trained run_step(const Graph& step, const RandomValues& values) {
  RandomValues all = values;
  all.add_for(step);
  all.tensors["labels"] = Tensor(Type(DType::I64, {4, 3}));
  for (int64_t i = 0; i < 12; ++i) all.tensors["labels"].view().set_int(i, i < 5 ? -100 : i % 9);
  Result<Evaluation> result = evaluate(step, all.bind(step), Keep::EveryValue);
  REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
  Trained trained{result->outputs[0].get(0), {}};
  for (const StateGradient& gradient : step.gradients)
    trained.gradients[step.value(gradient.state).name] = result->values[index_of(gradient.value)];
  for (size_t i = 0; i < step.updates.size(); ++i)
    if (step.find_state(step.updates[i].state)->role == StateRole::Gradient ||
        step.value(step.updates[i].state).name == "accumulated_weight")
      trained.gradients[step.value(step.updates[i].state).name] = result->updates[i];
  return trained;
}

Trained run_whole(const RandomValues& values, const TrainingRequest& request) {
  Result<Program> program = make_training_program(forward(), request);
  REQUIRE_MESSAGE(bool(program), llvm::toString(program.takeError()));
  return run_step(program->functions.front(), values);
}

Trained run_split(llvm::StringRef from, int64_t chunks, const RandomValues& values, const TrainingRequest& request) {
  Graph graph = forward();
  Result<BatchSplit> split = split_batch(graph, graph.find_value(from), chunks);
  REQUIRE_MESSAGE(bool(split), llvm::toString(split.takeError()));
  Result<Program> program = make_training_program(std::move(graph), request, split->sample_weight);
  REQUIRE_MESSAGE(bool(program), llvm::toString(program.takeError()));
  run_chunks_in_order(program->functions.front(), *split);
  return run_step(program->functions.front(), values);
}

std::vector<std::string> names_of(const Graph& graph, llvm::ArrayRef<SingleValueCut> cuts) {
  std::vector<std::string> names;
  for (const SingleValueCut& cut : cuts) names.push_back(graph.value(cut.value).name);
  return names;
}

void check_equal(const Trained& got, const Trained& want) {
  CHECK(got.loss == doctest::Approx(want.loss).epsilon(1e-13));
  REQUIRE(got.gradients.size() == want.gradients.size());
  for (const auto& [name, gradient] : want.gradients) {
    CAPTURE(name);
    for (int64_t i = 0; i < gradient.type().elements(); ++i)
      CHECK(got.gradients.at(name).get(i) == doctest::Approx(gradient.get(i)).epsilon(1e-11));
  }
}

// The logits are so wide that they need most of the memory.
constexpr llvm::StringLiteral wide_model = R"(
graph @wide(%x: f32[64,16], %labels: i64[64]) state(%a: f32[16,64] parameter trained, %b: f32[64,16] parameter trained, %w: f32[16,2048] parameter trained) {
  %h = linear(%x, %a) : f32[64,64]
  %g = gelu(%h) {approximate="none"} : f32[64,64]
  %y = linear(%g, %b) : f32[64,16]
  %z = linear(%y, %w) : f32[64,2048]
  %s = silu(%z) : f32[64,2048]
  %loss, %lse, %weight = cross_entropy(%s, %labels) {reduction="mean"} : f32[], f32[64], f32[]
  return loss=%loss
}
)";

std::string deep_model(int layers) {
  std::string text;
  llvm::raw_string_ostream out(text);
  out << "graph @deep(%rows: f32[64,32], %labels: i64[64]) state(";
  for (int i = 0; i < layers; ++i) out << (i > 0 ? ", " : "") << "%w" << i << ": f32[32,32] parameter trained";
  out << ") {\n%g0 = gelu(%rows) {approximate=\"none\"} : f32[64,32]\n";
  for (int i = 0; i < layers; ++i)
    out << "%h" << i << " = linear(%g" << i << ", %w" << i << ") : f32[64,32]\n%g" << i + 1 << " = gelu(%h" << i
        << ") {approximate=\"none\"} : f32[64,32]\n";
  out << "%loss, %lse, %weight = cross_entropy(%g" << layers
      << ", %labels) {reduction=\"mean\"} : f32[], f32[64], f32[]\nreturn loss=%loss\n}\n";
  return out.str();
}

DeviceDescription bare_device() {
  DeviceDescription device = cpu_device();
  device.reserves.clear();
  return device;
}

Graph wide_forward() { return parsed(wide_model); }

TrainingRequest request_with(TrainingRequest request, int64_t budget_bytes, int64_t split) {
  request.optimizer.kind = OptimizerKind::Sgd;
  request.budget_bytes = budget_bytes;
  request.split = split;
  return request;
}

CompileResult result_of(const TrainingRequest& request) {
  CpuCatalog catalog;
  Result<CompileResult> result = compile_training(
      wide_forward(), request_with(request, request.budget_bytes, request.split), bare_device(), catalog);
  REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
  return std::move(*result);
}

Plan compiled(const TrainingRequest& request) {
  CompileResult result = result_of(request);
  REQUIRE(result.fits);
  return std::move(result.plan);
}

// Returns the plan that needs least, for a budget that is refused.
Plan least(const TrainingRequest& request) {
  CompileResult result = result_of(request);
  REQUIRE_FALSE(result.fits);
  return std::move(result.plan);
}

double first_loss(const Plan& plan) {
  RandomValues values;
  values.add_for(wide_forward());
  std::unique_ptr<Session> session = started(plan, values);
  OneBatch data(values, session->inputs());
  return llvm::cantFail(session->step(data)).loss;
}

TEST_SUITE("unit") {
  TEST_CASE("a batch may be split where one value carries all gradients") {
    CHECK(names_of(forward(), find_single_value_cuts(forward())) ==
          std::vector<std::string>{"e", "d", "r", "g", "z", "rows"});
  }

  TEST_CASE("a split step is the whole step, from any narrow value on") {
    RandomValues values;
    values.add_for(forward());
    for (int64_t accumulate : {1, 2}) {
      TrainingRequest request;
      request.accumulate = accumulate;
      const Trained whole = run_whole(values, request);
      for (const char* from : {"e", "d", "r", "g", "z"})
        for (int64_t chunks : {2, 4}) {
          INFO("accumulate ", accumulate, ", ", chunks, " chunks from ", from);
          check_equal(run_split(from, chunks, values, request), whole);
        }
    }
  }

  // Forward and backward of a chunk run before the next chunk, so one chunk of the logits is alive at a time.
  TEST_CASE("chunks run one after the other") {
    Graph graph = forward();
    Result<BatchSplit> split = split_batch(graph, graph.find_value("g"), 4);
    REQUIRE(bool(split));
    Result<Program> program = make_training_program(std::move(graph), {}, split->sample_weight);
    REQUIRE(bool(program));
    Graph& step = program->functions.front();
    run_chunks_in_order(step, *split);
    std::vector<std::string> seen;
    for (NodeId id : step.order()) {
      const Node& node = step.node(id);
      const bool of_logits =
          node.op->name == "cross_entropy" || node.op->name == "cross_entropy_grad" || node.op->name == "linear_dw";
      if (of_logits && step.type(node.operands[0]).shape[0] != 4) seen.push_back(node.op->name.str());
    }
    const std::vector<std::string> order{"cross_entropy", "cross_entropy_grad", "linear_dw"};
    REQUIRE(seen.size() == 12);
    for (size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == order[i % 3]);
  }

  // For budgets from the plain plan's need down to the least: a larger budget is no slower, the frontier shows what its
  // budgets give, and the first step in f32 and poisoned memory has the plain plan's loss.
  TEST_CASE("a split is one more way to keep within a budget") {
    TrainingRequest request;
    request.split = 0;
    request.effort = 0.1;
    const Plan plain = compiled(request);
    CHECK(first_loss(plain) == doctest::Approx(first_loss(compiled(request_with(request, 0, 2)))).epsilon(1e-6));
    TrainingRequest with_frontier = request;
    with_frontier.frontier = true;
    const std::vector<Plan> front = result_of(with_frontier).frontier;
    REQUIRE(front.size() >= 3);
    int splits = 0;
    for (size_t i = 1; i < front.size(); ++i) {
      const Plan plan = compiled(request_with(request, front[i].arenas[0].budget_bytes, 0));
      CHECK(plan.promised_bytes() == front[i].promised_bytes());
      CHECK(plan.predicted_step_us == front[i].predicted_step_us);
      CHECK(plan.predicted_step_us >= front[i - 1].predicted_step_us);
      CHECK(first_loss(plan) == doctest::Approx(first_loss(plain)).epsilon(1e-6));
      splits += plan.fit.chunks > 1;
    }
    CHECK(splits > 0);
    // The least need is below the need without splits.
    Plan whole = least(request_with(request, 1, 1)), split = least(request_with(request, 1, 0));
    CHECK(split.promised_bytes() < whole.promised_bytes());
    CHECK(front.back().arenas[0].budget_bytes == round_up_readable(split.promised_bytes()));
  }

  // For a program of thousands of nodes only remats are searched, down to four fifths of the live bytes.
  TEST_CASE("a long split step repeats a little where that is enough") {
    CpuCatalog catalog;
    auto split_in_four = [&](int64_t budget_bytes) {
      TrainingRequest request;
      request.split_from = std::string("rows");
      return llvm::cantFail(
          compile_training(parsed(deep_model(100)), request_with(request, budget_bytes, 4), bare_device(), catalog));
    };
    const Plan plain = split_in_four(0).plan;
    CHECK(plain.functions.front().instructions.size() > 1200);
    const int64_t live = plain.arenas[0].bytes - plain.arenas[0].persistent_bytes;
    const CompileResult tight = split_in_four(plain.promised_bytes() - live / 10);
    CHECK(tight.fits);
    CHECK(tight.plan.functions.front().instructions.size() > plain.functions.front().instructions.size());
    const CompileResult refused = split_in_four(plain.promised_bytes() - live / 2);
    REQUIRE_FALSE(refused.fits);
    CHECK(split_in_four(refused.plan.promised_bytes()).fits);
  }

  TEST_CASE("what cannot be split says why") {
    Graph graph = forward();
    CHECK(take_diag(split_batch(graph, graph.find_value("e"), 3).takeError()).text() ==
          "e is f64[4,3,8], which does not make 3 equal chunks");
    CHECK(take_diag(split_batch(graph, graph.find_value("e"), 1).takeError()).text() ==
          "a batch is split in 2 chunks or more, not 1");
    CHECK(take_diag(split_batch(graph, graph.find_value("w"), 9).takeError()).text() ==
          "w: nothing that reads it works on chunks of a batch");
  }
}

}  // namespace
}  // namespace plimsoll
