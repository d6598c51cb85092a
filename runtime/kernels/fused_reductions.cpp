#include "runtime/kernels/fused_reductions.h"

#include "ir/fused_form.h"
#include "kernels/division.h"
#include "runtime/kernels/fused_passes.h"
#include "runtime/kernels/fused_teams.h"
#include "runtime/kernels/fused_writer.h"
#include "runtime/kernels/loop_nests.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/MathExtras.h"

#include <algorithm>

namespace plimsoll {
namespace {

using llvm::formatv;

llvm::StringRef kind_of(const Node& reduction) { return reduction.op->name == "reduce_max" ? "Largest" : "Sum"; }

class TeamsWriter : FusedWriter {
 public:
  TeamsWriter(const OpCall& call, llvm::ArrayRef<Type> results, BodyForm form)
      : FusedWriter(call, results, form.whole), form_(std::move(form)), passes_(*body, form_) {
    for (size_t i = 0; i < call.count(); ++i) is_fixed_.push_back(is_counter(i) || is_same_along_length(i));
    const int64_t n = run_of_teams();
    teams_ = make_teams(form_, n, bytes_of_run(n), !passes_.reductions().empty());
    if (teams_.keeps_rows) passes_.keep_values(teams_.batch * n, FusedTeams::kept_bytes);
    if (form_.passes == 1 && form_.inner > 1) passes_.fix_nodes(is_fixed_);
  }

  // Elements that threads take one by one, where columns are no whole words.
  int64_t single_elements() const { return form_.inner > 1 && teams_.n == 1 ? iteration.elements : 0; }

  int64_t workspace_bytes() const {
    const int64_t floats = static_cast<int64_t>(passes_.reductions().size()) * teams_.parts * form_.total_count();
    return leaves_parts() ? floats * static_cast<int64_t>(sizeof(float)) : 0;
  }

  FusedSource write() {
    source.threads = static_cast<int>(teams_.threads);
    source.blocks = teams_.blocks;
    std::string code;
    llvm::raw_string_ostream out(code);
    out << head("KERNEL", pointers() + (leaves_parts() ? ", float* parts" : "") + draw_parameters());
    out << places();
    if (form_.passes > 1)
      out << whole_rows();
    else
      out << accumulation();
    out << "}\n";
    if (leaves_parts()) out << combining_kernel();
    return finish(out.str(), "kernels/cuda/elementwise/fused_reductions.cuh");
  }

 private:
  bool leaves_parts() const { return teams_.parts > 1 && !passes_.reductions().empty(); }

  int64_t run_of_teams() const {
    llvm::SmallVector<Type, 8> elements;
    for (size_t r = 0; r < results.size(); ++r)
      if (!passes_.is_total(r)) elements.push_back(results[r]);
    int64_t n = run_length(elements);
    while ((form_.inner > 1 ? form_.inner : form_.length) % n != 0) n /= 2;
    return n;
  }

  // Of whole rows in registers, what the last pass alone reads is loaded there.
  RunBytes bytes_of_run(int64_t n) const {
    RunBytes of_run;
    for (size_t i = 0; i < call.count(); ++i) {
      if (is_fixed_[i]) continue;
      const int64_t bytes = iteration.walks(i) ? n * dtype_bytes(call.operand(i).dtype) : 4;
      of_run.read += bytes;
      if (passes_.is_read_before_last(i)) of_run.kept += bytes;
    }
    return of_run;
  }

  // Numbers of columns that the last pass alone reads are loaded as they are computed with: other rows read them, too.
  bool comes_from_cache(size_t i) const {
    return teams_.keeps_rows && !is_fixed_[i] && iteration.walks(i) && !passes_.is_read_before_last(i) &&
           read_type(call, i).elements() < element_count(form_.whole);
  }

