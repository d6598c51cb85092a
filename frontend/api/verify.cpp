#include "frontend/api/verify.h"

#include "ir/support/output_file.h"
#include "ir/text.h"
#include "passes/train/training_step.h"
#include "runtime/data/safetensors.h"

#include "llvm/ADT/ScopeExit.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/xxhash.h"

#include <cmath>
#include <cstring>

namespace plimsoll {
namespace {

// Gradients far below the largest one are noise of sums that cancel, such as that of a bias before a softmax.
constexpr double noise_share = 1e-3;

double norm_of(const Tensor& tensor) {
  double sum = 0;
  for (int64_t i = 0; i < tensor.type().elements(); ++i) sum += tensor.get(i) * tensor.get(i);
  return std::sqrt(sum);
}

double norm_of_difference(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.type().elements(); ++i) sum += (a.get(i) - b.get(i)) * (a.get(i) - b.get(i));
  return std::sqrt(sum);
}

double relative(double difference, double reference) {
  return difference == 0 ? 0 : difference / std::max(reference, 1e-30);
}

double largest_norm(const NamedTensors& tensors) {
  double largest = 0;
  for (const auto& [name, tensor] : tensors) largest = std::max(largest, norm_of(tensor));
  return largest;
}

void compare(TensorDifference::Kind kind, const NamedTensors& got, const NamedTensors& wanted, double floor,
             double limit, std::vector<TensorDifference>& to) {
  for (const auto& [name, reference] : wanted) {
    const auto found = got.find(name);
    if (found == got.end()) continue;
    to.push_back({kind, name, reference.type(),
                  relative(norm_of_difference(found->second, reference), std::max(norm_of(reference), floor)), limit});
  }
}

// Rounding of one op: of its result's dtype, and of sums of so many terms.
double limit_of_instruction(const OpDef& op, const OpCall& call, const Type& result) {
  double terms = 1;
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i)) terms = std::max(terms, static_cast<double>(call.operand(i).elements()));
  terms /= static_cast<double>(std::max<int64_t>(result.elements(), 1));
  if (op.flops) terms = std::max(terms, 64.0);
  DType made = result.dtype;
  for (size_t i = 0; i < call.count(); ++i)
    if (call.has(i) && is_16_bit_float(call.operand(i).dtype)) made = call.operand(i).dtype;
  const double rounding = made == DType::F64    ? 1e-13
                          : made == DType::BF16 ? 8e-3
                          : made == DType::F16  ? 1e-3
                          : is_float(made)      ? 2e-6
                                                : 0;
  return rounding * (4 + std::sqrt(terms));
}

class InstructionCheck {
 public:
  InstructionCheck(Session& session, size_t function)
      : session_(session), plan_(session.plan()), index_(function), function_(plan_.functions[function]) {}

  // `data` give the inputs; "update" has none.
  Result<std::optional<Culprit>> run(BatchSource& data) {
    Executor& executor = session_.executor();
    Result<llvm::ArrayRef<TensorView>> inputs = executor.next_inputs(index_);
    if (!inputs) return inputs.takeError();
    if (!inputs->empty())
      if (Status s = data.next(*inputs)) return s;
    for (size_t i = 0; i < inputs->size(); ++i)
      given_.emplace(function_.inputs[i].slot, Tensor((*inputs)[i].type, (*inputs)[i].data));
    if (Status s = capture(0)) return s;
    const Executor::Observer observer = [&](int32_t at) -> Status {
      if (!culprit_)
        if (Status s = check(at)) return s;
      return capture(at + 1);
    };
    Result<int64_t> run = executor.run(index_, &observer);
    if (!run) return run.takeError();
    return std::move(culprit_);
  }

 private:
  const Slot& slot(SlotId id) const { return plan_.slots[static_cast<size_t>(id)]; }

  Result<Tensor> read(SlotId id) {
    Tensor copy;
    if (Status s = session_.executor().read(id, [&](const TensorView& view) {
          copy = Tensor(view.type, view.data);
          return Status::success();
        }))
      return s;
    return copy;
  }

  // What the instruction is about to read. Inputs may reach the device only as the function starts.
  Status capture(int32_t at) {
    operands_.clear();
    if (culprit_ || at == static_cast<int32_t>(function_.instructions.size())) return Status::success();
    for (SlotId operand : function_.instructions[static_cast<size_t>(at)].operands) {
      if (operand < 0) {
        operands_.emplace_back();
        continue;
      }
      const auto given = at == 0 ? given_.find(plan_.storage_of(operand)) : given_.end();
      Result<Tensor> tensor =
          given == given_.end() ? read(operand) : Result<Tensor>(Tensor(slot(operand).type, given->second.data()));
      if (!tensor) return tensor.takeError();
      operands_.push_back(std::move(*tensor));
      if (given == given_.end()) look_for_overwritten(at, operand);
    }
    return Status::success();
  }

