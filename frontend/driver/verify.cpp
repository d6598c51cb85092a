#include "frontend/api/compare_onnxruntime.h"

#include "frontend/driver/job_ranks.h"
#include "frontend/inspect/text_table.h"
#include "ir/plan/adapters.h"
#include "ir/plan/check.h"
#include "ir/plan/serialize.h"
#include "ir/support/strings.h"
#include "ir/support/units.h"
#include "runtime/packed_weights.h"

#include "llvm/Support/FormatVariadic.h"

#include <algorithm>
#include <cmath>

// The command verify: a plan's step beside the reference interpreter's, and what is to blame where they differ.

namespace plimsoll {
namespace {

std::string kind_name(TensorDifference::Kind kind) {
  switch (kind) {
    case TensorDifference::Kind::Loss: return "loss";
    case TensorDifference::Kind::Gradient: return "gradient";
    case TensorDifference::Kind::State: return "next value";
    case TensorDifference::Kind::Value: return "value";
  }
  return "";
}

class Verification {
 public:
  Verification(const VerifyOptions& options, Console& console) : options_(options), console_(console) {}

  Status run() {
    if (Status s = open()) return s;
    console_.progress.phase("reference");
    Result<Program> program = make_reference_program(*forward_, request_);
    if (!program) return program.takeError();
    Result<std::unique_ptr<Session>> session = make_session();
    if (!session) return session.takeError();
    if (Status s = read_adapters_of(**session)) return s;
    Result<std::unique_ptr<BatchSource>> data = read_data(**session);
    if (!data) return data.takeError();
    if (!options_.against.empty())
      if (Status s = compare_import()) return s;
    Result<StepComparison> comparison = compare_step(**session, **data, *program, start_);
    if (!comparison) return comparison.takeError();
    console_.progress.finish();
    print(*comparison);
    return comparison->agrees() ? Status::success() : blame(*comparison);
  }

 private:
  Status open() {
    console_.progress.phase("load");
    Result<Plan> plan = load_plan(options_.plan);
    if (!plan) return plan.takeError();
    if (Status s = check_plan(*plan)) return in_context(options_.plan, std::move(s));
    if (plan->mesh.ranks() > 1)
      return usage_error(
          "a plan for several ranks has no whole step on one; compile the job for one rank to verify it");
    plan_ = std::move(*plan);
    if (!ends_with(options_.weights, ".onnx"))
      return usage_error("--weights " + options_.weights +
                         ": the reference step is that of the model; give the plan's .onnx file");
    request_ = request_of(plan_);
    Result<Graph> forward = import_model_of(plan_, options_.weights, request_);
    if (!forward) return forward.takeError();
    forward_ = std::move(*forward);
    Result<Weights> weights = open_weights(options_.weights);
    if (!weights) return weights.takeError();
    weights_ = std::move(*weights);
    start_.load = weights_.load;
    start_.seed = options_.seed;
    return Status::success();
  }

  // With the first values that the reference has.
  Result<std::unique_ptr<Session>> make_session() {
    Result<std::unique_ptr<Session>> session = Session::create(plan_, {.threads = options_.threads});
    if (!session) return session;
    if (Status s = (*session)->initialise(weights_.load, options_.seed, weights_.load_range, weights_.type_of))
      return s;
    return session;
  }

  // No file has codes of weights, nor fresh adapters: the reference starts with those that the session has drawn.
  Status read_adapters_of(Session& session) {
    for (const WholeState& state : session.whole_states()) {
      if (!parse_adapter_weight(state.init.source)) continue;
      if (Status s = session.read_state(state.name, [&](const TensorView& drawn) {
            drawn_[state.init.source] = Tensor(drawn.type, drawn.data);
            return Status::success();
          }))
        return s;
    }
    packer_.emplace(plan_, weights_.load, weights_.load_range, weights_.type_of);
    start_.load = [this](llvm::StringRef name, const TensorView& into) -> Status {
      if (packer_->makes(name)) return packer_->load(name, into);
      const auto drawn = drawn_.find(name.str());
      if (drawn == drawn_.end()) return weights_.load(name, into);
      for (int64_t i = 0; i < into.elements(); ++i) into.set(i, drawn->second.get(i));
      return Status::success();
    };
    return Status::success();
  }

  // Gives the data from their start, and keeps the batches of a step for the reference.
  Result<std::unique_ptr<BatchSource>> read_data(const Session& session) {
    const std::vector<InputSpec> inputs = session.inputs();
    Result<std::unique_ptr<BatchSource>> data = open_data(options_.data, inputs, session.rows_of_rank(options_.seed));
    if (!data) return data;
    start_.batches.clear();
    for (int64_t micro = 0; micro < plan_.training.accumulate; ++micro) {
      std::vector<Tensor> tensors;
      std::vector<TensorView> views;
      for (const InputSpec& input : inputs) views.push_back(tensors.emplace_back(input.type).view());
      if (Status s = (*data)->next(views)) return s;
      NamedTensors& batch = start_.batches.emplace_back();
      for (size_t i = 0; i < inputs.size(); ++i) batch.emplace(inputs[i].name, std::move(tensors[i]));
    }
    if (Status s = (*data)->seek(0)) return s;
    return data;
  }

