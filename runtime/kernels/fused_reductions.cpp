#include "runtime/kernels/fused_reductions.h"

#include "ir/fused_form.h"
#include "kernels/division.h"
#include "runtime/kernels/fused_writer.h"
#include "runtime/kernels/loop_nests.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/Support/FormatVariadic.h"

#include <algorithm>

namespace plimsoll {
namespace {

using llvm::formatv;

// Blocks that are wanted in flight: four on each multiprocessor of the largest chips.
constexpr int64_t wanted_blocks = 528;
constexpr int64_t block_threads = 256, warp_threads = 32;
// Bytes of operands that a thread loads before it computes on the first, and those of a row that it keeps.
constexpr int64_t loaded_bytes = 128, kept_bytes = 256;
// Rows that a thread has at most where it has all of its columns.
constexpr int64_t rows_of_thread = 32;
// Runs of a row that a thread of a team has at most, where that leaves it in one block.
constexpr int64_t runs_of_thread = 4;
// Of rows without words, elements that one thread takes at most where threads for all rows fill a card.
constexpr int64_t elements_of_thread = 16;
// Runs side by side, and rows of each lane, up to which a warp takes all of a few columns.
constexpr int64_t runs_of_warp = 16, rows_of_lane = 64;

int64_t next_power_of_2(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

llvm::StringRef kind_of(const Node& reduction) { return reduction.op->name == "reduce_max" ? "Largest" : "Sum"; }

class TeamsWriter : FusedWriter {
 public:
  TeamsWriter(const OpCall& call, llvm::ArrayRef<Type> results, BodyForm form)
      : FusedWriter(call, results, form.whole), form_(std::move(form)) {
    for (NodeId id : body->order())
      if (is_body_reduction(*body->node(id).op)) reductions_.push_back(id);
    choose_runs();
    if (form_.inner > 1)
      cut_columns();
    else
      cut_rows();
    if (keeps_rows_) choose_kept_values();
    if (form_.passes == 1 && form_.inner > 1) choose_fixed_nodes();
  }

  // Elements that threads take one by one, where columns are no whole words.
  int64_t single_elements() const { return form_.inner > 1 && n_ == 1 ? iteration.elements : 0; }

  int64_t workspace_bytes() const {
    const int64_t floats = static_cast<int64_t>(reductions_.size()) * parts_ * form_.total_count();
    return leaves_parts() ? floats * static_cast<int64_t>(sizeof(float)) : 0;
  }

  FusedSource write() {
    source.threads = static_cast<int>(threads_);
    source.blocks = blocks_;
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
  bool leaves_parts() const { return parts_ > 1 && !reductions_.empty(); }

  // ---- How elements are cut ----

  bool is_total(size_t result) const { return form_.is_total[index_of(body->outputs[result].value)]; }

  void choose_runs() {
    llvm::SmallVector<Type, 8> elements;
    for (size_t r = 0; r < results.size(); ++r)
      if (!is_total(r)) elements.push_back(results[r]);
    n_ = run_length(elements);
    while ((form_.inner > 1 ? form_.inner : form_.length) % n_ != 0) n_ /= 2;
    for (size_t i = 0; i < call.count(); ++i) {
      is_fixed_.push_back(is_counter(i) || is_same_along_length(i));
      if (is_fixed_[i]) continue;
      const int64_t bytes = iteration.walks(i) ? n_ * dtype_bytes(call.operand(i).dtype) : 4;
      run_bytes_ += bytes;
      if (is_kept(i)) kept_run_bytes_ += bytes;
    }
    batch_ = std::clamp<int64_t>(loaded_bytes / std::max<int64_t>(run_bytes_, 1), 1, 4);
  }

  bool is_read_in(size_t i, int pass) const {
    const ValueId operand = body->inputs[i];
    const auto reads = [&](llvm::ArrayRef<NodeId> nodes) {
      return llvm::any_of(nodes, [&](NodeId id) { return llvm::is_contained(body->node(id).operands, operand); });
    };
    if (reads(nodes_of(pass)) || reads(reductions_of(*body, form_, pass))) return true;
    for (size_t r = 0; r < results.size(); ++r)
      if (is_given(r, pass) && body->outputs[r].value == operand) return true;
    return false;
  }

  // Of whole rows in registers: what the last pass alone reads is loaded there.
  bool is_kept(size_t i) const {
    for (int pass = 0; pass + 1 < form_.passes; ++pass)
      if (is_read_in(i, pass)) return true;
    return false;
  }

  // Numbers of columns that the last pass alone reads are loaded as they are computed with: other rows read them, too.
  bool comes_from_cache(size_t i) const {
    return keeps_rows_ && !is_fixed_[i] && iteration.walks(i) && !is_kept(i) &&
           read_type(call, i).elements() < element_count(form_.whole);
  }

  // Does the operand repeat along every dimension that is reduced?
  bool is_same_along_length(size_t i) const {
    const Shape steps = read_steps(call, i, form_.whole);
    for (size_t d = 0; d < steps.size(); ++d)
      if (form_.whole[d] != form_.totals[d] && steps[d] != 0) return false;
    return true;
  }

  // A line of `across_` threads has the runs of a row side by side, and the lines of a block have rows in turn. Rows of
  // many runs are cut into blocks of columns of equal widths, which begin at whole sectors. Where there are few rows
  // and threads for all columns fill a card, a thread has all rows of its columns: of blocks for 4 rows of 32 columns
  // nearly all lines would wait, 844 us on an H200 for 44 million bf16 numbers. Of few columns a warp has all rows:
  // blocks for 196 rows of 4 columns took 210 us for 158 MB.
  void cut_columns() {
    const int64_t runs = form_.inner / n_;
    has_whole_columns_ = form_.passes == 1 && !reductions_.empty() && form_.length <= rows_of_thread &&
                         form_.outer * runs >= wanted_blocks * block_threads;
    if (has_whole_columns_) {
      across_ = block_threads;
      blocks_ = divide_up(form_.outer * runs, block_threads);
      return;
    }
    constexpr int64_t warps = block_threads / warp_threads;
    has_warps_of_columns_ = form_.passes == 1 && !reductions_.empty() && runs <= runs_of_warp &&
                            form_.length <= warp_threads / runs * rows_of_lane && form_.outer >= wanted_blocks * warps;
    if (has_warps_of_columns_) {
      across_ = runs;
      blocks_ = divide_up(form_.outer, warps);
      batch_ = std::clamp<int64_t>(loaded_bytes / run_bytes_, 1, 8);
      return;
    }
    int64_t widest = warp_threads;
    while (widest < std::min(block_threads, runs) && block_threads / widest * batch_ > form_.length) widest *= 2;
    across_ = divide_up(runs, divide_up(runs, widest));
    if (across_ < runs) across_ = round_up(across_, 2);
    column_blocks_ = divide_up(runs, across_);
    const int64_t lines = block_threads / across_;
    threads_ = lines * across_;
    parts_ =
        std::clamp<int64_t>(wanted_blocks / (form_.outer * column_blocks_), 1, divide_up(form_.length, lines * batch_));
    blocks_ = form_.outer * column_blocks_ * parts_;
  }

  void cut_rows() {
    const int64_t runs = form_.length / n_;
    const bool has_row_of_elements =
        n_ == 1 && runs <= elements_of_thread && form_.outer >= wanted_blocks * block_threads;
    const int64_t of_warp = has_row_of_elements ? 1 : std::min(warp_threads, next_power_of_2(divide_up(runs, 2)));
    if (form_.passes > 1) {
      team_ = runs <= warp_threads * runs_of_thread
                  ? of_warp
                  : std::clamp<int64_t>(next_power_of_2(divide_up(runs, runs_of_thread)), 64, 512);
      const int64_t of_thread = divide_up(runs, team_);
      keeps_rows_ = of_thread * kept_run_bytes_ <= kept_bytes;
      if (keeps_rows_) batch_ = of_thread;
    } else {
      team_ = runs <= block_threads ? of_warp : block_threads;
      if (team_ == block_threads)
        parts_ = std::clamp<int64_t>(wanted_blocks / form_.outer, 1, divide_up(runs, team_ * batch_));
      if (has_row_of_elements) batch_ = runs;
    }
    threads_ = team_ <= warp_threads ? block_threads : team_;
    blocks_ = divide_up(form_.outer * parts_ * team_, threads_);
  }

  // ---- Values of whole rows that stay in registers from the pass that makes them on ----

  struct KeptValue {
    ValueId value;
    int pass;
  };

  bool is_kept_before(ValueId value, int pass) const {
    return llvm::any_of(kept_, [&](const KeptValue& kept) { return kept.value == value && kept.pass < pass; });
  }

  // The nodes on elements that a pass computes.
  llvm::SmallVector<NodeId, 16> nodes_of(int pass) const {
    llvm::SmallVector<NodeId, 16> nodes = element_nodes(*body, form_, pass);
    if (kept_.empty()) return nodes;
    std::vector<bool> wanted(body->value_count());
    for (NodeId id : reductions_of(*body, form_, pass)) wanted[index_of(body->node(id).operands[0])] = true;
    for (size_t r = 0; r < results.size(); ++r)
      if (is_given(r, pass)) wanted[index_of(body->outputs[r].value)] = true;
    llvm::SmallVector<NodeId, 16> made;
    for (NodeId id : llvm::reverse(nodes)) {
      const Node& node = body->node(id);
      if (!wanted[index_of(node.results[0])] || is_kept_before(node.results[0], pass)) continue;
      for (ValueId operand : node.operands) wanted[index_of(operand)] = true;
      made.push_back(id);
    }
    std::reverse(made.begin(), made.end());
    return made;
  }

  // Made again in every pass that reads it: a constant, a 16-bit float as f32, or what is left of a total.
  bool is_free(const Node& node) const {
    const llvm::StringRef op = node.op->name;
    if (op == "constant") return true;
    const auto dtype = [&](ValueId value) { return body->type(value).dtype; };
    if (op == "cast") return is_16_bit_float(dtype(node.operands[0])) && dtype(node.results[0]) == DType::F32;
    return (op == "add" || op == "sub" || op == "mul") &&
           llvm::any_of(node.operands, [&](ValueId operand) { return form_.is_total[index_of(operand)]; });
  }

  // What later passes read other than to make again what this one and those before have made.
  void choose_kept_values() {
    std::vector<bool> is_made(body->value_count());
    int64_t bytes = 0;
    for (int pass = 0; pass + 1 < form_.passes; ++pass) {
      const auto nodes = element_nodes(*body, form_, pass);
      llvm::SmallVector<ValueId, 4> made_here;
      for (NodeId id : nodes) {
        const ValueId value = body->node(id).results[0];
        if (!is_made[index_of(value)] && !is_free(body->node(id))) made_here.push_back(value);
        is_made[index_of(value)] = true;
      }
      for (ValueId value : made_here) {
        if (!is_read_behind(value, pass, is_made)) continue;
        kept_.push_back({value, pass});
        bytes += batch_ * n_ * dtype_bytes(body->type(value).dtype);
      }
    }
    if (bytes > kept_bytes) kept_.clear();
  }

  bool is_read_behind(ValueId value, int pass, const std::vector<bool>& is_made) const {
    for (int later = pass + 1; later < form_.passes; ++later) {
      for (NodeId id : element_nodes(*body, form_, later)) {
        const Node& node = body->node(id);
        if (llvm::is_contained(node.operands, value) && (is_free(node) || !is_made[index_of(node.results[0])]))
          return true;
      }
      for (NodeId id : reductions_of(*body, form_, later))
        if (body->node(id).operands[0] == value) return true;
      for (size_t r = 0; r < results.size(); ++r)
        if (is_given(r, later) && body->outputs[r].value == value) return true;
    }
    return false;
  }

  std::string kept_values() const {
    std::string text;
    for (size_t i = 0; i < kept_.size(); ++i)
      text += formatv("  Run<{0}, {1}> kept{2}[{3}];\n", stored_type(body->type(kept_[i].value).dtype), n_, i, batch_)
                  .str();
    return text;
  }

  // Those that nodes of the pass read, or that it reduces or gives.
  std::string read_kept_values(int pass, llvm::ArrayRef<NodeId> nodes) const {
    std::string text;
    for (size_t i = 0; i < kept_.size(); ++i) {
      const ValueId value = kept_[i].value;
      const auto reads = [&](NodeId id) { return llvm::is_contained(body->node(id).operands, value); };
      bool is_read = llvm::any_of(nodes, reads) || llvm::any_of(reductions_of(*body, form_, pass), reads);
      for (size_t r = 0; r < results.size(); ++r) is_read |= is_given(r, pass) && body->outputs[r].value == value;
      if (kept_[i].pass < pass && is_read)
        text += formatv("        const {0} {1} = widen(kept{2}[u].at[k]);\n", register_type(body->type(value).dtype),
                        variables.name_of(value), i)
                    .str();
    }
    return text;
  }

  std::string write_kept_values(int pass) const {
    std::string text;
    for (size_t i = 0; i < kept_.size(); ++i)
      if (kept_[i].pass == pass)
        text += formatv("        kept{0}[u].at[k] = exact<{1}>({2});\n", i,
                        stored_type(body->type(kept_[i].value).dtype), variables.name_of(kept_[i].value))
                    .str();
    return text;
  }

  // ---- Values that repeat along what is reduced, of columns, which a thread computes once ----

  void choose_fixed_nodes() {
    std::vector<bool> is_fixed(body->value_count());
    for (size_t i = 0; i < call.count(); ++i) is_fixed[index_of(body->inputs[i])] = is_fixed_[i] && !is_counter(i);
    const auto nodes = element_nodes(*body, form_, 0);
    bool any = false;
    for (NodeId id : nodes) {
      const Node& node = body->node(id);
      const bool is_constant = node.op->name == "constant";
      if (node.op->name == "dropout" || !llvm::all_of(node.operands, [&](ValueId v) { return is_fixed[index_of(v)]; }))
        continue;
      is_fixed[index_of(node.results[0])] = true;
      any |= !is_constant;
      fixed_nodes_.push_back(id);
    }
    if (!any) fixed_nodes_.clear();
    for (NodeId id : fixed_nodes_)
      if (body->node(id).op->name != "constant" && is_read_of_each_element(body->node(id).results[0]))
        fixed_values_.push_back(body->node(id).results[0]);
  }

  bool is_fixed_node(NodeId id) const { return llvm::is_contained(fixed_nodes_, id); }

  bool is_read_of_each_element(ValueId value) const {
    for (NodeId user : body->value(value).users)
      if (!is_fixed_node(user)) return true;
    return llvm::any_of(body->outputs, [&](const Output& output) { return output.value == value; });
  }

  std::string fixed_values() {
    if (fixed_values_.empty()) return "";
    std::string text;
    for (ValueId value : fixed_values_)
      text +=
          formatv("  {0} {1}_of[{2}];\n", register_type(body->type(value).dtype), variables.name_of(value), n_).str();
    text += formatv("#pragma unroll\n  for (int k = 0; k < {0}; ++k) {{\n", n_).str();
    for (size_t i = 0; i < call.count(); ++i)
      if (is_fixed_[i] && iteration.walks(i) && !is_counter(i))
        text += formatv("    const {0} x{1} = widen(x{1}_run.at[k]);\n", register_operand(i), i).str();
    text += statements(fixed_nodes_, "    ");
    for (ValueId value : fixed_values_) text += formatv("    {0}_of[k] = {0};\n", variables.name_of(value)).str();
    return text + "  }\n";
  }

  // A thread's value of a column, or a constant.
  std::string read_fixed_values() {
    std::string text;
    for (ValueId value : fixed_values_)
      text += formatv("        const {0} {1} = {1}_of[k];\n", register_type(body->type(value).dtype),
                      variables.name_of(value))
                  .str();
    return text;
  }

  // ---- Text ----

  std::string head(llvm::StringRef name, const std::string& parameters) const {
    return formatv("extern \"C\" __global__ void __launch_bounds__({0}) {1}({2}) {{\n", threads_, name, parameters)
        .str();
  }

  // Where the thread's runs are: run j, one of those from `first` to `end` in steps of `step`, begins at element
  // `base + j * apart`. `output` is the first total that they go into.
  std::string places() const {
    const std::string index = this->index().str();
    if (has_whole_columns_)
      return formatv(
                 "  const {0} thread = {0}(blockIdx.x) * {1} + threadIdx.x, outer = thread / {2};\n"
                 "  const {0} column = thread % {2} * {3};\n"
                 "  const {0} first = 0, step = 1, end = outer < {4} ? {5} : 0, apart = {6};\n"
                 "  const {0} base = outer * {7} + column, output = outer * {6} + column;\n",
                 index, threads_, form_.inner / n_, n_, form_.outer, form_.length, form_.inner,
                 form_.length * form_.inner)
          .str();
    if (has_warps_of_columns_)
      return formatv(
                 "  const {0} outer = {0}(blockIdx.x) * {1} + threadIdx.x / {2}, lane = threadIdx.x % {2};\n"
                 "  if (outer >= {3}) return;\n"
                 "  const {0} column = lane % {4} * {5}, first = lane / {4}, step = {6};\n"
                 "  const {0} end = first < step ? {7} : 0, apart = {8};\n"
                 "  const {0} base = outer * {9} + column, output = outer * {8} + column;\n",
                 index, block_threads / warp_threads, warp_threads, form_.outer, across_, n_, warp_threads / across_,
                 form_.length, form_.inner, form_.length * form_.inner)
          .str();
    if (form_.inner > 1)
      return formatv(
                 "  const {0} block = blockIdx.x / {1}, outer = block / {2};\n"
                 "  const {0} column = (block % {2} * {3} + threadIdx.x % {3}) * {4};\n"
                 "  const {0} part = blockIdx.x % {1}, first = part * {5} + threadIdx.x / {3}, step = {6};\n"
                 "  const {0} end = column < {7} ? {8} : 0, apart = {7};\n"
                 "  const {0} base = outer * {9} + column, output = outer * {7} + column;\n",
                 index, parts_, column_blocks_, across_, n_, threads_ / across_, parts_ * (threads_ / across_),
                 form_.inner, form_.length, form_.length * form_.inner)
          .str();
    std::string text =
        formatv("  const {0} team = {0}(blockIdx.x) * {1} + threadIdx.x / {2};\n", index, threads_ / team_, team_)
            .str();
    if ((form_.outer * parts_ * team_) % threads_ != 0)
      text += formatv("  if (team >= {0}) return;\n", form_.outer * parts_).str();
    return text + formatv(
                      "  const {0} output = team / {1}, part = team % {1};\n"
                      "  const {0} first = part * {2} + threadIdx.x % {2}, step = {3}, end = {4}, apart = {5};\n"
                      "  const {0} base = output * {6};\n",
                      index, parts_, team_, parts_ * team_, form_.length / n_, n_, form_.length)
                      .str();
  }

  // Operands that repeat along what is reduced are read once.
  std::string fixed_loads() const {
    std::string text;
    for (size_t i = 0; i < call.count(); ++i) {
      if (!is_fixed_[i] || is_counter(i)) continue;
      if (iteration.walks(i))
        text += formatv("  Run<{0}, {1}> x{2}_run;\n  if (first < end) x{2}_run = load_run<{1}>(x{2}_at + {3}, {1});\n",
                        stored_operand(i), n_, i, offset(i, "base"))
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
                  ? formatv("    Run<{0}, {1}> x{2}_runs[{3}];\n", stored_operand(i), n_, i, batch_).str()
                  : formatv("    {0} x{1}_ones[{2}];\n", register_operand(i), i, batch_).str();
    }
    if (text.empty()) return text;
    text += each_run(first);
    for (size_t i = 0; i < call.count(); ++i) {
      if (is_fixed_[i] || !wanted(i)) continue;
      text += iteration.walks(i)
                  ? formatv("      x{0}_runs[u] = load_run<{1}>(x{0}_at + {2}, {1});\n", i, n_, offset(i, "at")).str()
                  : formatv("      x{0}_ones[u] = widen(x{0}_at[{1}]);\n", i, offset(i, "at")).str();
    }
    return text + "    }\n";
  }

  std::string loads_of(int pass, llvm::StringRef first) const {
    return loads(first, [&](size_t i) { return is_read_in(i, pass); });
  }

  std::string each_run(llvm::StringRef first) const {
    return formatv(
               "#pragma unroll\n    for (int u = 0; u < {0}; ++u) {{\n      const {1} j = {2} + u * step;\n"
               "      if (j >= end) continue;\n      const {1} at = base + j * apart;\n",
               batch_, index(), first)
        .str();
  }

  // Computes on the runs that are loaded: what the pass reduces, and in the last one the results that are elements.
  std::string computations(int pass, llvm::StringRef first) {
    auto nodes = nodes_of(pass);
    llvm::erase_if(nodes, [&](NodeId id) { return is_fixed_node(id) && body->node(id).op->name != "constant"; });
    std::string text = each_run(first);
    const std::string draws = variables.draws(nodes, n_, "at");
    if (!draws.empty()) text += "      " + draws;
    for (size_t i = 0; i < call.count(); ++i)
      if (comes_from_cache(i) && is_read_in(i, pass))
        text += formatv("      const Run<{0}, {1}> x{2}_run = load_run<{1}>(x{2}_at + {3}, {1});\n", stored_operand(i),
                        n_, i, offset(i, "at"))
                    .str();
    for (size_t r = 0; r < results.size(); ++r)
      if (is_given(r, pass))
        text += formatv("      Run<{0}, {1}> y{2}_run;\n", stored_type(results[r].dtype), n_, r).str();
    text += formatv("#pragma unroll\n      for (int k = 0; k < {0}; ++k) {{\n", n_).str();
    for (size_t i = 0; i < call.count(); ++i) {
      if (is_counter(i) || !is_read_in(i, pass)) continue;
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
      if (is_given(r, pass))
        text += formatv("        y{0}_run.at[k] = exact<{1}>({2});\n", r, stored_type(results[r].dtype),
                        variables.name_of(body->outputs[r].value))
                    .str();
    text += "      }\n";
    for (size_t r = 0; r < results.size(); ++r)
      if (is_given(r, pass)) text += formatv("      store_run(y{0} + at, y{0}_run, {1});\n", r, n_).str();
    return text + "    }\n";
  }

  bool is_given(size_t result, int pass) const { return !is_total(result) && pass == form_.passes - 1; }

  // The variable of a reduction's elements: one for each column of the run, or one for all.
  std::string total_of(NodeId id, bool of_columns) const {
    const auto r = static_cast<size_t>(llvm::find(reductions_, id) - reductions_.begin());
    return formatv(of_columns ? "total{0}[k]" : "total{0}", r).str();
  }

  std::string cleared(int pass) const {
    std::string text;
    for (size_t r = 0; r < reductions_.size(); ++r) {
      if (form_.pass[index_of(body->node(reductions_[r]).operands[0])] != pass) continue;
      const llvm::StringRef kind = kind_of(body->node(reductions_[r]));
      text += form_.inner > 1 ? formatv("  float total{0}[{1}];\n  clear<{2}>(total{0});\n", r, n_, kind).str()
                              : formatv("  float total{0} = {1}::empty();\n", r, kind).str();
    }
    return text;
  }

  std::string combined(int pass) const {
    std::string text;
    for (size_t r = 0; r < reductions_.size(); ++r) {
      if (form_.pass[index_of(body->node(reductions_[r]).operands[0])] != pass) continue;
      const llvm::StringRef kind = kind_of(body->node(reductions_[r]));
      if (form_.inner == 1)
        text += formatv("  total{0} = combine_team<{1}, {2}>(total{0});\n", r, kind, team_).str();
      else if (has_warps_of_columns_)
        text += formatv("  combine_lanes<{0}, {1}>(total{2});\n", kind, across_, r).str();
      else
        text += formatv("  combine_lines<{0}, {1}, {2}>(total{3});\n", kind, across_, threads_, r).str();
    }
    return text;
  }

  std::string loop(const std::string& inside) const {
    return formatv("  for ({0} from = first; from < end; from += {1} * step) {{\n", index(), batch_).str() + inside +
           "  }\n";
  }

  // One pass, whose totals are complete or parts.
  std::string accumulation() {
    std::string text =
        fixed_loads() + fixed_values() + cleared(0) + loop(loads_of(0, "from") + computations(0, "from"));
    if (has_whole_columns_) return text + totals_of_columns();
    text += combined(0);
    if (reductions_.empty()) return text;
    if (has_warps_of_columns_)
      text += "  if (first > 0) return;\n";
    else
      text += form_.inner > 1
                  ? formatv("  if (threadIdx.x >= {0} || column >= {1}) return;\n", across_, form_.inner).str()
                  : formatv("  if (threadIdx.x % {0} != 0) return;\n", team_).str();
    if (form_.inner > 1) text += formatv("#pragma unroll\n  for (int k = 0; k < {0}; ++k) {{\n", n_).str();
    if (leaves_parts())
      for (size_t r = 0; r < reductions_.size(); ++r)
        text += formatv("    parts[({0} * {1} + part) * {2}ll + output{3}] = {4};\n", r, parts_, form_.total_count(),
                        form_.inner > 1 ? " + k" : "", total_of(reductions_[r], form_.inner > 1))
                    .str();
    else
      text += totals(1, "    ", form_.inner > 1) + total_results(1, form_.inner > 1 ? "output + k" : "output", "    ");
    return text + (form_.inner > 1 ? "  }\n" : "");
  }

  // A thread's totals go out as one run.
  std::string totals_of_columns() {
    std::string text = "  if (first >= end) return;\n", stores;
    for (size_t r = 0; r < results.size(); ++r) {
      if (!is_total(r)) continue;
      text += formatv("  Run<{0}, {1}> y{2}_run;\n", stored_type(results[r].dtype), n_, r).str();
      stores += formatv("  store_run(y{0} + output, y{0}_run, {1});\n", r, n_).str();
    }
    text += formatv("#pragma unroll\n  for (int k = 0; k < {0}; ++k) {{\n", n_).str() + totals(1, "    ", true);
    for (size_t r = 0; r < results.size(); ++r)
      if (is_total(r))
        text += formatv("    y{0}_run.at[k] = exact<{1}>({2});\n", r, stored_type(results[r].dtype),
                        variables.name_of(body->outputs[r].value))
                    .str();
    return text + "  }\n" + stores;
  }

  // A team has its row in registers, or reads it in every pass.
  std::string whole_rows() {
    std::string text = fixed_loads();
    if (keeps_rows_) text += kept_values() + loads("first", [&](size_t i) { return is_kept(i); });
    for (int pass = 0; pass < form_.passes; ++pass) {
      text += cleared(pass);
      const auto comes_late = [&](size_t i) { return !is_kept(i) && !comes_from_cache(i) && is_read_in(i, pass); };
      text += keeps_rows_ ? "  {\n" + loads("first", comes_late) + computations(pass, "first") + "  }\n"
                          : loop(loads_of(pass, "from") + computations(pass, "from"));
      text += combined(pass) + totals(pass + 1, "  ", false);
    }
    std::string stores;
    for (int pass = 1; pass <= form_.passes; ++pass) stores += total_results(pass, "output", "    ");
    if (stores.empty()) return text;
    return text + formatv("  if (threadIdx.x % {0} == 0) {{\n", team_).str() + stores + "  }\n";
  }

  // The totals of a pass as values of the body, and what is made of them.
  std::string totals(int pass, llvm::StringRef indent, bool of_columns) {
    std::string text;
    for (NodeId id : reductions_) {
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
      if (is_total(r) && form_.pass[index_of(body->outputs[r].value)] == pass)
        text += formatv("{0}y{1}[{2}] = exact<{3}>({4});\n", indent, r, place, stored_type(results[r].dtype),
                        variables.name_of(body->outputs[r].value))
                    .str();
    return text;
  }

  // A line of threads for totals side by side; the lines of a block take parts in turn.
  std::string combining_kernel() {
    const int64_t outputs = form_.total_count();
    const int64_t across = std::min<int64_t>(next_power_of_2(outputs), warp_threads);
    source.combining_blocks = divide_up(outputs, across);
    std::string parameters;
    for (size_t r = 0; r < results.size(); ++r)
      if (is_total(r)) {
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
    for (size_t r = 0; r < reductions_.size(); ++r)
      text +=
          formatv("  const float total{0} = combine_parts<{1}, {2}, {3}>(parts + {4}ll + output, {5}, {6}, inside);\n",
                  r, kind_of(body->node(reductions_[r])), across, combining_threads,
                  static_cast<int64_t>(r) * parts_ * outputs, parts_, outputs)
              .str();
    text += formatv("  if (!inside || threadIdx.x >= {0}) return;\n", across).str();
    return text + totals(1, "  ", false) + total_results(1, "output", "  ") + "}\n";
  }

  BodyForm form_;
  llvm::SmallVector<NodeId, 4> reductions_;
  llvm::SmallVector<NodeId, 4> written_constants_;
  llvm::SmallVector<bool, 8> is_fixed_;  // by operand: it repeats along what is reduced, or has no elements
  int64_t n_ = 1;                        // elements of a run
  int64_t run_bytes_ = 0;                // of all operands that a run is read from
  int64_t kept_run_bytes_ = 0;           // of those that whole rows keep
  int64_t batch_ = 1;                    // runs that are loaded before the first is computed on
  int64_t across_ = 1, column_blocks_ = 1, team_ = warp_threads;
  int64_t parts_ = 1;  // of each total
  int64_t threads_ = block_threads, blocks_ = 1;
  bool keeps_rows_ = false, has_whole_columns_ = false, has_warps_of_columns_ = false;
  llvm::SmallVector<KeptValue, 4> kept_;
  llvm::SmallVector<NodeId, 8> fixed_nodes_;    // with the constants that they read
  llvm::SmallVector<ValueId, 4> fixed_values_;  // of these nodes, those that others read
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
