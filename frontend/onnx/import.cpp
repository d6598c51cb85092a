#include "frontend/onnx/import.h"

#include "frontend/onnx/importer.h"

namespace plimsoll {

bool ImportReport::blocked() const {
  return llvm::any_of(obstacles, [](const Obstacle& obstacle) { return obstacle.blocks(); });
}

static std::string describe(const Obstacle& obstacle) {
  constexpr size_t names_shown = 3;
  if (obstacle.kind != Obstacle::Kind::UnsupportedOp && obstacle.kind != Obstacle::Kind::UnboundDim)
    return obstacle.message;
  size_t count = obstacle.nodes.size();
  std::string where;
  for (size_t i = 0; i < std::min(count, names_shown); ++i) where += (i ? ", " : "") + obstacle.nodes[i];
  if (count > names_shown) where += ", ...";
  if (obstacle.kind == Obstacle::Kind::UnboundDim) return obstacle.message + " (in " + where + ")";
  return obstacle.message + " (" + std::to_string(count) + (count == 1 ? " node: " : " nodes: ") + where + ")";
}

std::string ImportReport::summary() const {
  std::string text;
  for (const Obstacle& obstacle : obstacles)
    if (obstacle.blocks()) text += (text.empty() ? "" : "; ") + describe(obstacle);
  return text;
}

Imported survey_model(const Model& model, const ImportOptions& options) { return Importer(model, options).run(); }

Result<Graph> import_model(const Model& model, const ImportOptions& options) {
  Imported imported = survey_model(model, options);
  if (imported.report.blocked()) return model_error(imported.report.summary());
  return std::move(imported.graph);
}

}  // namespace plimsoll