  // Bytes must still be those that their writer left.
  void look_for_overwritten(int32_t at, SlotId operand) {
    const auto written = written_.find(plan_.storage_of(operand));
    if (culprit_ || written == written_.end() || written->second == hash_of(operands_.back())) return;
    const Instruction& instruction = function_.instructions[static_cast<size_t>(at)];
    culprit_ = Culprit{"instruction " + std::to_string(at) + " of " + function_.name + ", " + instruction.op,
                       "its operand %" + slot(operand).name + " was overwritten since it was written",
                       "",
                       {{slot(operand).name, operands_.back()}}};
  }

  static uint64_t hash_of(const Tensor& tensor) {
    return llvm::xxHash64(
        llvm::StringRef(static_cast<const char*>(tensor.data()), static_cast<size_t>(tensor.type().bytes())));
  }

  Status check(int32_t at) {
    const Instruction& instruction = function_.instructions[static_cast<size_t>(at)];
    const OpDef& op = get_op(instruction.op);
    if (op.collective || op.engine == Engine::Ranks || instruction.done >= 0) return Status::success();
    llvm::SmallVector<const Tensor*, 6> operands;
    llvm::SmallVector<const Type*, 6> types;
    for (size_t i = 0; i < operands_.size(); ++i) {
      const bool is_absent = instruction.operands[i] < 0;
      operands.push_back(is_absent ? nullptr : &operands_[i]);
      types.push_back(is_absent ? nullptr : &operands_[i].type());
    }
    Result<std::vector<Tensor>> wanted = evaluate_node(op, instruction.attrs, operands);
    if (!wanted) return wanted.takeError();
    const OpCall call(op, instruction.attrs, types);
    for (size_t r = 0; r < wanted->size(); ++r) {
      Result<Tensor> got = read(instruction.results[r]);
      if (!got) return got.takeError();
      written_[plan_.storage_of(instruction.results[r])] = hash_of(*got);
      const double error = largest_error(*got, (*wanted)[r]),
                   limit = limit_of_instruction(op, call, (*wanted)[r].type());
      if (error <= limit) continue;
      blame(at, r, error, limit, std::move(*got), std::move((*wanted)[r]));
      return Status::success();
    }
    return Status::success();
  }

  void blame(int32_t at, size_t result, double error, double limit, Tensor got, Tensor wanted) {
    const Instruction& instruction = function_.instructions[static_cast<size_t>(at)];
    Culprit& culprit = culprit_.emplace();
    const std::string& name = slot(instruction.results[result]).name;
    culprit.what = "instruction " + std::to_string(at) + " of " + function_.name + ", " + instruction.op + " on " +
                   instruction.kernel;
    culprit.detail = "%" + name + " differs from its reference by " + llvm::formatv("{0:e2}", error).str() +
                     " of its largest element, the limit is " + llvm::formatv("{0:e2}", limit).str();
    Graph graph;
    graph.name = "instruction";
    llvm::SmallVector<ValueId, 6> operands;
    std::map<SlotId, ValueId> inputs;
    for (size_t i = 0; i < operands_.size(); ++i) {
      const SlotId id = instruction.operands[i];
      if (id < 0) {
        operands.push_back(ValueId::None);
        continue;
      }
      const auto [known, fresh] = inputs.try_emplace(id, ValueId::None);
      if (fresh) {
        known->second = graph.add_input(slot(id).name, slot(id).type);
        culprit.tensors.emplace(graph.value(known->second).name, operands_[i]);
      }
      operands.push_back(known->second);
    }
    std::vector<Type> types;
    std::vector<std::string> names;
    for (SlotId id : instruction.results) {
      types.push_back(slot(id).type);
      names.push_back(slot(id).name);
    }
    const NodeId node = graph.add_node(get_op(instruction.op), operands, instruction.attrs, types, names);
    for (ValueId value : graph.node(node).results) graph.outputs.push_back({graph.value(value).name, value});
    culprit.text = to_text(graph);
    culprit.tensors.emplace(name + ".planned", std::move(got));
    culprit.tensors.emplace(name + ".reference", std::move(wanted));
  }