  Status compare_import() {
    console_.progress.phase("ONNX Runtime");
    Result<RuntimeComparison> comparison = compare_with_onnxruntime(plan_, options_.against, start_);
    if (!comparison) return comparison.takeError();
    console_.progress.finish();
    const std::vector<TensorDifference>& tensors = comparison->tensors;
    const auto wrong = llvm::find_if(tensors, [](const TensorDifference& each) { return !each.agrees(); });
    const auto worst = std::max_element(tensors.begin(), tensors.end(),
                                        [](const auto& a, const auto& b) { return a.error < b.error; });
    const std::string beside = " forward values of " + options_.against + " beside ONNX Runtime " + comparison->version;
    if (wrong != tensors.end())
      return model_error("of " + std::to_string(tensors.size()) + beside + ", %" + wrong->name +
                         llvm::formatv(" is the first to differ: by {0:e2} of its largest element, the limit is {1:e2}",
                                       wrong->error, wrong->limit)
                             .str());
    console_.out << tensors.size() << beside
                 << llvm::formatv(": the largest difference is {0:e2} of its largest element, in %", worst->error)
                 << worst->name;
    if (comparison->random > 0)
      console_.out << "; " << comparison->random << " depend on random numbers and are left out";
    console_.out << "\n";
    return Status::success();
  }

  void print(const StepComparison& comparison) {
    console_.out << llvm::formatv("loss {0:f6}, reference {1:f6}\n", comparison.loss, comparison.reference_loss);
    TextTable table(console_.out, {console_.columns, console_.out_is_terminal});
    table.heading("worst tensors", "norm of the difference over the norm of the reference");
    constexpr size_t shown = 12;
    size_t count = 0, wrong = 0;
    for (const TensorDifference& each : comparison.tensors) {
      wrong += !each.agrees();
      if (count++ >= shown) continue;
      const std::string line = "  " + left(kind_name(each.kind), 12) + left(clipped_middle(each.name, 44), 45) +
                               right(llvm::formatv("{0:e2}", each.error).str(), 10) +
                               right(llvm::formatv("limit {0:e2}", each.limit).str(), 18);
      table.line(each.agrees() ? line : table.styled(Style::Warn, line + "  differs"));
    }
    console_.out << comparison.tensors.size() - wrong << " of " << comparison.tensors.size()
                 << " tensors agree with the reference in " << plan_.training.precision << "\n";
    console_.out.flush();
  }

  Status blame(const StepComparison& comparison) {
    const TensorDifference& worst = comparison.tensors.front();
    const std::string text = "the step differs from the reference, most in the " + kind_name(worst.kind) +
                             (worst.kind == TensorDifference::Kind::Loss ? "" : " of " + worst.name);
    Result<std::optional<Culprit>> culprit = find_culprit();
    if (!culprit) return in_context(text + ", and the search for the reason failed", culprit.takeError());
    if (!*culprit)
      return model_error(text +
                         "; every instruction, every pass, every split and every remat agrees by itself, so the "
                         "difference is rounding that adds up");
    const std::string folder = options_.reproducer.empty() ? options_.plan + ".verify" : options_.reproducer;
    if (Status s = write_reproducer(folder, **culprit)) return s;
    return model_error(text + "; " + (*culprit)->what + " is the first to differ: " + (*culprit)->detail + "; " +
                       folder + " reproduces it");
  }

  // A kernel is looked at first, because passes are judged by the interpreter alone.
  Result<std::optional<Culprit>> find_culprit() {
    console_.progress.phase("kernels");
    Result<std::unique_ptr<Session>> session = make_session();
    if (!session) return session.takeError();
    Result<std::unique_ptr<BatchSource>> data = read_data(**session);
    if (!data) return data.takeError();
    Result<std::optional<Culprit>> wrong = find_wrong_instruction(**session, **data);
    if (!wrong || *wrong) return wrong;
    console_.progress.phase("passes");
    Result<std::vector<ProgramAfter>> programs = programs_of_passes(*forward_, plan_, request_);
    if (!programs) return programs.takeError();
    const double limit = limits_of(plan_).gradient;
    wrong = find_wrong_pass(*programs, start_, limit);
    if (!wrong || *wrong) return wrong;
    console_.progress.phase("remats and copies");
    return find_wrong_schedule(plan_, programs->back().program, start_, limit);
  }

  const VerifyOptions& options_;
  Console& console_;
  Plan plan_;
  TrainingRequest request_;
  std::optional<Graph> forward_;
  Weights weights_;
  NamedTensors drawn_;  // adapters, by their names in files
  std::optional<WeightPacker> packer_;
  StepStart start_;
};

}  // namespace

Status verify_command(const VerifyOptions& options, Console& console) {
  return JobRanks::run(console, default_patience_s, [&](JobRanks& ranks) {
    return ranks.are_several()
               ? ranks.agreed(usage_error("verify compares the step of one process; " + llvm::Twine(ranks.count()) +
                                          " are running; start it without a launcher"))
               : Verification(options, console).run();
  });
}

}  // namespace plimsoll
