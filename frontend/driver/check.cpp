#include "frontend/api/check_model.h"
#include "frontend/driver/commands.h"
#include "frontend/driver/next_command.h"
#include "frontend/inspect/text_table.h"

#include "llvm/ADT/STLExtras.h"

namespace plimsoll {
namespace {

constexpr size_t max_nodes_shown = 4;

void print(TextTable& table, const Finding& finding) {
  std::string count = finding.nodes.size() > 1 ? ", " + std::to_string(finding.nodes.size()) + " nodes" : "";
  table.line(table.styled(finding.blocks ? Style::Warn : Style::Quiet, finding.blocks ? "✗ " : "· ") +
             table.styled(Style::Strong, finding.title) + count);
  if (!finding.message.empty()) table.line("    " + finding.message);
  std::string names;
  for (size_t i = 0; i < finding.nodes.size() && i < max_nodes_shown; ++i) names += (i ? ", " : "") + finding.nodes[i];
  if (finding.nodes.size() > max_nodes_shown)
    names += ", and " + std::to_string(finding.nodes.size() - max_nodes_shown) + " more";
  if (!names.empty()) table.line("    at " + names);
  if (!finding.freezing.empty()) table.line("    " + finding.freezing);
}

// Which position of the labels a language model's loss looks at.
void print(TextTable& table, const IndexInput& input) {
  if (!input.is_label || !input.shift) return;
  const int64_t shift = *input.shift;
  table.line("    '" + input.name + "' is compared with the prediction " +
             (shift == 0 ? "at its own position; a token file gives it the token after each position"
              : shift == 1
                  ? "one position before it, as the model shifts labels itself; a token file gives it the same "
                    "tokens as the input"
                  : std::to_string(shift) + " positions before it"));
}

}  // namespace

Status check_command(const CheckOptions& options, Console& console) {
  Result<CompileRequest> request = compile_request(options.job);
  if (!request) return request.takeError();
  CompileHooks hooks;
  hooks.on_phase = [&](llvm::StringRef phase) { console.progress.phase(phase); };
  Result<ModelCheck> check = check_model(*request, hooks);
  if (!check) return check.takeError();
  console.progress.finish();
  TextTable table(console.out, {console.columns, console.out_is_terminal});
  for (const Finding& finding : check->findings) print(table, finding);
  const auto blocking = llvm::count_if(check->findings, [](const Finding& finding) { return finding.blocks; });
  if (blocking == 0) {
    table.line(request->model_path + " can be trained" + (check->trained.empty() ? "" : ": " + check->trained));
    for (const IndexInput& input : check->index_inputs) print(table, input);
    print_next_command(options.job, *check, console);
    return Status::success();
  }
  return model_error(request->model_path + ": " + llvm::Twine(blocking) +
                     (blocking == 1 ? " obstacle stands" : " obstacles stand") + " in the way of training");
}

}  // namespace plimsoll
