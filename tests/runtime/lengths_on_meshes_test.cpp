#include "ir/plan/check.h"
#include "passes/add_lengths.h"
#include "passes/compile.h"
#include "runtime/comm/thread_ranks.h"
#include "runtime/cpu/cpu_catalog.h"
#include "tests/support/small_training.h"

#include <doctest/doctest.h>

#include <thread>

// Steps of two lengths on ranks that divide the model itself train as they do on one rank.

namespace plimsoll {
namespace {

using namespace testing;

// Two blocks with packed q, k and v over `length` tokens; the embedding is tied.
std::string blocks(int64_t length) {
  const std::string t = std::to_string(length), rows = std::to_string(4 * length);
  const std::string wide = " : f64[4," + t + ",12]\n";
  std::string text = "graph @blocks(%ids: i64[4," + t + "], %labels: i64[4," + t +
                     "]) state(%wte: f64[23,12] parameter trained, %rng: i64[2] counter fill=0.0";
  for (const char* block : {"0", "1"})
    for (const char* weight : {"qkv: f64[12,36]", "o: f64[12,12]", "up: f64[12,24]", "down: f64[24,12]"})
      text += std::string(", %w") + block + weight + " parameter trained";
  text += ") {\n  %x0 = gather(%wte, %ids) {axis=0}" + wide;
  for (int block = 0; block < 2; ++block) {
    const std::string b = std::to_string(block), w = "%w" + b, next = std::to_string(block + 1);
    text += "  %qkv" + b + " = linear(%x" + b + ", " + w + "qkv) : f64[4," + t + ",36]\n";
    text += "  %a" + b + ", %lse" + b + " = attention(%qkv" + b +
            ", _, _) {causal=1, heads=6, kv_heads=6, packed=1, scale=0.7} : f64[4," + t + ",12], f64[4,6," + t + "]\n";
    text += "  %o" + b + " = linear(%a" + b + ", " + w + "o)" + wide;
    text += "  %d" + b + " = dropout(%o" + b + ", %rng) {id=" + b + ", ratio=0.25}" + wide;
    text += "  %h" + b + " = add(%x" + b + ", %d" + b + ")" + wide;
    text += "  %u" + b + " = linear(%h" + b + ", " + w + "up) : f64[4," + t + ",24]\n";
    text += "  %g" + b + " = gelu(%u" + b + ") {approximate=\"tanh\"} : f64[4," + t + ",24]\n";
    text += "  %f" + b + " = linear(%g" + b + ", " + w + "down)" + wide;
    text += "  %x" + next + " = add(%h" + b + ", %f" + b + ")" + wide;
  }
  return text + "  %logits = linear(%x2, %wte) {transpose_w=1} : f64[4," + t +
         ",23]\n  %rows = reshape(%logits) {shape=[" + rows + ",23]} : f64[" + rows +
         ",23]\n  %flat = reshape(%labels) {shape=[" + rows + "]} : i64[" + rows +
         "]\n  %loss, %l, %weight = cross_entropy(%rows, %flat) {ignore_index=3, reduction=\"mean\"} : f64[], f64[" +
         rows + "], f64[]\n  return loss=%loss\n}\n";
}

constexpr int64_t longest = 6, shorter = 4;

Plan plan_on(llvm::StringRef mesh, int zero, std::optional<PipelineSchedule> schedule, int64_t runs_per_stage = 0) {
  TrainingRequest request;
  request.mesh = llvm::cantFail(parse_mesh(mesh));
  request.zero = zero;
  request.schedule = schedule;
  request.runs_per_stage = runs_per_stage;
  if (schedule) request.micro_batches = 2;
  request.optimizer.eps = 1e-3;
  request.clip_grad_norm = 0.5;
  const CpuCatalog catalog;
  const StageDevices devices(cpu_device(), catalog);
  Result<CompileResult> result = compile_training(parsed(blocks(longest)), request, cpu_device(), catalog);
  REQUIRE_MESSAGE(bool(result), llvm::toString(result.takeError()));
  CleanModel model = llvm::cantFail(clean_model(parsed(blocks(shorter)), ""));
  Result<Plan> plan = add_shorter_step(std::move(model), shorter, request, devices, result->plan);
  REQUIRE_MESSAGE(bool(plan), llvm::toString(plan.takeError()));
  CHECK(plan->promised_bytes() <= result->plan.promised_bytes() + 4096);  // a few constants
  return std::move(*plan);
}

// The rank's rows of batches whose lengths alternate.
class Alternating : public BatchSource {
 public:
  Alternating(int64_t rank, std::vector<InputSpec> inputs) : rank_(rank), specs_(std::move(inputs)) {}
  std::optional<int64_t> next_length() const override {
    return next_ % 2 == 0 ? std::nullopt : std::optional<int64_t>(shorter);
  }
  Status next(llvm::ArrayRef<TensorView> inputs) override {
    const int64_t length = next_ % 2 == 0 ? longest : shorter;
    for (size_t i = 0; i < inputs.size(); ++i) {
      const int64_t count = inputs[i].type.shape[0] * length;
      for (int64_t k = 0; k < count; ++k)
        inputs[i].set_int(k, ((rank_ * count + k) * 7 + next_ * 5 + (specs_[i].name == "labels" ? 1 : 0)) % 23);
    }
    ++next_;
    return Status::success();
  }
  Status seek(int64_t) override { return Status::success(); }
  llvm::StringRef item_name() const override { return "tokens"; }

