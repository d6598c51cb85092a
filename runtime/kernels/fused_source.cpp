#include "runtime/kernels/fused_source.h"

#include "ir/fused_form.h"
#include "runtime/kernels/fused_reductions.h"
#include "runtime/kernels/fused_writer.h"

#include "llvm/Support/FormatVariadic.h"

namespace plimsoll {
namespace {

using llvm::formatv;

// A kernel of a body without reductions: a thread for each run of elements.
class ElementsWriter : FusedWriter {
 public:
  ElementsWriter(const OpCall& call, llvm::ArrayRef<Type> results)
      : FusedWriter(call, results, results[0].shape), length_(run_length(results)) {}

  FusedSource write() {
    const std::vector<NodeId> nodes = body->order();
    const std::string element = statements(nodes, "    ");
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
    for (size_t r = 0; r < results.size(); ++r)
      out << formatv("  Run<{0}, {1}> y{2}_run;\n", stored_type(results[r].dtype), length_, r);
    out << formatv("#pragma unroll\n  for (int k = 0; k < {0}; ++k) {{\n", length_);
    for (size_t i = 0; i < call.count(); ++i)
      if (iteration.walks(i)) out << formatv("    const {1} x{0} = widen(x{0}_run.at[k]);\n", i, register_operand(i));
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
  std::string load(size_t i) const {
    if (is_counter(i)) return "";
    if (iteration.walks(i))
      return formatv("  const auto x{0}_run = load_run<{1}>(x{0}_at + {2}, count);\n", i, length_, offset(i, "at"))
          .str();
    return formatv("  const {1} x{0} = widen(x{0}_at[{2}]);\n", i, register_operand(i), offset(i, "at")).str();
  }

  int64_t length_;
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
