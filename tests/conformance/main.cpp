// Runs the ONNX project's backend node tests through import and a backend, each in its own process so that a crash is
// one failure. Prints passed, declined and failed cases by operator; exits with 1 if too few pass.
//
//   conformance [--backend cpu|reference] [--declined] [FOLDER] [CASE...]

#include "ir/evaluate.h"
#include "ir/plan/check.h"
#include "ir/support/strings.h"
#include "passes/lower_to_plan.h"
#include "passes/pipelines.h"
#include "runtime/cpu/cpu_catalog.h"
#include "runtime/executor.h"
#include "tests/conformance/node_case.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/Format.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"

#include <sys/wait.h>
#include <unistd.h>

using namespace plimsoll;
using namespace plimsoll::conformance;

namespace {

constexpr int min_passed = 450;
constexpr llvm::StringLiteral default_folder = "/usr/share/libonnx-testdata/data/node";

// Operators of common models. All of their tensor-typed cases must pass.
constexpr llvm::StringLiteral required_operators[] = {"Add",
                                                      "And",
                                                      "Attention",
                                                      "AveragePool",
                                                      "BatchNormalization",
                                                      "Cast",
                                                      "CastLike",
                                                      "Concat",
                                                      "Constant",
                                                      "ConstantOfShape",
                                                      "Conv",
                                                      "ConvTranspose",
                                                      "Cos",
                                                      "CumSum",
                                                      "Div",
                                                      "Dropout",
                                                      "Equal",
                                                      "Erf",
                                                      "Expand",
                                                      "Flatten",
                                                      "Gather",
                                                      "GatherElements",
                                                      "GatherND",
                                                      "Gelu",
                                                      "Gemm",
                                                      "GlobalAveragePool",
                                                      "GreaterOrEqual",
                                                      "Identity",
                                                      "InstanceNormalization",
                                                      "IsNaN",
                                                      "LSTM",
                                                      "LayerNormalization",
                                                      "LessOrEqual",
                                                      "MatMul",
                                                      "Max",
                                                      "MaxPool",
                                                      "Mul",
                                                      "Neg",
                                                      "Not",
                                                      "Pow",
                                                      "Range",
                                                      "Reciprocal",
                                                      "ReduceMean",
                                                      "ReduceSum",
                                                      "Relu",
                                                      "Reshape",
                                                      "Resize",
                                                      "SequenceAt",
                                                      "Shape",
                                                      "Sigmoid",
                                                      "Sin",
                                                      "Slice",
                                                      "Softmax",
                                                      "SoftmaxCrossEntropyLoss",
                                                      "SplitToSequence",
                                                      "Sqrt",
                                                      "Squeeze",
                                                      "Sub",
                                                      "Tanh",
                                                      "Transpose",
                                                      "Unsqueeze",
                                                      "Where"};

Result<std::vector<Tensor>> run_reference(const Graph& graph, const std::map<ValueId, const Tensor*>& bindings) {
  Result<Evaluation> evaluation = evaluate(graph, bindings);
  if (!evaluation) return evaluation.takeError();
  return std::move(evaluation->outputs);
}

// Runs the same stages as a training step: buffers, order, placement, checker, and executor with dead bytes poisoned.
Result<Plan> plan_for_cpu(const Graph& graph) {
  Result<DeviceCatalog> devices = DeviceCatalog::builtin();
  if (!devices) return devices.takeError();
  Result<DeviceDescription> device = devices->find("cpu");
  if (!device) return device.takeError();
  CpuCatalog catalog;
  PlanDraft draft(Program{{graph}}, *device, catalog);
  PassManager passes;
  if (Result<bool> scheduled = run_steps(passes, draft, schedule_pipeline); !scheduled) return scheduled.takeError();
  Result<Plan> plan = lower_to_plan({draft, 0});
  if (!plan) return plan.takeError();
  if (Status s = check_plan(*plan)) return s;
  return plan;
}

Result<std::vector<Tensor>> run_cpu(const Graph& graph, const std::map<ValueId, const Tensor*>& bindings) {
  Result<Plan> plan = plan_for_cpu(graph);
  if (!plan) return plan.takeError();
  ExecutorOptions options;
  options.threads = 1;
  options.poison = true;
  Result<std::unique_ptr<Executor>> executor = Executor::create(*plan, options);
  if (!executor) return executor.takeError();
  auto fill = [&](ValueId value, SlotId slot) -> Status {
    auto bound = bindings.find(value);
    if (bound == bindings.end()) return Status::success();
    return (*executor)->write(slot, [&](const TensorView& view) {
      std::memcpy(view.data, bound->second->data(), static_cast<size_t>(view.type.bytes()));
      return Status::success();
    });
  };
  for (size_t i = 0; i < graph.states.size(); ++i)
    if (Status s = fill(graph.states[i].value, plan->states[i].slot)) return s;
  for (size_t i = 0; i < graph.inputs.size(); ++i)
    if (Status s = fill(graph.inputs[i], plan->functions[0].inputs[i].slot)) return s;
  if (Result<int64_t> run = (*executor)->run(0); !run) return run.takeError();
  std::vector<Tensor> outputs;
  for (const PlanOutput& output : plan->functions[0].outputs)
    if (Status s = (*executor)->read(output.slot, [&](const TensorView& view) {
          outputs.emplace_back(view.type, view.data);
          return Status::success();
        }))
      return s;
  return outputs;
}

// The child process writes one digit and the reason to a pipe.
Verdict run_apart(const std::string& folder, Backend backend) {
  int ends[2];
  if (pipe(ends) != 0) return {Outcome::Failed, "no pipe"};
  pid_t child = fork();
  if (child == 0) {
    Verdict verdict = run_case(folder, backend);
    std::string text = std::to_string(static_cast<int>(verdict.outcome)) + verdict.reason;
    ssize_t written = write(ends[1], text.data(), text.size());
    _exit(written < 0 ? 1 : 0);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t size; (size = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(size));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) return {Outcome::Failed, "crashed with signal " + std::to_string(WTERMSIG(status))};
  if (text.empty()) return {Outcome::Failed, "ended without a verdict"};
  return {static_cast<Outcome>(text[0] - '0'), text.substr(1)};
}

struct Counts {
  int passed = 0, declined = 0, failed = 0;

