#include "frontend/driver/commands.h"
#include "frontend/inspect/text_table.h"
#include "passes/train/differentiate.h"
#include "passes/train/resize_batch.h"
#include "passes/train/training_step.h"

#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringExtras.h"

#include <algorithm>

// Runs the stages of a compile one after the other and reports every obstacle, grouped by what would have to change. It
// continues after a failure where later stages can still say something.

namespace plimsoll {
namespace {

constexpr size_t max_nodes_shown = 4;

struct Finding {
  std::string title;    // "operator Det is not supported"
  std::string message;  // says what it means and what to do
  std::vector<std::string> nodes;
  std::string freezing;  // says whether leaving weights untrained helps
  bool blocks = true;
};

llvm::StringRef title_of(Obstacle::Kind kind) {
  switch (kind) {
    case Obstacle::Kind::UnsupportedOp:
      return "unsupported operator";
    case Obstacle::Kind::UnboundDim:
      return "unbound dimension";
    case Obstacle::Kind::DataDependent:
      return "shape that depends on data";
    case Obstacle::Kind::BadNode:
      return "broken node";
    case Obstacle::Kind::BadModel:
      return "broken model";
    case Obstacle::Kind::FoldedBatchNorm:
      return "folded batch norm";
    case Obstacle::Kind::LostParameter:
      return "missing parameter";
  }
  return "";
}

class ModelCheck {
 public:
  ModelCheck(const CheckOptions& options, Console& console)
      : options_(options), table_(console.out, {console.columns, console.out_is_terminal}), console_(console) {}

  Status run();

 private:
  void add_import_findings(const ImportReport& report);
  void add_failure(llvm::StringRef title, Status failure);
  bool settle(Graph& graph);
  void add_gradient_findings(const Graph& graph);
  std::string what_freezing_does(const Graph& graph, llvm::ArrayRef<NodeId> nodes) const;
  void try_training_step(Graph graph);
  void print() const;
  void print(const Finding& finding) const;
  size_t blocking() const {
    return static_cast<size_t>(llvm::count_if(findings_, [](const Finding& f) { return f.blocks; }));
  }