  // Does the operand repeat along every dimension that is reduced?
  bool is_same_along_length(size_t i) const {
    const Shape steps = read_steps(call, i, form_.whole);
    for (size_t d = 0; d < steps.size(); ++d)
      if (form_.whole[d] != form_.totals[d] && steps[d] != 0) return false;
    return true;
  }

  std::string kept_values() const {
    std::string text;
    for (size_t i = 0; i < passes_.kept().size(); ++i)
      text += formatv("  Run<{0}, {1}> kept{2}[{3}];\n", stored_type(body->type(passes_.kept()[i].value).dtype),
                      teams_.n, i, teams_.batch)
                  .str();
    return text;
  }

  std::string read_kept_values(int pass, llvm::ArrayRef<NodeId> nodes) const {
    std::string text;
    for (size_t i = 0; i < passes_.kept().size(); ++i) {
      const ValueId value = passes_.kept()[i].value;
      if (passes_.reads_kept(passes_.kept()[i], pass, nodes))
        text += formatv("        const {0} {1} = widen(kept{2}[u].at[k]);\n", register_type(body->type(value).dtype),
                        variables.name_of(value), i)
                    .str();
    }
    return text;
  }

  std::string write_kept_values(int pass) const {
    std::string text;
    for (size_t i = 0; i < passes_.kept().size(); ++i)
      if (passes_.kept()[i].pass == pass)
        text +=
            formatv("        kept{0}[u].at[k] = exact<{1}>({2});\n", i,
                    stored_type(body->type(passes_.kept()[i].value).dtype), variables.name_of(passes_.kept()[i].value))
                .str();
    return text;
  }

  // ---- Values that repeat along what is reduced, of columns, which a thread computes once ----

  std::string fixed_values() {
    if (passes_.fixed_values().empty()) return "";
    std::string text;
    for (ValueId value : passes_.fixed_values())
      text +=
          formatv("  {0} {1}_of[{2}];\n", register_type(body->type(value).dtype), variables.name_of(value), teams_.n)
              .str();
    text += formatv("#pragma unroll\n  for (int k = 0; k < {0}; ++k) {{\n", teams_.n).str();
    for (size_t i = 0; i < call.count(); ++i)
      if (is_fixed_[i] && iteration.walks(i) && !is_counter(i))
        text += formatv("    const {0} x{1} = widen(x{1}_run.at[k]);\n", register_operand(i), i).str();
    text += statements(passes_.fixed_nodes(), "    ");
    for (ValueId value : passes_.fixed_values())
      text += formatv("    {0}_of[k] = {0};\n", variables.name_of(value)).str();
    return text + "  }\n";
  }

  // A thread's value of a column, or a constant.
  std::string read_fixed_values() {
    std::string text;
    for (ValueId value : passes_.fixed_values())
      text += formatv("        const {0} {1} = {1}_of[k];\n", register_type(body->type(value).dtype),
                      variables.name_of(value))
                  .str();
    return text;
  }

  // ---- Text ----

  std::string head(llvm::StringRef name, const std::string& parameters) const {
    return formatv("extern \"C\" __global__ void __launch_bounds__({0}) {1}({2}) {{\n", teams_.threads, name,
                   parameters)
        .str();
  }

