#include "runtime/kernels/fused_source.h"

#include "ir/fused_form.h"
#include "runtime/kernels/fused_reductions.h"
#include "runtime/kernels/fused_writer.h"

#include "llvm/Support/FormatVariadic.h"

namespace plimsoll {
namespace {

using llvm::formatv;

// A kernel of a body without reductions: a thread for each run of elements. Results are whole words whatever the
// operands' runs are.
class ElementsWriter : FusedWriter {
 public:
  ElementsWriter(const OpCall& call, llvm::ArrayRef<Type> results)
      : FusedWriter(call, results, results[0].shape), length_(whole_run_length(results)) {
    choose_line_nodes();
  }

  FusedSource write() {
    const std::vector<NodeId> nodes = body->order();
    const std::string of_lines = line_values();
    llvm::SmallVector<NodeId, 16> of_elements;
    for (NodeId id : nodes)
      if (!is_line_node(id)) of_elements.push_back(id);
    const std::string element = read_line_values() + statements(of_elements, "    ");
    std::string code;
    llvm::raw_string_ostream out(code);
    const int64_t runs = (iteration.elements + length_ - 1) / length_;
    source.blocks = (runs + source.threads - 1) / source.threads;
    out << formatv("extern \"C\" __global__ void __launch_bounds__({0}) KERNEL({1}{2}) {{\n", source.threads,
                   pointers(), draw_parameters());
    out << formatv("  const {0} run = {0}(blockIdx.x) * {1} + threadIdx.x;\n  if (run >= {2}) return;\n", index(),
                   source.threads, runs);
    out << formatv("  const {0} at = run * {1};\n", index(), length_);
    out << (iteration.elements % length_ == 0
                ? formatv("  const int count = {0};\n", length_).str()
                : formatv("  const int count = at + {0} <= {1} ? {0} : static_cast<int>({1} - at);\n", length_,
                          iteration.elements)
                      .str());
    for (size_t i = 0; i < call.count(); ++i) out << load(i);
    out << variables.draws(nodes, length_, "at");
    out << of_lines;
    for (size_t r = 0; r < results.size(); ++r)
      out << formatv("  Run<{0}, {1}> y{2}_run;\n", stored_type(results[r].dtype), length_, r);
    out << formatv("#pragma unroll\n  for (int k = 0; k < {0}; ++k) {{\n", length_);
    for (size_t i = 0; i < call.count(); ++i) out << element_of(i);
    out << element;
    for (size_t r = 0; r < results.size(); ++r)
      out << formatv("    y{0}_run.at[k] = exact<{1}>({2});\n", r, stored_type(results[r].dtype),
                     variables.name_of(body->outputs[r].value));
    out << "  }\n";
    for (size_t r = 0; r < results.size(); ++r) out << formatv("  store_run(y{0} + at, y{0}_run, count);\n", r);
    out << "}\n";
    return finish(out.str(), "kernels/cuda/elementwise/fused_elements.cuh");
  }

 private:
  // ---- Values that are the same along a line, of which a run has two, and which are computed once each ----

  bool is_one_of_line(const RunReads& reads) const { return reads.form == LineReads::TwoLines && reads.step == 0; }

  // Nodes on operands that repeat along the lines of the first that does, on those of which a run has one element, and
  // on constants.
  void choose_line_nodes() {
    std::vector<bool> is_line(body->value_count()), is_fixed(body->value_count());
    for (size_t i = 0; i < call.count(); ++i) {
      if (is_counter(i)) continue;
      const RunReads reads = iteration.run_reads(i, length_);
      if (is_one_of_line(reads) && !line_operand_) line_operand_ = i, line_ = reads.line;
      is_line[index_of(body->inputs[i])] = is_one_of_line(reads) && reads.line == line_;
      is_fixed[index_of(body->inputs[i])] = reads.form == LineReads::Steps && reads.step == 0;
    }
    for (NodeId id : body->order()) {
      const Node& node = body->node(id);
      const size_t value = index_of(node.results[0]);
      if (node.op->name == "constant") is_fixed[value] = true;
      if (node.operands.empty() || node.op->name == "dropout") continue;
      if (!llvm::all_of(node.operands, [&](ValueId v) { return is_line[index_of(v)] || is_fixed[index_of(v)]; }))
        continue;
      is_line[value] = llvm::any_of(node.operands, [&](ValueId v) { return is_line[index_of(v)]; });
      if (is_line[value]) line_nodes_.push_back(id);
    }
    for (NodeId id : line_nodes_) {
      const ValueId value = body->node(id).results[0];
      if (!llvm::all_of(body->value(value).users, [&](NodeId user) { return is_line_node(user); }) ||
          llvm::any_of(body->outputs, [&](const Output& output) { return output.value == value; }))
        line_values_.push_back(value);
    }
  }

  bool is_line_node(NodeId id) const { return llvm::is_contained(line_nodes_, id); }

  std::string line_values() {
    if (line_nodes_.empty()) return "";
    std::string text;
    for (ValueId value : line_values_)
      text += formatv("  {0} {1}_here, {1}_there;\n", register_type(body->type(value).dtype), variables.name_of(value))
                  .str();
    text += "#pragma unroll\n  for (int line = 0; line < 2; ++line) {\n";
    for (size_t i = 0; i < call.count(); ++i) {
      if (is_counter(i)) continue;
      const RunReads reads = iteration.run_reads(i, length_);
      if (is_one_of_line(reads) && reads.line == line_)
        text += formatv("    const {1} x{0} = line == 0 ? x{0}_here : x{0}_there;\n", i, register_operand(i)).str();
    }
    llvm::SmallVector<NodeId, 16> nodes;
    for (NodeId id : body->order())
      if (is_line_node(id) || body->node(id).op->name == "constant") nodes.push_back(id);
    text += statements(nodes, "    ");
    for (ValueId value : line_values_)
      text += formatv("    (line == 0 ? {0}_here : {0}_there) = {0};\n", variables.name_of(value)).str();
    return text + "  }\n";
  }