  void add(Outcome outcome) {
    ++(outcome == Outcome::Passed ? passed : outcome == Outcome::Declined ? declined : failed);
  }
};

void print_table(const std::map<std::string, Counts>& by_operator, const Counts& total) {
  auto line = [](llvm::StringRef name, const Counts& c) {
    llvm::outs() << llvm::left_justify(name, 32) << llvm::format("%8d %8d %8d\n", c.passed, c.declined, c.failed);
  };
  llvm::outs() << llvm::left_justify("operator", 32) << "  passed declined   failed\n";
  for (const auto& [name, counts] : by_operator) line(name, counts);
  line("total", total);
}

std::vector<std::string> list_cases(llvm::StringRef folder) {
  std::vector<std::string> cases;
  std::error_code error;
  for (llvm::sys::fs::directory_iterator at(folder, error), end; at != end && !error; at.increment(error))
    if (llvm::sys::fs::exists(at->path() + "/model.onnx")) cases.push_back(llvm::sys::path::filename(at->path()).str());
  llvm::sort(cases);
  return cases;
}

struct Arguments {
  std::string folder = default_folder.str();
  std::vector<std::string> cases;
  Backend backend = run_cpu;
  bool show_declined = false;
};

Result<Arguments> read_arguments(int count, char** values) {
  Arguments arguments;
  for (int i = 1; i < count; ++i) {
    std::string value = values[i];
    if (value == "--declined") {
      arguments.show_declined = true;
    } else if (value == "--backend" && i + 1 < count) {
      llvm::StringRef name = values[++i];
      if (name != "cpu" && name != "reference")
        return usage_error("no backend " + name + "; there are cpu and reference");
      arguments.backend = name == "cpu" ? run_cpu : run_reference;
    } else if (starts_with(value, "--")) {
      return usage_error("unknown option " + value);
    } else if (llvm::sys::fs::is_directory(value)) {
      arguments.folder = value;
    } else {
      arguments.cases.push_back(value);
    }
  }
  return arguments;
}

}  // namespace

int main(int count, char** values) {
  constexpr int skipped = 77;
  Result<Arguments> arguments = read_arguments(count, values);
  if (!arguments) {
    llvm::errs() << take_diag(arguments.takeError()).text() << "\n";
    return 2;
  }
  bool all = arguments->cases.empty();
  std::vector<std::string> cases = all ? list_cases(arguments->folder) : arguments->cases;
  if (cases.empty()) {
    llvm::errs() << "no cases in " << arguments->folder << "; Debian has them as libonnx-testdata\n";
    return skipped;
  }
  std::map<std::string, Counts> by_operator;
  Counts total;
  int missing = 0;
  for (const std::string& name : cases) {
    std::string folder = arguments->folder + "/" + name;
    Verdict verdict = run_apart(folder, arguments->backend);
    std::string op = operator_of(folder);
    by_operator[op].add(verdict.outcome);
    total.add(verdict.outcome);
    bool required = verdict.outcome == Outcome::Declined && llvm::is_contained(required_operators, op) &&
                    !has_other_than_tensors(folder);
    missing += required;
    bool show = verdict.outcome == Outcome::Failed || required || arguments->show_declined || !all;
    if (show && verdict.outcome != Outcome::Passed)
      llvm::outs() << (verdict.outcome == Outcome::Failed ? "FAILED "
                       : required                         ? "MISSING "
                                                          : "declined ")
                   << name << ": " << verdict.reason << "\n";
  }
  print_table(by_operator, total);
  if (missing > 0) llvm::outs() << missing << " declined cases are of operators that every model may use\n";
  return total.failed == 0 && missing == 0 && (!all || total.passed >= min_passed) ? 0 : 1;
}