 private:
  int64_t rank_, next_ = 0;
  std::vector<InputSpec> specs_;
};

std::vector<double> losses_on(const Plan& plan, Communicator* own) {
  RandomValues values;
  values.add_for(parsed(blocks(longest)));
  for (auto& [name, tensor] : values.tensors)
    if (is_float(tensor.type().dtype))
      for (int64_t i = 0; i < tensor.type().elements(); ++i) tensor.view().set(i, 0.2 * tensor.get(i));
  std::unique_ptr<Session> session = llvm::cantFail(Session::create(plan, {1, true, false, own}));
  llvm::cantFail(initialise(*session, values));
  Alternating data(session->rows_of_rank(0).rank, session->inputs());
  std::vector<double> losses;
  for (int step = 0; step < 6; ++step) losses.push_back(llvm::cantFail(session->step(data)).loss);
  return losses;
}

TEST_SUITE("unit") {
  TEST_CASE("steps of two lengths on ranks with parts of tensors and on stages lose what one rank loses") {
    const std::vector<double> want = losses_on(plan_on("data=1", 0, std::nullopt), nullptr);
    CHECK(want[5] < want[1]);
    using Schedule = PipelineSchedule;
    const std::tuple<const char*, int, std::optional<Schedule>, int64_t> cases[] = {
        {"data=2", 1, std::nullopt, 0},
        {"tensor=2", 0, std::nullopt, 0},
        {"data=2,tensor=2", 1, std::nullopt, 0},
        {"data=2,tensor=2", 3, std::nullopt, 0},
        {"stage=2", 0, Schedule::OneForwardOneBackward, 0},
        {"stage=2", 0, Schedule::V, 0},
        {"stage=2", 0, Schedule::Interleaved, 0},
        {"stage=2", 0, Schedule::Interleaved, 3},  // of which the last ones have no states
        {"data=2,stage=2", 3, Schedule::ZeroBubble, 0},
        {"tensor=2,stage=2", 0, Schedule::OneForwardOneBackward, 0}};
    for (const auto& [mesh, zero, schedule, runs_per_stage] : cases) {
      const std::string where = std::string(mesh) + " zero " + std::to_string(zero) + " schedule " +
                                (schedule ? schedule_names[static_cast<size_t>(*schedule)].str() : "none") + " " +
                                std::to_string(runs_per_stage);
      CAPTURE(where);
      const Plan plan = plan_on(mesh, zero, schedule, runs_per_stage);
      auto ranks = make_thread_ranks(plan.mesh.ranks());
      std::vector<std::vector<double>> got(ranks.size());
      std::vector<std::thread> threads;
      for (auto& rank : ranks)
        threads.emplace_back([&, own = rank.get()] { got[static_cast<size_t>(own->rank())] = losses_on(plan, own); });
      for (std::thread& thread : threads) thread.join();
      for (const std::vector<double>& each : got)
        for (size_t i = 0; i < want.size(); ++i) CHECK(each[i] == doctest::Approx(want[i]).epsilon(1e-6));
    }
  }
}

}  // namespace
}  // namespace plimsoll