  // Where the thread's runs are: run j, one of those from `first` to `end` in steps of `step`, begins at element
  // `base + j * apart`. `output` is the first total that they go into.
  std::string places() const {
    const std::string index = this->index().str();
    if (teams_.has_whole_columns)
      return formatv(
                 "  const {0} thread = {0}(blockIdx.x) * {1} + threadIdx.x, outer = thread / {2};\n"
                 "  const {0} column = thread % {2} * {3};\n"
                 "  const {0} first = 0, step = 1, end = outer < {4} ? {5} : 0, apart = {6};\n"
                 "  const {0} base = outer * {7} + column, output = outer * {6} + column;\n",
                 index, teams_.threads, form_.inner / teams_.n, teams_.n, form_.outer, form_.length, form_.inner,
                 form_.length * form_.inner)
          .str();
    if (teams_.has_warps_of_columns)
      return formatv(
                 "  const {0} outer = {0}(blockIdx.x) * {1} + threadIdx.x / {2}, lane = threadIdx.x % {2};\n"
                 "  if (outer >= {3}) return;\n"
                 "  const {0} column = lane % {4} * {5}, first = lane / {4}, step = {6};\n"
                 "  const {0} end = first < step ? {7} : 0, apart = {8};\n"
                 "  const {0} base = outer * {9} + column, output = outer * {8} + column;\n",
                 index, FusedTeams::block_threads / FusedTeams::warp_threads, FusedTeams::warp_threads, form_.outer,
                 teams_.across, teams_.n, FusedTeams::warp_threads / teams_.across, form_.length, form_.inner,
                 form_.length * form_.inner)
          .str();
    if (form_.inner > 1)
      return formatv(
                 "  const {0} block = blockIdx.x / {1}, outer = block / {2};\n"
                 "  const {0} column = (block % {2} * {3} + threadIdx.x % {3}) * {4};\n"
                 "  const {0} part = blockIdx.x % {1}, first = part * {5} + threadIdx.x / {3}, step = {6};\n"
                 "  const {0} end = column < {7} ? {8} : 0, apart = {7};\n"
                 "  const {0} base = outer * {9} + column, output = outer * {7} + column;\n",
                 index, teams_.parts, teams_.column_blocks, teams_.across, teams_.n, teams_.threads / teams_.across,
                 teams_.parts * (teams_.threads / teams_.across), form_.inner, form_.length, form_.length * form_.inner)
          .str();
    std::string text = formatv("  const {0} team = {0}(blockIdx.x) * {1} + threadIdx.x / {2};\n", index,
                               teams_.threads / teams_.team, teams_.team)
                           .str();
    if ((form_.outer * teams_.parts * teams_.team) % teams_.threads != 0)
      text += formatv("  if (team >= {0}) return;\n", form_.outer * teams_.parts).str();
    return text + formatv(
                      "  const {0} output = team / {1}, part = team % {1};\n"
                      "  const {0} first = part * {2} + threadIdx.x % {2}, step = {3}, end = {4}, apart = {5};\n"
                      "  const {0} base = output * {6};\n",
                      index, teams_.parts, teams_.team, teams_.parts * teams_.team, form_.length / teams_.n, teams_.n,
                      form_.length)
                      .str();
  }

  // Operands that repeat along what is reduced are read once.
  std::string fixed_loads() const {
    std::string text;
    for (size_t i = 0; i < call.count(); ++i) {
      if (!is_fixed_[i] || is_counter(i)) continue;
      if (iteration.walks(i))
        text += formatv("  Run<{0}, {1}> x{2}_run;\n  if (first < end) x{2}_run = load_run<{1}>(x{2}_at + {3}, {1});\n",
                        stored_operand(i), teams_.n, i, offset(i, "base"))
                    .str();
      else
        text += formatv("  {0} x{1} = 0;\n  if (first < end) x{1} = widen(x{1}_at[{2}]);\n", register_operand(i), i,
                        offset(i, "base"))
                    .str();
    }
    return text;
  }

  // Of the operands that the pass reads, or, with whole rows in registers, before all passes those that are kept.
  std::string loads(llvm::StringRef first, llvm::function_ref<bool(size_t operand)> wanted) const {
    std::string text;
    for (size_t i = 0; i < call.count(); ++i) {
      if (is_fixed_[i] || !wanted(i)) continue;
      text += iteration.walks(i)
                  ? formatv("    Run<{0}, {1}> x{2}_runs[{3}];\n", stored_operand(i), teams_.n, i, teams_.batch).str()
                  : formatv("    {0} x{1}_ones[{2}];\n", register_operand(i), i, teams_.batch).str();
    }
    if (text.empty()) return text;
    text += each_run(first);
    for (size_t i = 0; i < call.count(); ++i) {
      if (is_fixed_[i] || !wanted(i)) continue;
      text +=
          iteration.walks(i)
              ? formatv("      x{0}_runs[u] = load_run<{1}>(x{0}_at + {2}, {1});\n", i, teams_.n, offset(i, "at")).str()
              : formatv("      x{0}_ones[u] = widen(x{0}_at[{1}]);\n", i, offset(i, "at")).str();
    }
    return text + "    }\n";
  }