  Session& session_;
  const Plan& plan_;
  const size_t index_;
  const PlanFunction& function_;
  std::map<SlotId, Tensor> given_;      // inputs, by their slot
  std::vector<Tensor> operands_;        // of the next instruction
  std::map<SlotId, uint64_t> written_;  // by storage: a hash of what its writer left
  std::optional<Culprit> culprit_;
};

// The largest error of the loss and of what the optimizer keeps: moments are gradients times a factor, while a
// parameter's change may have lost their size. Without moments it is the parameters.
struct ProgramError {
  double error = 0;
  std::string where;
};

ProgramError error_of_program(const StepResults& got, const StepResults& wanted, const Program& program) {
  ProgramError worst{relative(std::fabs(got.loss - wanted.loss), std::fabs(wanted.loss)), "the loss"};
  if (std::isnan(got.loss) != std::isnan(wanted.loss)) worst.error = INFINITY;
  NamedTensors states;
  bool has_moments = false;
  for (const Graph& graph : program.functions)
    for (const State& state : graph.states) has_moments |= state.role == StateRole::Optimizer;
  for (const Graph& graph : program.functions)
    for (const State& state : graph.states)
      if (has_moments ? state.role == StateRole::Optimizer : state.trained) {
        const std::string& name = graph.value(state.value).name;
        if (const auto found = wanted.states.find(name); found != wanted.states.end()) states.insert(*found);
      }
  const double floor = noise_share * largest_norm(states);
  std::vector<TensorDifference> differences;
  compare(TensorDifference::Kind::State, got.states, states, floor, 0, differences);
  for (const TensorDifference& each : differences)
    if (!(each.error <= worst.error)) worst = {each.error, "the next value of %" + each.name};
  return worst;
}

// The first value of a function that the earlier program has too, under its name, with other elements. Both start from
// the same states.
Result<std::string> first_changed_value(const Program& before, const Program& later, size_t function,
                                        const StepStart& start, double limit) {
  Result<NamedTensors> given = start_values(before, function, start);
  if (!given) return given.takeError();
  const Graph& after = later.functions[function];
  for (const State& state : after.states)  // a pass may have added it
    if (!given->count(after.value(state.value).name)) return std::string();
  Result<NamedTensors> old = run_reference_values(before.functions[function], *given);
  if (!old) return old.takeError();
  Result<NamedTensors> now = run_reference_values(after, *given);
  if (!now) return now.takeError();
  for (NodeId id : after.order())
    for (ValueId result : after.node(id).results) {
      const std::string& name = after.value(result).name;
      const auto was = old->find(name), is = now->find(name);
      if (was == old->end() || is == now->end() || was->second.type().shape != is->second.type().shape) continue;
      if (!(largest_error(is->second, was->second) <= limit)) return name;
    }
  return std::string();
}

// Each graph as it stands after the pass, the others as they stood; the forward graph until it is differentiated.
class ProgramsOfPasses {
 public:
  // `first` is the program without a pass, `split` that with the batch in chunks, if the plan has any.
  ProgramsOfPasses(std::string folder, const TrainingRequest& request, Program first, std::optional<Program> split)
      : folder_(std::move(folder)), request_(request), latest_(std::move(first)), split_(std::move(split)) {}

  // The files NN-pass.ir in order. Layouts, which follow the graph passes, do not parse.
  Result<std::vector<ProgramAfter>> read() {
    std::vector<std::string> files;
    std::error_code failure;
    for (llvm::sys::fs::directory_iterator at(folder_, failure), end; !failure && at != end; at.increment(failure))
      if (llvm::sys::path::extension(at->path()) == ".ir") files.push_back(at->path());
    if (failure) return system_error(folder_ + ": " + failure.message());
    llvm::sort(files);
    std::vector<ProgramAfter> programs;
    for (const std::string& file : files) {
      Result<bool> added = add(file, programs);
      if (!added) return added.takeError();
      if (!*added) break;
    }
    add_split(programs);
    return programs;
  }

 private:
  Result<bool> add(const std::string& file, std::vector<ProgramAfter>& programs) {
    auto text = llvm::MemoryBuffer::getFile(file);
    if (!text) return system_error(file + ": " + text.getError().message());
    Result<Program> parsed = parse_program((*text)->getBuffer(), file);
    if (!parsed) {
      llvm::consumeError(parsed.takeError());
      return false;
    }
    for (Graph& graph : parsed->functions) {
      if (graph.name != train_step_function && graph.name != update_function) {
        Result<Program> made = make_training_program(std::move(graph), request_);
        if (!made) return made.takeError();
        latest_ = std::move(*made);
      } else {
        add_split(programs);
        if (Graph* known = latest_.find(graph.name)) *known = std::move(graph);
      }
    }
    programs.push_back({llvm::sys::path::stem(file).split('-').second.str(), latest_});
    return true;
  }

