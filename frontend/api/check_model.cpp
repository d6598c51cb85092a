#include "frontend/api/check_model.h"

#include "frontend/onnx/open_dims.h"
#include "ir/support/units.h"
#include "passes/analysis/dependence.h"
#include "passes/analysis/index_inputs.h"
#include "passes/partition/resize_batch.h"
#include "passes/rewrite/match.h"
#include "passes/train/differentiate.h"
#include "passes/train/exported_adapters.h"
#include "passes/train/training_step.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr size_t max_weights_named = 4;

llvm::StringRef title_of(Obstacle::Kind kind) {
  switch (kind) {
    case Obstacle::Kind::UnsupportedOp: return "unsupported operator";
    case Obstacle::Kind::UnboundDim: return "unbound dimension";
    case Obstacle::Kind::DataDependent: return "shape that depends on data";
    case Obstacle::Kind::BadNode: return "broken node";
    case Obstacle::Kind::BadModel: return "broken model";
    case Obstacle::Kind::FoldedBatchNorm: return "folded batch norm";
    case Obstacle::Kind::LostParameter: return "missing parameter";
  }
  return "";
}

class Checker {
 public:
  Checker(CompileRequest request, const CompileHooks& hooks) : request_(std::move(request)), hooks_(hooks) {}

  Result<ModelCheck> run();

 private:
  void bind_open_dims(const onnx::GraphProto& graph);
  Imported import_model(const Model& model);
  void add_open_dims();
  void guess_job(const Graph& graph);
  void guess_groups(const Graph& graph);
  void add_import_findings(const ImportReport& report);
  void add_adapter_findings(const Graph& graph);
  void add_failure(llvm::StringRef title, Status failure);
  bool settle(Graph& graph);
  void add_gradient_findings(const Graph& graph);
  std::string what_freezing_does(const Graph& graph, llvm::ArrayRef<NodeId> nodes) const;
  void try_training_step(Graph graph);
  void enter(llvm::StringRef phase) const {
    if (hooks_.on_phase) hooks_.on_phase(phase);
  }
  bool blocked() const {
    return llvm::any_of(check_.findings, [](const Finding& finding) { return finding.blocks; });
  }

  CompileRequest request_;
  const CompileHooks& hooks_;
  ModelCheck check_;
  std::vector<OpenDim> taken_;  // whose sizes are guessed
};

// A dimension that leads an input counts samples; others are most likely lengths.
void Checker::bind_open_dims(const onnx::GraphProto& graph) {
  constexpr int64_t samples = 8, length = 128;
  for (OpenDim& dim : open_dims(graph))
    if (request_.import.dims.emplace(dim.name, dim.leads ? samples : length).second) taken_.push_back(std::move(dim));
}

// Where the guessed lengths are too large for the model's tables, shorter ones are tried.
Imported Checker::import_model(const Model& model) {
  Imported imported = survey_model(model, request_.import);
  const auto is_broken = [](const Obstacle& obstacle) { return obstacle.kind == Obstacle::Kind::BadNode; };
  for (const int64_t length : {64, 32, 16, 8}) {
    if (!llvm::any_of(imported.report.obstacles, is_broken)) break;
    ImportOptions shorter = request_.import;
    for (const OpenDim& dim : taken_)
      if (!dim.leads) shorter.dims[dim.name] = length;
    if (shorter.dims == request_.import.dims) break;
    Imported again = survey_model(model, shorter);
    if (again.report.blocked()) continue;
    request_.import = std::move(shorter);
    return again;
  }
  return imported;
}

void Checker::add_open_dims() {
  for (const OpenDim& dim : taken_) {
    const int64_t size = request_.import.dims.at(dim.name);
    check_.guess.dims.emplace_back(dim.name, size);
    check_.findings.push_back(
        {"open dimension " + dim.name,
         "the check took " + dim.name + "=" + std::to_string(size) + "; a job says --dim " + dim.name + "=N",
         {dim.input},
         "",
         false});
  }
}