  std::string loads_of(int pass, llvm::StringRef first) const {
    return loads(first, [&](size_t i) { return passes_.is_read_in(i, pass); });
  }

  std::string each_run(llvm::StringRef first) const {
    return formatv(
               "#pragma unroll\n    for (int u = 0; u < {0}; ++u) {{\n      const {1} j = {2} + u * step;\n"
               "      if (j >= end) continue;\n      const {1} at = base + j * apart;\n",
               teams_.batch, index(), first)
        .str();
  }

  // Computes on the runs that are loaded: what the pass reduces, and in the last one the results that are elements.
  std::string computations(int pass, llvm::StringRef first) {
    auto nodes = passes_.nodes_of(pass);
    llvm::erase_if(nodes,
                   [&](NodeId id) { return passes_.is_fixed_node(id) && body->node(id).op->name != "constant"; });
    std::string text = each_run(first);
    const std::string draws = variables.draws(nodes, teams_.n, "at");
    if (!draws.empty()) text += "      " + draws;
    for (size_t i = 0; i < call.count(); ++i)
      if (comes_from_cache(i) && passes_.is_read_in(i, pass))
        text += formatv("      const Run<{0}, {1}> x{2}_run = load_run<{1}>(x{2}_at + {3}, {1});\n", stored_operand(i),
                        teams_.n, i, offset(i, "at"))
                    .str();
    for (size_t r = 0; r < results.size(); ++r)
      if (passes_.is_given(r, pass))
        text += formatv("      Run<{0}, {1}> y{2}_run;\n", stored_type(results[r].dtype), teams_.n, r).str();
    text += formatv("#pragma unroll\n      for (int k = 0; k < {0}; ++k) {{\n", teams_.n).str();
    for (size_t i = 0; i < call.count(); ++i) {
      if (is_counter(i) || !passes_.is_read_in(i, pass)) continue;
      if (iteration.walks(i))
        text += formatv("        const {0} x{1} = widen(x{1}_run{2}.at[k]);\n", register_operand(i), i,
                        is_fixed_[i] || comes_from_cache(i) ? "" : "s[u]")
                    .str();
      else if (!is_fixed_[i])
        text += formatv("        const {0} x{1} = x{1}_ones[u];\n", register_operand(i), i).str();
    }
    text +=
        read_fixed_values() + read_kept_values(pass, nodes) + statements(nodes, "        ") + write_kept_values(pass);
    for (NodeId id : reductions_of(*body, form_, pass)) {
      const Node& node = body->node(id);
      text += formatv("        {0} = {1}::of({0}, {2});\n", total_of(id, form_.inner > 1), kind_of(node),
                      variables.name_of(node.operands[0]))
                  .str();
    }
    for (size_t r = 0; r < results.size(); ++r)
      if (passes_.is_given(r, pass))
        text += formatv("        y{0}_run.at[k] = exact<{1}>({2});\n", r, stored_type(results[r].dtype),
                        variables.name_of(body->outputs[r].value))
                    .str();
    text += "      }\n";
    for (size_t r = 0; r < results.size(); ++r)
      if (passes_.is_given(r, pass)) text += formatv("      store_run(y{0} + at, y{0}_run, {1});\n", r, teams_.n).str();
    return text + "    }\n";
  }

  // The variable of a reduction's elements: one for each column of the run, or one for all.
  std::string total_of(NodeId id, bool of_columns) const {
    const auto r = static_cast<size_t>(llvm::find(passes_.reductions(), id) - passes_.reductions().begin());
    return formatv(of_columns ? "total{0}[k]" : "total{0}", r).str();
  }

