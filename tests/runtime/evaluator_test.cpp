#include "runtime/evaluator.h"

#include "ir/evaluate.h"
#include "ir/plan/check.h"
#include "passes/budget/budget_report.h"
#include "passes/compile.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/samples.h"
#include "tests/support/small_training.h"

#include <cmath>

// The function "evaluate": what it adds to a plan, and that its numbers are those of the interpreter for any number of
// samples.

namespace plimsoll {
namespace {

using namespace testing;

// Three classes, the first label of which does not count; dropout, and a batch norm with running statistics.
std::string classifier(int64_t batch) {
  const std::string n = std::to_string(batch);
  return "graph @classifier(%x: f32[" + n + ",6], %labels: i64[" + n + R"(]) state(
    %w1: f32[6,8] parameter trained, %b1: f32[8] parameter trained, %w2: f32[8,3] parameter trained,
    %scale: f32[8] parameter trained, %shift: f32[8] parameter trained, %mean: f32[8] buffer, %var: f32[8] buffer,
    %rng: i64[2] counter fill=0.0) {
  %h = linear(%x, %w1, %b1) : f32[)" +
         n + R"(,8]
  %m, %bm, %bv = batch_norm(%h, %scale, %shift) {eps=0.001} : f32[)" +
         n + R"(,8], f32[8], f32[8]
  %mean1 = running_update(%mean, %bm) {momentum=0.9} : f32[8]
  %var1 = running_update(%var, %bv) {count=)" +
         n + R"(, momentum=0.9} : f32[8]
  %g = relu(%m) : f32[)" +
         n + R"(,8]
  %d = dropout(%g, %rng) {id=0, ratio=0.5} : f32[)" +
         n + R"(,8]
  %y = linear(%d, %w2) : f32[)" +
         n + R"(,3]
  %loss, %lse, %weight = cross_entropy(%y, %labels) {ignore_index=0, reduction="mean"} : f32[], f32[)" +
         n + R"(], f32[]
  update %mean = %mean1
  update %var = %var1
  return loss=%loss, logits=%y
}
)";
}

constexpr int64_t all_samples = 10;

RandomValues data_of_all() {
  RandomValues values;
  values.add_for(parsed(classifier(all_samples)));
  Tensor& labels = values.tensors.at("labels");
  for (int64_t i = 0; i < all_samples; ++i) labels.view().set_int(i, (i * 7 + i / 3) % 3);
  Tensor& var = values.tensors.at("var");
  for (int64_t i = 0; i < 8; ++i) var.view().set(i, 0.5 + 0.25 * static_cast<double>(i));
  return values;
}

CompileResult compiled(llvm::StringRef text, TrainingRequest request, const DeviceDescription& device = cpu_device()) {
  CpuCatalog catalog;
  Result<CompileResult> result = compile_training(parsed(text), request, device, catalog);
  REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
  return std::move(*result);
}

// Without reserves, with a host of its own behind a fast link.
DeviceDescription bare_device() {
  DeviceDescription device = cpu_device();
  device.reserves.clear();
  device.alignment_bytes = 64;
  device.to_host_gb_per_s = device.from_host_gb_per_s = 1e3;
  device.launch_us = device.kernel_us = 0;
  return device;
}

TrainingRequest evaluating(std::vector<std::string> metrics = {}) {
  TrainingRequest request;
  request.loss = "loss";
  request.evaluation.wanted = true;
  request.evaluation.metrics = std::move(metrics);
  return request;
}

// What the model says of all samples: logits by the interpreter in inference mode, everything else by hand.
struct Expected {
  double loss = 0, accuracy = 0, top2 = 0, f1 = 0, miou = 0;
  std::vector<double> logits;
};

Expected expected_of(const RandomValues& values) {
  PassManager passes;
  Graph graph = parsed(classifier(all_samples));
  llvm::cantFail(passes.run(graph, "inference-mode, dce"));
  const Evaluation evaluation = llvm::cantFail(evaluate(graph, values.bind(graph)));
  Expected expected;
  expected.loss = evaluation.outputs[0].get(0);
  double confusion[3][3] = {}, counted = 0;
  for (int64_t i = 0; i < all_samples; ++i) {
    const int64_t label = values.tensors.at("labels").get_int(i);
    std::vector<double> row;
    for (int64_t c = 0; c < 3; ++c) row.push_back(evaluation.outputs[1].get(3 * i + c));
    expected.logits.insert(expected.logits.end(), row.begin(), row.end());
    if (label == 0) continue;
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    const auto above =
        std::count_if(row.begin(), row.end(), [&](double x) { return x > row[static_cast<size_t>(label)]; });
    ++counted;
    ++confusion[label][best];
    expected.accuracy += best == label;
    expected.top2 += above < 2;
  }
  expected.accuracy /= counted;
  expected.top2 /= counted;
  int seen = 0;
  for (size_t c = 0; c < 3; ++c) {
    double labels = 0, predictions = 0;
    for (size_t other = 0; other < 3; ++other) labels += confusion[c][other], predictions += confusion[other][c];
    if (labels + predictions == 0) continue;
    ++seen;
    expected.f1 += 2 * confusion[c][c] / (labels + predictions);
    expected.miou += confusion[c][c] / (labels + predictions - confusion[c][c]);
  }
  expected.f1 /= seen;
  expected.miou /= seen;
  return expected;
}