// A model that ends in its predictions: the labels are an integer input with a number for each row of them, else a new
// input.
std::string guess_loss(const Graph& graph) {
  const Output* prediction = nullptr;
  for (const Output& output : graph.outputs) {
    const Type& type = graph.type(output.value);
    if (is_float(type.dtype) && type.elements() == 1) return "";  // it may be the loss; several of them need a choice
    if (is_float(type.dtype) && type.rank() > 0 && (!prediction || output.name == "logits")) prediction = &output;
  }
  if (!prediction) return "";
  const Type& type = graph.type(prediction->value);
  const int64_t classes = type.rank() < 2 ? 1 : type.rank() <= 3 ? type.shape.back() : type.shape[1];
  if (classes < 2) return "mse:" + prediction->name + ":target";
  for (ValueId input : graph.inputs) {
    const Type& candidate = graph.type(input);
    const llvm::StringRef name = graph.value(input).name;
    if (!is_float(candidate.dtype) && candidate.elements() == type.elements() / classes &&
        (name.contains_insensitive("label") || name.contains_insensitive("target")))
      return "cross-entropy:" + prediction->name + ":" + name.str();
  }
  return "cross-entropy:" + prediction->name + ":labels";
}

void Checker::guess_job(const Graph& graph) {
  for (ValueId input : graph.inputs)
    check_.guess.inputs.push_back(graph.value(input).name + " " + to_string(graph.type(input)));
  for (const Output& output : graph.outputs)
    check_.guess.outputs.push_back(output.name + " " + to_string(graph.type(output.value)));
  if (!request_.training.loss.empty()) return;
  check_.guess.loss = request_.training.loss = guess_loss(graph);
  if (!check_.guess.loss.empty())
    check_.findings.push_back({"no loss in the model",
                               "no output is a float scalar; the check took --loss " + check_.guess.loss,
                               {},
                               "",
                               false});
}

void Checker::add_import_findings(const ImportReport& report) {
  for (const Obstacle& obstacle : report.obstacles) {
    bool many = obstacle.kind == Obstacle::Kind::LostParameter;  // one obstacle lists all of them
    Finding finding{(title_of(obstacle.kind) + (many ? "s" : " " + obstacle.subject)).str(), obstacle.message,
                    obstacle.nodes, "", obstacle.blocks()};
    if (obstacle.kind == Obstacle::Kind::UnsupportedOp)
      finding.freezing = "freezing weights does not help: the forward pass needs it";
    check_.findings.push_back(std::move(finding));
  }
}

void Checker::add_adapter_findings(const Graph& graph) {
  Result<std::vector<ExportedAdapter>> adapters = exported_adapters_of(graph);
  if (!adapters) return add_failure("broken adapter", adapters.takeError());
  if (adapters->empty()) return;
  Finding finding{
      "adapters in the model",
      describe(graph, *adapters) + "; they are trained and the rest is frozen, unless --train says otherwise",
      {},
      "",
      false};
  for (const ExportedAdapter& adapter : *adapters) finding.nodes.push_back(adapter.module);
  check_.findings.push_back(std::move(finding));
}

void Checker::add_failure(llvm::StringRef title, Status failure) {
  check_.findings.push_back({title.str(), take_diag(std::move(failure)).text(), {}, "", true});
}

// Attaches the loss, cleans, sets the batch and selects the trained weights. Returns false if later stages cannot run.
bool Checker::settle(Graph& graph) {
  if (Status s = attach_loss(graph, request_.training.loss)) return add_failure("no loss", std::move(s)), false;
  PassManager passes;
  if (Status s = clean_graph(graph, passes)) return add_failure("simplification failed", std::move(s)), false;
  if (request_.training.batch > 0)
    if (Status s = resize_batch(graph, request_.training.batch))
      return add_failure("batch cannot be changed", std::move(s)), false;
  if (Status s = select_trained(graph, request_.training.train, request_.training.freeze))
    return add_failure("nothing to train as asked", std::move(s)), false;
  return true;
}

std::vector<ValueId> trained_values(const Graph& graph) {
  std::vector<ValueId> values;
  for (const State& state : graph.states)
    if (state.trained) values.push_back(state.value);
  return values;
}