  std::string cleared(int pass) const {
    std::string text;
    for (size_t r = 0; r < passes_.reductions().size(); ++r) {
      if (form_.pass[index_of(body->node(passes_.reductions()[r]).operands[0])] != pass) continue;
      const llvm::StringRef kind = kind_of(body->node(passes_.reductions()[r]));
      text += form_.inner > 1 ? formatv("  float total{0}[{1}];\n  clear<{2}>(total{0});\n", r, teams_.n, kind).str()
                              : formatv("  float total{0} = {1}::empty();\n", r, kind).str();
    }
    return text;
  }

  std::string combined(int pass) const {
    std::string text;
    for (size_t r = 0; r < passes_.reductions().size(); ++r) {
      if (form_.pass[index_of(body->node(passes_.reductions()[r]).operands[0])] != pass) continue;
      const llvm::StringRef kind = kind_of(body->node(passes_.reductions()[r]));
      if (form_.inner == 1)
        text += formatv("  total{0} = combine_team<{1}, {2}>(total{0});\n", r, kind, teams_.team).str();
      else if (teams_.has_warps_of_columns)
        text += formatv("  combine_lanes<{0}, {1}>(total{2});\n", kind, teams_.across, r).str();
      else
        text += formatv("  combine_lines<{0}, {1}, {2}>(total{3});\n", kind, teams_.across, teams_.threads, r).str();
    }
    return text;
  }

  std::string loop(const std::string& inside) const {
    return formatv("  for ({0} from = first; from < end; from += {1} * step) {{\n", index(), teams_.batch).str() +
           inside + "  }\n";
  }

  // One pass, whose totals are complete or parts.
  std::string accumulation() {
    std::string text =
        fixed_loads() + fixed_values() + cleared(0) + loop(loads_of(0, "from") + computations(0, "from"));
    if (teams_.has_whole_columns) return text + totals_of_columns();
    text += combined(0);
    if (passes_.reductions().empty()) return text;
    if (teams_.has_warps_of_columns)
      text += "  if (first > 0) return;\n";
    else
      text += form_.inner > 1
                  ? formatv("  if (threadIdx.x >= {0} || column >= {1}) return;\n", teams_.across, form_.inner).str()
                  : formatv("  if (threadIdx.x % {0} != 0) return;\n", teams_.team).str();
    if (form_.inner > 1) text += formatv("#pragma unroll\n  for (int k = 0; k < {0}; ++k) {{\n", teams_.n).str();
    if (leaves_parts())
      for (size_t r = 0; r < passes_.reductions().size(); ++r)
        text +=
            formatv("    parts[({0} * {1} + part) * {2}ll + output{3}] = {4};\n", r, teams_.parts, form_.total_count(),
                    form_.inner > 1 ? " + k" : "", total_of(passes_.reductions()[r], form_.inner > 1))
                .str();
    else
      text += totals(1, "    ", form_.inner > 1) + total_results(1, form_.inner > 1 ? "output + k" : "output", "    ");
    return text + (form_.inner > 1 ? "  }\n" : "");
  }

  // A thread's totals go out as one run.
  std::string totals_of_columns() {
    std::string text = "  if (first >= end) return;\n", stores;
    for (size_t r = 0; r < results.size(); ++r) {
      if (!passes_.is_total(r)) continue;
      text += formatv("  Run<{0}, {1}> y{2}_run;\n", stored_type(results[r].dtype), teams_.n, r).str();
      stores += formatv("  store_run(y{0} + output, y{0}_run, {1});\n", r, teams_.n).str();
    }
    text += formatv("#pragma unroll\n  for (int k = 0; k < {0}; ++k) {{\n", teams_.n).str() + totals(1, "    ", true);
    for (size_t r = 0; r < results.size(); ++r)
      if (passes_.is_total(r))
        text += formatv("    y{0}_run.at[k] = exact<{1}>({2});\n", r, stored_type(results[r].dtype),
                        variables.name_of(body->outputs[r].value))
                    .str();
    return text + "  }\n" + stores;
  }

