#include "frontend/inspect/mesh_table.h"

#include "ir/support/units.h"

namespace plimsoll {
namespace {

std::string row(llvm::StringRef mesh, llvm::StringRef zero, llvm::StringRef pipeline, llvm::StringRef fits,
                llvm::StringRef needs, llvm::StringRef step) {
  return "  " + left(mesh, 30) + right(zero, 6) + "  " + left(pipeline, 24) + right(fits, 6) + right(needs, 12) +
         right(step, 12);
}

std::string row_of(const TriedMesh& tried) {
  const PipelineSummary& pipeline = tried.pipeline;
  const bool has_stages = !pipeline.schedule.empty();
  return row(to_string(tried.mesh), tried.mesh[MeshAxis::Data] > 1 ? std::to_string(tried.zero) : "",
             has_stages ? format_count(pipeline.micro_batches) + " in " + pipeline.schedule : "",
             tried.fits ? "yes" : "no", format_bytes(tried.bytes), format_us(tried.step_us));
}

}  // namespace

void print_mesh_search(TextTable& table, const Plan& plan) {
  const MeshSearchSummary& search = plan.mesh_search;
  if (search.cards == 0) return;
  const auto compiled = static_cast<int64_t>(search.compiled.size());
  table.heading("meshes", "of up to " + format_count(search.cards) + " cards, the chosen one first");
  table.line(table.styled(Style::Quiet, row("", "ZeRO", "micro-batches", "fits", "needs", "step")));
  for (const TriedMesh& tried : search.compiled)
    table.line(&tried == &search.compiled.front() ? table.styled(Style::Strong, row_of(tried)) : row_of(tried));
  const int64_t slower = search.considered - search.over_memory - search.over_time - compiled;
  table.line("  " + format_count(search.considered) + " candidates: " + format_count(search.over_memory) +
             " surely need more than the budget, " + format_count(search.over_time) +
             " more time than the chosen one, " + format_count(slower) + " were estimated to be slower");
  if (const int64_t idle = search.cards - plan.mesh.ranks(); idle > 0)
    table.line("  " + format_count(idle) + (idle == 1 ? " card is" : " cards are") + " left idle: no mesh with " +
               (idle == 1 ? "it" : "them") + " is faster. The batch is " + std::to_string(plan.training.batch) +
               " samples");
  table.line("  no candidate takes less than " + format_us(search.bound_us));
}

}  // namespace plimsoll