// Freezing all trained weights that `nodes` depend on would remove the obstacle.
std::string Checker::what_freezing_does(const Graph& graph, llvm::ArrayRef<NodeId> nodes) const {
  llvm::SmallVector<ValueId, 16> read;
  for (NodeId id : nodes) read.append(graph.node(id).operands.begin(), graph.node(id).operands.end());
  llvm::erase_if(read, [](ValueId value) { return value == ValueId::None; });
  const std::vector<bool> wanted = find_contributing(graph, read, Flow::Data);
  std::vector<std::string> upstream;
  std::vector<ValueId> trained = trained_values(graph);
  for (ValueId value : trained)
    if (wanted[index_of(value)]) upstream.push_back(graph.value(value).name);
  if (upstream.size() == trained.size()) return "freezing does not help: it depends on every trained weight";
  std::string names = upstream.size() <= max_weights_named ? ": " + llvm::join(upstream, ", ")
                                                           : ": " + upstream.front() + " ... " + upstream.back();
  return "freezing the " + std::to_string(upstream.size()) + " of " + std::to_string(trained.size()) +
         " trained weights that it depends on removes this" + names;
}

// Adds one finding per op, with all of its nodes.
void Checker::add_gradient_findings(const Graph& graph) {
  llvm::MapVector<const OpDef*, std::vector<NodeId>> by_op;
  for (NodeId id :
       find_gradient_ends(graph, graph.outputs.front().value, trained_values(graph), Gradient::Kind::Missing))
    by_op[graph.node(id).op].push_back(id);
  for (const auto& [op, nodes] : by_op) {
    Finding finding{("no gradient through " + op->name).str(),
                    op->gradient.why().str(),
                    {},
                    what_freezing_does(graph, nodes),
                    true};
    for (NodeId id : nodes) finding.nodes.push_back(model_name(graph, id));
    check_.findings.push_back(std::move(finding));
  }
}

void Checker::try_training_step(Graph graph) {
  if (Result<Program> program = make_training_program(std::move(graph), {}); !program)
    add_failure("no training step", program.takeError());
}

std::string describe_trained(const Graph& graph) {
  std::vector<ValueId> trained = trained_values(graph);
  int64_t elements = 0;
  for (ValueId value : trained) elements += graph.type(value).elements();
  return format_count(elements) + " numbers in " + std::to_string(trained.size()) + " of " +
         std::to_string(graph.states.size()) + " weights, " + std::to_string(graph.node_count()) + " nodes, loss " +
         graph.outputs.front().name;
}

// Trained weights as recipes for fine-tuning divide them: decay is for matrices.
void Checker::guess_groups(const Graph& graph) {
  int64_t weights[2] = {0, 0}, numbers[2] = {0, 0};
  for (ValueId value : trained_values(graph)) {
    const bool is_vector = graph.type(value).rank() < 2;
    ++weights[is_vector];
    numbers[is_vector] += graph.type(value).elements();
  }
  const auto describe = [&](bool is_vector, const std::string& one, const std::string& several) {
    if (weights[is_vector] == 0) return;
    check_.guess.groups.push_back(std::to_string(weights[is_vector]) + " " + (weights[is_vector] == 1 ? one : several) +
                                  " with " + format_count(numbers[is_vector]) + " numbers");
  };
  describe(false, "matrix", "matrices");
  describe(true, "norm or bias", "norms and biases");
  check_.guess.has_norms_and_biases = weights[0] > 0 && weights[1] > 0;
}

Result<ModelCheck> Checker::run() {
  enter("import");
  Result<Model> model = Model::read(request_.model_path);
  if (!model) return model.takeError();
  bind_open_dims(model->proto().graph());
  Imported imported = import_model(*model);
  add_open_dims();
  add_import_findings(imported.report);

  // Results after an unsupported node are unknown, so its loss and gradients would be guesses.
  enter("check");
  if (!imported.report.blocked()) guess_job(imported.graph);
  if (!imported.report.blocked()) add_adapter_findings(imported.graph);
  if (!imported.report.blocked() && settle(imported.graph)) {
    check_.trained = describe_trained(imported.graph);
    guess_groups(imported.graph);
    check_.index_inputs = find_index_inputs(imported.graph);
    add_gradient_findings(imported.graph);
    if (!blocked()) try_training_step(std::move(imported.graph));
  }
  std::stable_partition(check_.findings.begin(), check_.findings.end(), [](const Finding& f) { return f.blocks; });
  return std::move(check_);
}

}  // namespace

Result<ModelCheck> check_model(const CompileRequest& request, const CompileHooks& hooks) {
  return Checker(request, hooks).run();
}

}  // namespace plimsoll