  // A team has its row in registers, or reads it in every pass.
  std::string whole_rows() {
    std::string text = fixed_loads();
    if (teams_.keeps_rows)
      text += kept_values() + loads("first", [&](size_t i) { return passes_.is_read_before_last(i); });
    for (int pass = 0; pass < form_.passes; ++pass) {
      text += cleared(pass);
      const auto comes_late = [&](size_t i) {
        return !passes_.is_read_before_last(i) && !comes_from_cache(i) && passes_.is_read_in(i, pass);
      };
      text += teams_.keeps_rows ? "  {\n" + loads("first", comes_late) + computations(pass, "first") + "  }\n"
                                : loop(loads_of(pass, "from") + computations(pass, "from"));
      text += combined(pass) + totals(pass + 1, "  ", false);
    }
    std::string stores;
    for (int pass = 1; pass <= form_.passes; ++pass) stores += total_results(pass, "output", "    ");
    if (stores.empty()) return text;
    return text + formatv("  if (threadIdx.x % {0} == 0) {{\n", teams_.team).str() + stores + "  }\n";
  }

  // The totals of a pass as values of the body, and what is made of them.
  std::string totals(int pass, llvm::StringRef indent, bool of_columns) {
    std::string text;
    for (NodeId id : passes_.reductions()) {
      const Node& node = body->node(id);
      if (form_.pass[index_of(node.results[0])] != pass) continue;
      std::string value = total_of(id, of_columns);
      if (node.op->name == "reduce_mean") value += formatv(" / {0}.0f", form_.length).str();
      const DType dtype = body->type(node.results[0]).dtype;
      if (is_16_bit_float(dtype)) value = formatv("rounded<{0}>({1})", stored_type(dtype), value).str();
      text += formatv("{0}const float {1} = {2};\n", indent, variables.name_of(node.results[0]), value).str();
    }
    return text + constants(pass, indent) + statements(total_nodes(*body, form_, pass), indent);
  }

  // Constants that totals are computed with.
  std::string constants(int pass, llvm::StringRef indent) {
    llvm::SmallVector<NodeId, 4> nodes;
    for (NodeId id : total_nodes(*body, form_, pass))
      for (ValueId operand : body->node(id).operands) {
        const NodeId producer = body->value(operand).producer;
        if (producer == NodeId::None || body->node(producer).op->name != "constant") continue;
        if (!llvm::is_contained(nodes, producer) && !llvm::is_contained(written_constants_, producer))
          nodes.push_back(producer);
      }
    if (form_.passes > 1) written_constants_.append(nodes.begin(), nodes.end());
    return statements(nodes, indent);
  }

  std::string total_results(int pass, llvm::StringRef place, llvm::StringRef indent) const {
    std::string text;
    for (size_t r = 0; r < results.size(); ++r)
      if (passes_.is_total(r) && form_.pass[index_of(body->outputs[r].value)] == pass)
        text += formatv("{0}y{1}[{2}] = exact<{3}>({4});\n", indent, r, place, stored_type(results[r].dtype),
                        variables.name_of(body->outputs[r].value))
                    .str();
    return text;
  }

