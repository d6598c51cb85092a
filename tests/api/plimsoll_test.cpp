// The library as an embedding program sees it: this file includes its one header and is linked with libplimsoll.so
// alone.

#include "plimsoll.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <sstream>

using namespace plimsoll;

namespace {

const std::string model = PLIMSOLL_EXAMPLE "/small_gpt.onnx";

CompileOptions small_gpt() {
  CompileOptions options;
  options.model = model;
  options.dims["batch"] = 1;
  options.device = "cpu";
  return options;
}

Plan small_plan() {
  Expected<Compiled> compiled = compile(small_gpt());
  REQUIRE_MESSAGE(compiled, compiled.error().message);
  REQUIRE(compiled->fits);
  return compiled->plan;
}

std::string scratch_file(const std::string& name) {
  std::filesystem::create_directories("api_test");
  return "api_test/" + name;
}

// One batch of token 0.
struct Zeros {
  std::vector<std::vector<std::byte>> buffers;
  std::vector<Session::Bytes> tensors;
  explicit Zeros(const std::vector<TensorSpec>& inputs) {
    for (const TensorSpec& input : inputs) buffers.emplace_back(static_cast<size_t>(input.bytes));
    for (const std::vector<std::byte>& buffer : buffers) tensors.emplace_back(buffer);
  }
};

}  // namespace

TEST_CASE("api: errors say who can mend them") {
  CompileOptions options = small_gpt();
  options.model = "nowhere.onnx";
  CHECK(compile(options).error().fault == Fault::System);
  options = small_gpt();
  options.device = "abacus";
  CHECK(compile(options).error().fault == Fault::Usage);
  options = small_gpt();
  options.optimizer.beta1 = 1;
  CHECK(compile(options).error().message == "beta1 is 1, it must be at least 0 and below 1");
  options = small_gpt();
  options.loss = "no_such_output";
  CHECK(compile(options).error().fault == Fault::Model);
}

TEST_CASE("api: what does not fit is an answer, with the plan that needs least") {
  CompileOptions options = small_gpt();
  options.budget_bytes = 1 << 10;
  Expected<Compiled> compiled = compile(options);
  REQUIRE(compiled);
  CHECK_FALSE(compiled->fits);
  CHECK_FALSE(compiled->refusal.empty());
  CHECK(compiled->plan.promised_bytes() > options.budget_bytes);
}

TEST_CASE("api: a refused job comes with changes that make it fit") {
  CompileOptions options = small_gpt();
  options.dims["batch"] = 8;
  options.recompute = false;
  options.split = 1;
  const int64_t needed_bytes = compile(options)->plan.promised_bytes();
  options.budget_bytes = needed_bytes * 3 / 4;
  Expected<Compiled> refused = compile(options);
  REQUIRE(refused);
  REQUIRE_FALSE(refused->fits);
  REQUIRE(refused->alternatives.size() >= 3);
  bool fitted_before = true;
  for (const Alternative& alternative : refused->alternatives) {
    CHECK(alternative.needs_bytes < needed_bytes);
    CHECK(alternative.fits == (alternative.needs_bytes <= options.budget_bytes));
    CHECK((fitted_before || !alternative.fits));
    fitted_before = alternative.fits;
    if (alternative.change == Alternative::Change::Batch) CHECK(alternative.options.dims.at("batch") == 4);
    if (alternative.estimated || !alternative.fits) continue;
    CompileOptions changed = alternative.options;
    changed.budget_bytes = alternative.needs_bytes;
    CHECK(compile(changed)->fits);
  }
  CHECK(refused->alternatives.front().fits);
  options.alternatives = false;
  CHECK(compile(options)->alternatives.empty());

  options.alternatives = true;
  options.budget_bytes = 1 << 20;
  Expected<std::vector<Compiled>> answers = fit(options, {"cpu", "h200"});
  REQUIRE(answers);
  CHECK_FALSE(answers->front().alternatives.empty());  // a GPU's libraries alone hold more
  CHECK(answers->back().alternatives.empty());
}