  // It is made of the last forward graph, and the passes on the step follow.
  void add_split(std::vector<ProgramAfter>& programs) {
    if (!split_) return;
    latest_ = std::move(*split_);
    split_.reset();
    programs.push_back({"split-batch", latest_});
  }

  std::string folder_;
  const TrainingRequest& request_;
  Program latest_;
  std::optional<Program> split_;  // until it is added
};

}  // namespace

double largest_error(const Tensor& got, const Tensor& wanted) {
  double largest = 0, difference = 0;
  for (int64_t i = 0; i < wanted.type().elements(); ++i) {
    const double x = got.get(i), y = wanted.get(i);
    if (x == y || (std::isnan(x) && std::isnan(y))) continue;
    if (!std::isfinite(x) || !std::isfinite(y)) return INFINITY;
    difference = std::max(difference, std::fabs(x - y));
  }
  for (int64_t i = 0; i < wanted.type().elements(); ++i)
    if (std::isfinite(wanted.get(i))) largest = std::max(largest, std::fabs(wanted.get(i)));
  return relative(difference, largest);
}

VerifyLimits limits_of(const Plan& plan) {
  const std::string& precision = plan.training.precision;
  if (precision == "bf16") return {2e-2, 0.15, 2e-2};
  if (precision == "fp8") return {5e-2, 0.5, 5e-2};
  if (precision == "fp16") return {4e-3, 0.05, 4e-3};
  if (precision == "tf32") return {2e-3, 0.03, 2e-3};
  return {1e-5, 1e-3, 1e-5};
}

bool StepComparison::agrees() const {
  return llvm::all_of(tensors, [](const TensorDifference& each) { return each.agrees(); });
}

Result<StepComparison> compare_step(Session& session, BatchSource& data, const Program& program,
                                    const StepStart& start) {
  Result<StepResults> reference = run_reference_step(program, start);
  if (!reference) return in_context("reference", reference.takeError());
  NamedTensors gradients;
  const GradientSink sink = [&](llvm::StringRef parameter, const Tensor& gradient) {
    gradients.emplace(parameter.str(), gradient);
    return Status::success();
  };
  Result<StepMetrics> metrics = session.step(data, &sink);
  if (!metrics) return metrics.takeError();
  const VerifyLimits limits = limits_of(session.plan());
  StepComparison comparison{metrics->loss, reference->loss, {}};
  comparison.tensors.push_back({TensorDifference::Kind::Loss, "loss", Type(),
                                relative(std::fabs(metrics->loss - reference->loss), std::fabs(reference->loss)),
                                limits.loss});
  compare(TensorDifference::Kind::Gradient, gradients, reference->gradients,
          noise_share * largest_norm(reference->gradients), limits.gradient, comparison.tensors);

  Result<NamedTensors> updated = run_reference_update(program, start, gradients, reference->weight);
  if (!updated) return in_context("reference", updated.takeError());
  for (const auto& [name, tensor] : reference->states) updated->emplace(name, tensor);
  NamedTensors planned;
  for (const auto& [name, tensor] : *updated) {
    Status read = session.read_state(name, [&](const TensorView& view) {
      planned.emplace(name, Tensor(view.type, view.data));
      return Status::success();
    });
    // Counters of the loss scale and states of a precision are the plan's alone, and the other way round.
    if (read) llvm::consumeError(std::move(read));
  }
  compare(TensorDifference::Kind::State, planned, *updated, 0, limits.state, comparison.tensors);
  llvm::stable_sort(comparison.tensors, [](const TensorDifference& a, const TensorDifference& b) {
    const auto share = [](const TensorDifference& each) {
      return std::isnan(each.error) ? INFINITY : each.error / each.limit;
    };
    return share(a) > share(b);
  });
  return comparison;
}

Status write_reproducer(const std::string& folder, const Culprit& culprit) {
  if (std::error_code failure = llvm::sys::fs::create_directories(folder))
    return system_error(folder + ": " + failure.message());
  if (Status s = write_output_file(folder + "/graph.ir", [&](llvm::raw_ostream& out) {
        out << "// " << culprit.what << "\n// " << culprit.detail << "\n" << culprit.text;
        return Status::success();
      }))
    return s;
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : culprit.tensors) entries.push_back({name, tensor.type()});
  return write_safetensors(folder + "/tensors.safetensors", entries, [&](const TensorEntry& entry, void* out) {
    std::memcpy(out, culprit.tensors.at(entry.name).data(), static_cast<size_t>(entry.type.bytes()));
    return Status::success();
  });
}