  const CheckOptions& options_;
  mutable TextTable table_;
  Console& console_;
  std::vector<Finding> findings_;
  std::string trained_line_;  // says what would be trained
};

void ModelCheck::add_import_findings(const ImportReport& report) {
  for (const Obstacle& obstacle : report.obstacles) {
    bool many = obstacle.kind == Obstacle::Kind::LostParameter;  // one obstacle lists all of them
    Finding finding{(title_of(obstacle.kind) + (many ? "s" : " " + obstacle.subject)).str(), obstacle.message,
                    obstacle.nodes, "", obstacle.blocks()};
    if (obstacle.kind == Obstacle::Kind::UnsupportedOp)
      finding.freezing = "freezing weights does not help: the forward pass needs it";
    findings_.push_back(std::move(finding));
  }
}

void ModelCheck::add_failure(llvm::StringRef title, Status failure) {
  findings_.push_back({title.str(), take_diag(std::move(failure)).text(), {}, "", true});
}

// Attaches the loss, cleans, sets the batch and selects the trained weights. Returns false if later stages cannot run.
bool ModelCheck::settle(Graph& graph) {
  if (Status s = attach_loss(graph, options_.model.loss)) return add_failure("no loss", std::move(s)), false;
  PassManager passes;
  if (Status s = clean_graph(graph, passes)) return add_failure("simplification failed", std::move(s)), false;
  if (options_.model.batch > 0)
    if (Status s = rebatch(graph, options_.model.batch))
      return add_failure("batch cannot be changed", std::move(s)), false;
  if (Status s = select_trained(graph, options_.model.train, options_.model.freeze))
    return add_failure("nothing to train as asked", std::move(s)), false;
  return true;
}

std::vector<ValueId> trained_values(const Graph& graph) {
  std::vector<ValueId> values;
  for (const State& state : graph.states)
    if (state.trained) values.push_back(state.value);
  return values;
}

std::string origin_name(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (node.origin != OriginId::None) return graph.origins[index_of(node.origin)].node;
  return graph.value(node.results.front()).name;
}

// Freezing all trained weights that `nodes` depend on would remove the obstacle.
std::string ModelCheck::what_freezing_does(const Graph& graph, llvm::ArrayRef<NodeId> nodes) const {
  std::vector<bool> wanted(graph.value_count());
  for (NodeId id : nodes)
    for (ValueId operand : graph.node(id).operands)
      if (operand != ValueId::None) wanted[index_of(operand)] = true;
  for (NodeId id = graph.last_node(); id != NodeId::None; id = graph.node(id).previous) {
    const Node& node = graph.node(id);
    if (llvm::none_of(node.results, [&](ValueId result) { return wanted[index_of(result)]; })) continue;
    for (ValueId operand : node.operands)
      if (operand != ValueId::None) wanted[index_of(operand)] = true;
  }
  std::vector<std::string> upstream;
  std::vector<ValueId> trained = trained_values(graph);
  for (ValueId value : trained)
    if (wanted[index_of(value)]) upstream.push_back(graph.value(value).name);
  if (upstream.size() == trained.size()) return "freezing does not help: it depends on every trained weight";
  std::string names = upstream.size() <= max_nodes_shown ? ": " + llvm::join(upstream, ", ")
                                                         : ": " + upstream.front() + " ... " + upstream.back();
  return "freezing the " + std::to_string(upstream.size()) + " of " + std::to_string(trained.size()) +
         " trained weights that it depends on removes this" + names;
}

// Adds one finding per op, with all of its nodes.
void ModelCheck::add_gradient_findings(const Graph& graph) {
  llvm::MapVector<const OpDef*, std::vector<NodeId>> by_op;
  llvm::DenseMap<const OpDef*, std::string> why;
  for (const GradientObstacle& obstacle :
       find_gradient_obstacles(graph, graph.outputs.front().value, trained_values(graph))) {
    const OpDef* op = graph.node(obstacle.node).op;
    by_op[op].push_back(obstacle.node);
    why[op] = obstacle.why;
  }
  for (const auto& [op, nodes] : by_op) {
    Finding finding{("no gradient through " + op->name).str(), why[op], {}, what_freezing_does(graph, nodes), true};
    for (NodeId id : nodes) finding.nodes.push_back(origin_name(graph, id));
    findings_.push_back(std::move(finding));
  }
}

void ModelCheck::try_training_step(Graph graph) {
  TrainingRequest request;
  if (Result<Program> program = make_training_program(std::move(graph), request); !program)
    add_failure("no training step", program.takeError());
}

void ModelCheck::print(const Finding& finding) const {
  std::string count = finding.nodes.size() > 1 ? ", " + std::to_string(finding.nodes.size()) + " nodes" : "";
  table_.line(table_.styled(finding.blocks ? Style::Warn : Style::Quiet, finding.blocks ? "✗ " : "· ") +
              table_.styled(Style::Strong, finding.title) + count);
  if (!finding.message.empty()) table_.line("    " + finding.message);
  std::string names;
  for (size_t i = 0; i < finding.nodes.size() && i < max_nodes_shown; ++i) names += (i ? ", " : "") + finding.nodes[i];
  if (finding.nodes.size() > max_nodes_shown)
    names += ", and " + std::to_string(finding.nodes.size() - max_nodes_shown) + " more";
  if (!names.empty()) table_.line("    at " + names);
  if (!finding.freezing.empty()) table_.line("    " + finding.freezing);
}

void ModelCheck::print() const {
  for (const Finding& finding : findings_)
    if (finding.blocks) print(finding);
  for (const Finding& finding : findings_)
    if (!finding.blocks) print(finding);
  if (blocking() == 0)
    table_.line(options_.model.model + " can be trained" + (trained_line_.empty() ? "" : ": " + trained_line_));
}

std::string describe_trained(const Graph& graph) {
  std::vector<ValueId> trained = trained_values(graph);
  int64_t elements = 0;
  for (ValueId value : trained) elements += graph.type(value).elements();
  return format_count(elements) + " numbers in " + std::to_string(trained.size()) + " of " +
         std::to_string(graph.states.size()) + " weights, " + std::to_string(graph.node_count()) + " nodes, loss " +
         graph.outputs.front().name;
}

Status ModelCheck::run() {
  console_.progress.phase("import");
  Result<Model> model = Model::read(options_.model.model);
  if (!model) return model.takeError();
  Result<ImportOptions> import = import_options(options_.model);
  if (!import) return import.takeError();
  Imported imported = survey_model(*model, *import);
  add_import_findings(imported.report);

  // Results after an unsupported node are unknown, so its loss and gradients would be guesses.
  console_.progress.phase("check");
  if (!imported.report.blocked() && settle(imported.graph)) {
    trained_line_ = describe_trained(imported.graph);
    add_gradient_findings(imported.graph);
    if (blocking() == 0) try_training_step(std::move(imported.graph));
  }
  console_.progress.finish();
  print();
  size_t count = blocking();
  if (count == 0) return Status::success();
  return model_error(options_.model.model + ": " + llvm::Twine(count) +
                     (count == 1 ? " obstacle stands" : " obstacles stand") + " in the way of training");
}

}  // namespace

Status check_command(const CheckOptions& options, Console& console) { return ModelCheck(options, console).run(); }

}  // namespace plimsoll