  // A line of threads for totals side by side; the lines of a block take parts in turn.
  std::string combining_kernel() {
    const int64_t outputs = form_.total_count();
    const int64_t across = std::min<int64_t>(llvm::PowerOf2Ceil(outputs), FusedTeams::warp_threads);
    source.combining_blocks = divide_up(outputs, across);
    std::string parameters;
    for (size_t r = 0; r < results.size(); ++r)
      if (passes_.is_total(r)) {
        parameters += formatv("{0}* y{1}, ", stored_type(results[r].dtype), r).str();
        source.totals.push_back(r);
      }
    std::string text = "\n" + formatv(
                                  "extern \"C\" __global__ void __launch_bounds__({0}) KERNEL_combine({1}const "
                                  "float* parts) {{\n",
                                  combining_threads, parameters)
                                  .str();
    text += formatv(
                "  const int64_t output = int64_t(blockIdx.x) * {0} + threadIdx.x % {0};\n"
                "  const bool inside = output < {1};\n",
                across, outputs)
                .str();
    for (size_t r = 0; r < passes_.reductions().size(); ++r)
      text +=
          formatv("  const float total{0} = combine_parts<{1}, {2}, {3}>(parts + {4}ll + output, {5}, {6}, inside);\n",
                  r, kind_of(body->node(passes_.reductions()[r])), across, combining_threads,
                  static_cast<int64_t>(r) * teams_.parts * outputs, teams_.parts, outputs)
              .str();
    text += formatv("  if (!inside || threadIdx.x >= {0}) return;\n", across).str();
    return text + totals(1, "  ", false) + total_results(1, "output", "  ") + "}\n";
  }

  BodyForm form_;
  FusedPasses passes_;
  FusedTeams teams_;
  llvm::SmallVector<NodeId, 4> written_constants_;
  llvm::SmallVector<bool, 8> is_fixed_;  // by operand: it repeats along what is reduced, or has no elements
};

BodyForm form_of_call(const OpCall& call) {
  return llvm::cantFail(form_of(*llvm::cantFail(fused_body(call.get_string("body")))));
}

}  // namespace

FusedSource reducing_source(const OpCall& call, llvm::ArrayRef<Type> results) {
  return TeamsWriter(call, results, form_of_call(call)).write();
}

int64_t reducing_workspace(const OpCall& call, llvm::ArrayRef<Type> results) {
  const FusedBody body = llvm::cantFail(fused_body(call.get_string("body")));
  return has_reductions(*body) ? TeamsWriter(call, results, form_of_call(call)).workspace_bytes() : 0;
}

int64_t single_column_elements(const OpCall& call, llvm::ArrayRef<Type> results) {
  return TeamsWriter(call, results, form_of_call(call)).single_elements();
}

std::optional<FusedSource> column_source(const OpCall& call, llvm::ArrayRef<Type> results) {
  const FusedBody body = llvm::cantFail(fused_body(call.get_string("body")));
  const Shape& shape = results[0].shape;
  if (shape.size() < 2) return std::nullopt;
  const size_t last = shape.size() - 1;
  size_t outer_dims = 0;
  int64_t fixed_bytes = 0, other_bytes = 0;  // of an element
  for (const Type& result : results) other_bytes += dtype_bytes(result.dtype);
  for (size_t i = 0; i < call.count(); ++i) {
    if (is_random_counter(body->type(body->inputs[i]))) continue;
    const Shape steps = read_steps(call, i, shape);
    const bool is_whole = read_type(call, i).elements() == element_count(shape);
    if (is_whole || steps[last] != 0) (is_whole ? other_bytes : fixed_bytes) += dtype_bytes(call.operand(i).dtype);
    if (is_whole || steps[last] == 0) continue;
    for (size_t d = outer_dims; d < last; ++d)
      if (steps[d] != 0) outer_dims = d + 1;
  }
  BodyForm form;
  form.whole = form.totals = shape;
  form.outer = element_count(llvm::ArrayRef<int64_t>(shape).take_front(outer_dims));
  form.inner = shape[last];
  form.length = element_count(llvm::ArrayRef<int64_t>(shape).slice(outer_dims, last - outer_dims));
  std::fill(form.totals.begin() + outer_dims, form.totals.begin() + last, 1);
  form.is_total.resize(body->value_count()), form.pass.resize(body->value_count());
  if (fixed_bytes <= other_bytes || form.inner % 8 != 0 || form.length < 32) return std::nullopt;
  return TeamsWriter(call, results, std::move(form)).write();
}

}  // namespace plimsoll