  std::string read_line_values() const {
    std::string text;
    for (ValueId value : line_values_)
      text += formatv("    const {0} {1} = k < x{2}_left ? {1}_here : {1}_there;\n",
                      register_type(body->type(value).dtype), variables.name_of(value), *line_operand_)
                  .str();
    return text;
  }

  // ---- Loads ----

  // Reads what the operand's elements of the run are made of.
  std::string load(size_t i) const {
    if (is_counter(i)) return "";
    const RunReads reads = iteration.run_reads(i, length_);
    const std::string first = offset(i, "at");
    if (reads.form == LineReads::Words)
      return formatv("  const auto x{0}_run = load_run<{1}>(x{0}_at + {2}, count);\n", i, length_, first).str();
    if (reads.form == LineReads::Steps && reads.step == 0)
      return formatv("  const {1} x{0} = widen(x{0}_at[{2}]);\n", i, register_operand(i), first).str();
    std::string text, place = offset(i, "(at + k)");
    if (reads.form != LineReads::Places) text = formatv("  const {1} x{0}_first = {2};\n", i, index(), first).str();
    if (reads.form == LineReads::Steps) place = formatv("x{0}_first + k * {1}", i, reads.step).str();
    if (reads.form == LineReads::TwoLines) {
      text += formatv("  const {1} x{0}_left = {2} - at % {2}, x{0}_next = {3};\n", i, index(), reads.line,
                      offset(i, formatv("(at + x{0}_left)", i).str()))
                  .str();
      if (reads.step == 0)
        return text + formatv(
                          "  const {1} x{0}_here = widen(x{0}_at[x{0}_first]);\n"
                          "  const {1} x{0}_there = x{0}_left < count ? widen(x{0}_at[x{0}_next]) : x{0}_here;\n",
                          i, register_operand(i))
                          .str();
      place = formatv("k < x{0}_left ? x{0}_first + k * {1} : x{0}_next + (k - x{0}_left) * {1}", i, reads.step).str();
    }
    text += formatv("  Run<{1}, {2}> x{0}_run;\n", i, stored_operand(i), length_).str();
    return text + formatv(
                      "#pragma unroll\n  for (int k = 0; k < {1}; ++k)\n"
                      "    if (k < count) x{0}_run.at[k] = x{0}_at[{2}];\n",
                      i, length_, place)
                      .str();
  }

  // The operand's element k of the run, unless it is one for all.
  std::string element_of(size_t i) const {
    if (is_counter(i)) return "";
    const RunReads reads = iteration.run_reads(i, length_);
    if (reads.form == LineReads::Steps && reads.step == 0) return "";
    if (is_one_of_line(reads))
      return formatv("    const {1} x{0} = k < x{0}_left ? x{0}_here : x{0}_there;\n", i, register_operand(i)).str();
    return formatv("    const {1} x{0} = widen(x{0}_run.at[k]);\n", i, register_operand(i)).str();
  }

  int64_t length_;
  std::optional<size_t> line_operand_;  // the first that repeats along lines that runs go beyond
  int64_t line_ = 0;                    // the elements of these
  llvm::SmallVector<NodeId, 8> line_nodes_;
  llvm::SmallVector<ValueId, 4> line_values_;  // of these nodes, those that others read
};

constexpr SourceHeader headers[] = {
    {
        "kernels/cuda/elementwise/fused_elements.cuh",
#include "kernels/cuda/elementwise/fused_elements.inc"
    },
    {
        "kernels/cuda/elementwise/fused_reductions.cuh",
#include "kernels/cuda/elementwise/fused_reductions.inc"
    },
    {
        "kernels/cuda/elementwise/formulas.cuh",
#include "kernels/cuda/elementwise/formulas.inc"
    },
    {
        "kernels/cuda/common/philox.cuh",
#include "kernels/cuda/common/philox.inc"
    },
    {
        "kernels/cuda/elementwise/random.h",
#include "kernels/cuda/elementwise/random.inc"
    },
    {
        "kernels/dropout.h",
#include "kernels/dropout.inc"
    },
    {
        "kernels/scalar.h",
#include "kernels/scalar.inc"
    },
    // NVRTC knows the toolkit's types without a header, and has none of C++.
    {"cuda_runtime_api.h", "#pragma once\n"},
    {"cstdint",
     "#pragma once\nusing int64_t = long long;\nusing int32_t = int;\nusing int16_t = short;\nusing int8_t = signed "
     "char;\n"
     "using uint64_t = unsigned long long;\nusing uint32_t = unsigned;\nusing uint16_t = unsigned short;\n"
     "using uint8_t = unsigned char;\n"},
};

}  // namespace

FusedSource fused_source(const OpCall& call, llvm::ArrayRef<Type> results) {
  const FusedBody body = llvm::cantFail(fused_body(call.get_string("body")));
  if (has_reductions(*body)) return reducing_source(call, results);
  if (std::optional<FusedSource> columns = column_source(call, results)) return std::move(*columns);
  return ElementsWriter(call, results).write();
}

llvm::ArrayRef<SourceHeader> fused_source_headers() { return headers; }

}  // namespace plimsoll