// The plan shows which numbers reached the job, and the change of optimizer which of them come back from it.
TEST_CASE("api: every number of an optimizer reaches the job and comes back in changes") {
  CHECK(default_optimizer(Optimizer::Kind::Adafactor).learning_rate == 0.01);  // as PyTorch has it
  const auto numbers = [](Optimizer::Kind kind) {
    Optimizer all{.kind = kind, .nesterov = true};  // no other setting has its default
    all.learning_rate = 0.5, all.beta1 = 0.125, all.beta2 = 0.25, all.eps = 0.375, all.momentum = 0.625;
    all.dampening = 0, all.weight_decay = 0.75, all.alpha = 0.875, all.beta2_decay = -0.25;
    all.clip_threshold = 2, all.min_scale = 0.0625;
    return all;
  };
  CompileOptions options = small_gpt();
  const auto recorded = [&](const std::string& name, double value) {
    const std::string json = compile(options)->plan.to_json();
    std::ostringstream text;
    text << '"' << name << "\": " << value;
    return json.find(text.str()) != std::string::npos;
  };
  options.optimizer = numbers(Optimizer::Kind::RmsProp);
  CHECK(recorded("lr", 0.5));
  CHECK(recorded("alpha", 0.875));
  CHECK(recorded("momentum", 0.625));
  CHECK(recorded("weight_decay", 0.75));
  options.optimizer = numbers(Optimizer::Kind::Adafactor);
  CHECK(recorded("eps", 0.375));
  CHECK(recorded("beta2_decay", -0.25));
  CHECK(recorded("clip_threshold", 2));
  CHECK(recorded("min_scale", 0.0625));
  options.optimizer = numbers(Optimizer::Kind::AdamW);
  CHECK(recorded("beta1", 0.125));
  CHECK(recorded("beta2", 0.25));
  options.optimizer = {.kind = Optimizer::Kind::Sgd, .momentum = 0.5, .dampening = 0.25};
  CHECK(recorded("dampening", 0.25));

  options.dims["batch"] = 8;
  options.recompute = options.offload = false;
  options.split = 1;
  options.optimizer = numbers(Optimizer::Kind::AdamW);
  options.optimizer.dampening = 0.75;
  options.budget_bytes = compile(options)->plan.promised_bytes() * 7 / 8;
  const Expected<Compiled> refused = compile(options);
  REQUIRE(refused);
  int changed = 0;
  for (const Alternative& alternative : refused->alternatives) {
    Optimizer wanted = options.optimizer;
    if (alternative.change == Alternative::Change::Optimizer) {
      wanted.kind = Optimizer::Kind::Sgd, wanted.momentum = 0, wanted.nesterov = false;
      ++changed;
    }
    CHECK(alternative.options.optimizer == wanted);
  }
  CHECK(changed == 1);
}

TEST_CASE("api: batch and precision are chosen") {
  CompileOptions options = small_gpt();
  options.device = "h200";
  options.precision = Precision::Auto;
  options.global_batch = 4;
  Expected<Compiled> compiled = compile(options);
  REQUIRE_MESSAGE(compiled, compiled.error().message);
  CHECK(compiled->plan.batch() * compiled->plan.accumulate() == 4);
  CHECK((compiled->plan.precision() == Precision::Tf32 || compiled->plan.precision() == Precision::Bf16));

  options = small_gpt();
  options.dims["batch"] = 4;
  options.budget_bytes = compile(options)->plan.promised_bytes();
  options.max_batch = true;
  options.split = 1;
  compiled = compile(options);
  REQUIRE(compiled);
  CHECK(compiled->plan.batch() >= 4);
  CHECK(compiled->plan.promised_bytes() <= options.budget_bytes);

  options.global_batch = 4;
  CHECK(compile(options).error().fault == Fault::Usage);
  options.max_batch = false;
  options.batch = 2;
  CHECK(compile(options).error().fault == Fault::Usage);
}

TEST_CASE("api: a plan tells about itself and survives its file") {
  const Plan plan = small_plan();
  CHECK(plan.device() == "cpu");
  CHECK(plan.predicted_step_us() > 0);
  const Arena arena = plan.arenas().front();
  int64_t live = 0;
  for (const auto& [category, bytes] : arena.at_peak) live += bytes;
  CHECK(live == arena.peak_live_bytes);
  CHECK(plan.report().find("memory") != std::string::npos);
  CHECK(plan.why("no_such_value").error().fault == Fault::Usage);

  const std::string path = scratch_file("small.plan");
  REQUIRE(plan.save(path));
  Expected<Plan> loaded = Plan::load(path);
  REQUIRE(loaded);
  CHECK(loaded->to_json() == plan.to_json());
  CHECK(Plan::load(model).error().fault == Fault::Model);
}

TEST_CASE("api: one job on several devices") {
  Expected<std::vector<Compiled>> answers = fit(small_gpt(), {"cpu", "h200"});
  REQUIRE(answers);
  REQUIRE(answers->size() == 2);
  CHECK(answers->back().plan.device() == "h200");
  CHECK(answers->back().fits);
  Expected<std::vector<Device>> known = devices();
  REQUIRE(known);
  CHECK(known->size() > 2);
}

TEST_CASE("api: what stands in the way of training is listed") {
  CompileOptions options = small_gpt();
  CHECK(check(options)->empty());
  options.dims.clear();
  Expected<std::vector<Finding>> findings = check(options);
  REQUIRE(findings);
  REQUIRE(findings->size() == 1);
  CHECK(findings->front().title == "open dimension batch");
  CHECK_FALSE(findings->front().blocks);
}