Result<std::optional<Culprit>> find_wrong_instruction(Session& session, BatchSource& data) {
  for (llvm::StringRef name : {train_step_function, update_function}) {
    const std::optional<size_t> function = session.plan().find_function(name);
    if (!function) continue;
    for (int64_t call = 0; call < session.plan().calls_per_step(*function); ++call) {
      Result<std::optional<Culprit>> wrong = InstructionCheck(session, *function).run(data);
      if (!wrong || *wrong) return wrong;
    }
  }
  return std::nullopt;
}

Result<std::optional<Culprit>> find_wrong_pass(llvm::ArrayRef<ProgramAfter> programs, const StepStart& start,
                                               double limit) {
  if (programs.empty()) return std::nullopt;
  Result<StepResults> wanted = run_reference_step(programs.front().program, start);
  if (!wanted) return wanted.takeError();
  const auto error_of = [&](size_t i) -> Result<ProgramError> {
    Result<StepResults> got = run_reference_step(programs[i].program, start);
    if (!got) return in_context("after " + programs[i].pass, got.takeError());
    return error_of_program(*got, *wanted, programs[i].program);
  };
  size_t right = 0, wrong = programs.size() - 1;
  Result<ProgramError> error = error_of(wrong);
  if (!error) return error.takeError();
  if (error->error <= limit) return std::nullopt;
  while (wrong - right > 1) {
    const size_t middle = (right + wrong) / 2;
    Result<ProgramError> here = error_of(middle);
    if (!here) return here.takeError();
    if (here->error <= limit) {
      right = middle;
    } else {
      wrong = middle;
      error = std::move(here);
    }
  }
  const Program &before = programs[right].program, &after = programs[wrong].program;
  Result<std::string> value = std::string();
  size_t function = 0;
  for (; function < after.functions.size() && value->empty(); ++function) {
    value = first_changed_value(before, after, function, start, limit);
    if (!value) return value.takeError();
  }
  Result<NamedTensors> tensors = start_values(after, value->empty() ? 0 : function - 1, start);
  if (!tensors) return tensors.takeError();
  return std::optional<Culprit>(
      {"pass " + programs[wrong].pass,
       error->where +
           llvm::formatv(" differs by {0:e2} of its norm after it, the limit is {1:e2}", error->error, limit).str() +
           (value->empty() ? "" : "; the first value that changed is %" + *value),
       "// before " + programs[wrong].pass + "\n" + to_text(before) + "\n// after\n" + to_text(after),
       std::move(*tensors)});
}

Result<std::vector<ProgramAfter>> programs_of_passes(Graph forward, const Plan& plan, const TrainingRequest& request) {
  llvm::SmallString<128> folder;
  if (std::error_code failure = llvm::sys::fs::createUniqueDirectory("plimsoll-verify", folder))
    return system_error(failure.message());
  const auto remove = llvm::make_scope_exit([&] { llvm::sys::fs::remove_directories(folder); });
  CompileHooks hooks;
  hooks.pipeline.dump_dir = folder.str().str();
  Result<Program> raw = make_training_program(forward, request);
  if (!raw) return raw.takeError();
  PassManager passes(hooks);
  if (Status s = clean_graph(forward, passes)) return s;
  const std::unique_ptr<KernelCatalog> catalog = kernel_catalog_for(plan.device);
  TrainingRequest adapted = request;  // the graph has its adapters and quantised weights already
  adapted.adapters = {};
  adapted.quantize = {};
  Result<ForwardModel> model =
      prepare_forward({std::move(forward), std::move(passes)}, adapted, catalog->preferences());
  if (!model) return model.takeError();
  SplitChoice split;
  std::optional<Program> in_chunks;
  if (plan.fit.chunks > 1) {
    split = {model->graph.find_value(plan.fit.chunks_from), plan.fit.chunks};
    if (split.from == ValueId::None)
      return model_error("the model has no value " + plan.fit.chunks_from + ", behind which the plan has chunks");
    Result<Program> program = make_program(*model, split, request);
    if (!program) return program.takeError();
    in_chunks = std::move(*program);
  }
  Result<Derived> derived = derive_program(*model, split, request, plan.device, *catalog, model->passes);
  if (!derived) return derived.takeError();
  Result<std::vector<ProgramAfter>> programs =
      ProgramsOfPasses(folder.str().str(), request, *raw, std::move(in_chunks)).read();
  if (programs) programs->insert(programs->begin(), {"import", std::move(*raw)});
  return programs;
}

}  // namespace plimsoll