TEST_SUITE("unit") {
  TEST_CASE("evaluation of any number of samples gives the interpreter's numbers, and changes no state") {
    const RandomValues values = data_of_all();
    const Expected expected = expected_of(values);
    // 10 samples in batches of 1, 4 and 5, whatever the batch of training.
    for (int64_t batch : {1, 4, 5}) {
      TrainingRequest request = evaluating({"accuracy", "top2", "perplexity", "f1", "miou"});
      request.evaluation.batch = batch;
      std::unique_ptr<Session> session = started(std::move(compiled(classifier(6), request).plan), values);
      Evaluator evaluator = llvm::cantFail(Evaluator::create(*session));
      REQUIRE(evaluator.batch() == batch);
      Samples data(values, evaluator.inputs(), all_samples);
      std::vector<double> logits;
      const auto keep = [&](const PlanOutput& output, int64_t first, const TensorView& rows) {
        CHECK(output.name == "logits");
        CHECK(first * 3 == static_cast<int64_t>(logits.size()));
        for (int64_t i = 0; i < rows.elements(); ++i) logits.push_back(rows.get(i));
        return Status::success();
      };
      const EvaluationResult result = llvm::cantFail(evaluator.run(data, 0, keep));
      CHECK(result.samples == all_samples);
      CHECK(result.find("loss")->value == doctest::Approx(expected.loss).epsilon(1e-5));
      CHECK(result.find("perplexity")->value == doctest::Approx(std::exp(expected.loss)).epsilon(1e-5));
      CHECK(result.find("accuracy")->value == doctest::Approx(expected.accuracy).epsilon(1e-6));
      CHECK(result.find("top2")->value == doctest::Approx(expected.top2).epsilon(1e-6));
      CHECK(result.find("f1")->value == doctest::Approx(expected.f1).epsilon(1e-6));
      CHECK(result.find("miou")->value == doctest::Approx(expected.miou).epsilon(1e-6));
      REQUIRE(logits.size() == expected.logits.size());
      for (size_t i = 0; i < logits.size(); ++i) CHECK(logits[i] == doctest::Approx(expected.logits[i]).epsilon(1e-4));
      for (const WholeState& state : session->whole_states()) {
        const auto found = values.tensors.find(state.name);
        if (found == values.tensors.end() || state.init.kind != StateInit::Kind::Weights) continue;
        llvm::cantFail(session->read_state(state.name, [&](const TensorView& bytes) {
          for (int64_t i = 0; i < bytes.elements(); ++i) CHECK(bytes.get(i) == found->second.get(i));
          return Status::success();
        }));
      }
    }
  }

  TEST_CASE("steps with evaluations between them are those of a plan without") {
    const RandomValues values = data_of_all();
    std::vector<double> losses[2];
    for (bool evaluates : {false, true}) {
      TrainingRequest request = evaluating({"accuracy"});
      request.evaluation.wanted = evaluates;
      request.accumulate = 2;
      std::unique_ptr<Session> session = started(std::move(compiled(classifier(5), request).plan), values);
      Samples data(values, session->inputs(), all_samples);
      for (int step = 0; step < 3; ++step) {
        llvm::cantFail(data.seek(0));
        losses[evaluates].push_back(llvm::cantFail(session->step(data)).loss);
        if (!evaluates) continue;
        Evaluator evaluator = llvm::cantFail(Evaluator::create(*session));
        Samples held_out(values, evaluator.inputs(), 7);
        CHECK(llvm::cantFail(evaluator.run(held_out)).samples == 7);
      }
    }
    CHECK(losses[0] == losses[1]);
  }

  TEST_CASE("evaluation does not raise the promise where training needs more") {
    const CompileResult trains = compiled(classifier(64), [] {
      TrainingRequest request;
      request.loss = "loss";
      return request;
    }());
    const CompileResult evaluates = compiled(classifier(64), evaluating({"accuracy"}));
    CHECK(evaluates.plan.evaluation.batch == 64);
    CHECK(evaluates.plan.functions.back().name == evaluate_function);
    CHECK(evaluates.plan.predicted_step_us == trains.plan.predicted_step_us);
    const int64_t more_constants = evaluates.plan.arenas[0].persistent_bytes - trains.plan.arenas[0].persistent_bytes;
    CHECK(more_constants <= 512);
    CHECK(evaluates.plan.promised_bytes() == trains.plan.promised_bytes() + more_constants);
    CHECK_FALSE(bool(check_plan(evaluates.plan)));

    // The same holds for a budget that leaves nothing over.
    TrainingRequest tight = evaluating({"accuracy"});
    tight.budget_bytes = trains.plan.promised_bytes() - 1024;
    const CompileResult fits = compiled(classifier(64), tight);
    if (fits.fits) CHECK(fits.plan.promised_bytes() <= tight.budget_bytes);
  }

  TEST_CASE("a batch of evaluation that does not fit is refused, and nothing else asks for one") {
    TrainingRequest request = evaluating();
    request.evaluation.batch = 4096;  // 128 KiB for each of its values
    request.budget_bytes = 100 << 10;
    CpuCatalog catalog;
    Result<CompileResult> refused = compile_training(parsed(classifier(4)), request, bare_device(), catalog);
    REQUIRE_FALSE(bool(refused));
    const Diag diag = take_diag(refused.takeError());
    CHECK(diag.fault() == Fault::Budget);
    CHECK_MESSAGE(llvm::StringRef(diag.text()).contains("--evaluate-batch"), diag.text());

    TrainingRequest without;
    without.loss = "loss";
    std::unique_ptr<Session> session = started(std::move(compiled(classifier(4), without).plan), data_of_all());
    Result<Evaluator> none = Evaluator::create(*session);
    REQUIRE_FALSE(bool(none));
    CHECK(llvm::StringRef(take_diag(none.takeError()).text()).contains("--evaluate"));
  }

  TEST_CASE("metrics that the model does not have are refused with those there are") {
    CpuCatalog catalog;
    const auto refusal = [&](const std::string& metric) {
      Result<CompileResult> refused =
          compile_training(parsed(classifier(4)), evaluating({metric}), cpu_device(), catalog);
      REQUIRE_FALSE(bool(refused));
      return take_diag(refused.takeError()).text();
    };
    CHECK(llvm::StringRef(refusal("acuracy")).contains("there is no metric 'acuracy'"));
    CHECK(llvm::StringRef(refusal("logits")).contains("there is no metric 'logits'"));
    CHECK(llvm::StringRef(refusal("accuracy:logits:x")).contains("labels are integers"));
    CHECK(llvm::StringRef(refusal("accuracy:scores:labels")).contains("no value 'scores'"));
    CHECK(compiled(classifier(4), evaluating({"accuracy:logits:labels"})).plan.evaluation.batch == 4);
  }

  TEST_CASE("states on the host are reloaded to evaluate") {
    const DeviceDescription device = bare_device();
    const RandomValues values = data_of_all();
    const Expected expected = expected_of(values);
    TrainingRequest request = evaluating({"accuracy"});
    request.budget_bytes = compiled(classifier(6), request, device).plan.promised_bytes() * 3 / 4;
    CompileResult result = compiled(classifier(6), request, device);
    REQUIRE_MESSAGE(result.fits, result.plan.promised_bytes());
    REQUIRE(result.plan.arenas.size() == 2);
    CHECK(result.plan.promised_bytes() <= request.budget_bytes);
    std::unique_ptr<Session> session = started(std::move(result.plan), values);
    Evaluator evaluator = llvm::cantFail(Evaluator::create(*session));
    Samples data(values, evaluator.inputs(), all_samples);
    CHECK(llvm::cantFail(evaluator.run(data)).find("loss")->value == doctest::Approx(expected.loss).epsilon(1e-5));
  }

  TEST_CASE("the checker refuses an evaluation that updates a state") {
    Plan plan = std::move(compiled(classifier(4), evaluating()).plan);
    plan.functions.back().updates = plan.functions.front().updates;
    Status refused = check_plan(plan);
    REQUIRE(bool(refused));
    CHECK(llvm::StringRef(take_diag(std::move(refused)).text()).contains("evaluation changes no state"));
  }
}

}  // namespace
}  // namespace plimsoll