TEST_CASE("api: a session trains, and hands out and takes in weights") {
  const Plan plan = small_plan();
  Expected<Session> session = Session::create(plan);
  REQUIRE(session);
  const Zeros batch(session->inputs());
  CHECK(session->step(batch.tensors).error().message == "the session has no weights yet");
  REQUIRE(session->load_weights(model));
  CHECK(session->step(std::span(batch.tensors).first(1)).error().fault == Fault::Usage);
  const double first_loss = session->step(batch.tensors)->loss;
  Expected<Metrics> second = session->step(batch.tensors);
  REQUIRE(second);
  CHECK(second->step == 2);
  CHECK(second->loss < first_loss);
  CHECK(*session->held_bytes() > 0);

  // The trained weights go into another session by hand, and into the same file from both.
  std::map<std::string, std::vector<std::byte>> weights;
  for (const StateSpec& state : plan.states()) {
    weights[state.name].resize(static_cast<size_t>(state.bytes));
    REQUIRE(session->read(state.name, weights[state.name]));
  }
  Expected<Session> other = Session::create(plan);
  REQUIRE(other);
  REQUIRE(other->load_weights([&](const TensorSpec& weight, std::span<std::byte> into) -> Expected<void> {
    if (!weights.contains(weight.name)) return Error{Fault::Model, weight.name};
    std::copy_n(weights[weight.name].begin(), into.size(), into.begin());
    return {};
  }));
  const std::string saved[] = {scratch_file("one.safetensors"), scratch_file("other.safetensors")};
  REQUIRE(session->save_weights(saved[0]));
  REQUIRE(other->save_weights(saved[1]));
  CHECK(std::filesystem::file_size(saved[0]) == std::filesystem::file_size(saved[1]));
  REQUIRE(other->load_weights(saved[0]));
  CHECK(session->save_weights(scratch_file("x.onnx")).error().fault == Fault::Usage);
  REQUIRE(session->save_weights(scratch_file("small.onnx"), model));
  CHECK(other->load_weights([](auto&&...) { return Error{Fault::Model, "mine"}; }).error().message == "mine");
}

TEST_CASE("api: adapters over quantised weights are saved, merged and gone on from") {
  CompileOptions options = small_gpt();
  options.adapters.rank = 4;
  options.adapters.alpha = 8;
  options.adapters.targets = {"attention.*"};
  CHECK(compile(options).error().fault == Fault::Usage);  // no whole path of a module
  options.adapters.targets = {};
  options.quantize = WeightFormat::NF4;
  Expected<Compiled> compiled = compile(options);
  REQUIRE_MESSAGE(compiled, compiled.error().message);
  Expected<Session> session = Session::create(compiled->plan);
  REQUIRE_MESSAGE(session, session.error().message);
  CHECK(session->load_adapter("nowhere").error().fault == Fault::Usage);
  REQUIRE(session->load_weights(model));
  const Zeros zeros(session->inputs());
  REQUIRE(session->step(zeros.tensors));
  const std::string folder = scratch_file("adapter");
  REQUIRE(session->save_adapter(folder));
  CHECK(session->save_adapter(folder + ".safetensors").error().fault == Fault::Usage);  // PEFT's are folders
  REQUIRE(session->save_adapter(folder + ".safetensors", AdapterFormat::Kohya));
  std::vector<double> losses;  // first of nothing, then of the saved adapters
  for (const std::string& path : {std::string(), folder, folder + ".safetensors"}) {
    REQUIRE(session->load_weights(model));
    if (!path.empty()) REQUIRE(session->load_adapter(path));
    losses.push_back(session->step(zeros.tensors)->loss);
  }
  CHECK(losses[1] == losses[2]);
  CHECK(losses[1] < losses[0]);
  MergeOptions merge_options;
  merge_options.model = model;
  merge_options.adapter = folder;
  merge_options.output = scratch_file("merged.safetensors");
  Expected<Merged> merged = merge(merge_options);
  REQUIRE_MESSAGE(merged, merged.error().message);
  CHECK(merged->modules > 0);
  CHECK(merged->largest_change > 0);
  options.adapters = {};
  options.adapters.dropout = 0.5;
  CHECK(compile(options).error().fault == Fault::Usage);
}

TEST_CASE("api: ranks on unlike devices are stages, each within its own budget") {
  CompileOptions options = small_gpt();
  options.dims["batch"] = 4;
  options.device_file = PLIMSOLL_EXAMPLE "/../../tests/golden/two_cpus.json";
  options.devices = {"quick", "slow"};
  options.budgets = {int64_t{1} << 30, int64_t{1} << 29};
  Expected<Compiled> compiled = compile(options);
  REQUIRE_MESSAGE(compiled, compiled.error().message);
  REQUIRE(compiled->fits);
  CHECK(compiled->plan.devices() == options.devices);
  for (int64_t rank : {0, 1}) CHECK(compiled->plan.promised_bytes(rank) <= options.budgets[static_cast<size_t>(rank)]);
  options.mesh = "data=2";
  compiled = compile(options);
  REQUIRE_MESSAGE(compiled, compiled.error().message);
  CHECK(compiled->plan.device() == "quick+slow");
  CHECK(compiled->plan.devices() == options.devices);
  options.budgets = {1};
  CHECK(compile(options).error().message == "there are 1 budgets, and 2 ranks");
  options.budgets = {1, 0};
  CHECK(compile(options).error().message == "the budget of rank 1 is 0, it must be at least 1");
  options.mesh = "data=3";
  options.budgets.clear();
  CHECK(compile(options).error().fault == Fault::Usage);
}
