#include "runtime/kernels/fused_source.h"

#include "ir/fused_body.h"
#include "ir/text.h"
#include "runtime/kernels/elementwise.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/xxhash.h"

#include <cmath>

namespace plimsoll {
namespace {

using llvm::formatv;

// ---- Formulas ----

// The text of a function's formula in kernels/elementwise.def, by its op or by the name of one of its op's forms.
struct Formula {
  llvm::StringLiteral name, text;
  llvm::StringLiteral parameters;
  llvm::StringLiteral result = "float", element = "float";
};

constexpr Formula formulas[] = {
#define PLIMSOLL_UNARY(op, Name, formula) {#op, #formula, "C x, C a, C b"},
#define PLIMSOLL_UNARY_FORM(form, Name, formula) {#form, #formula, "C x, C a, C b"},
#define PLIMSOLL_UNARY_GRAD(op, Name, formula) {#op, #formula, "C x, C dy"},
#define PLIMSOLL_UNARY_GRAD_FORM(form, Name, formula) {#form, #formula, "C x, C dy"},
#define PLIMSOLL_BINARY(op, Name, formula) {#op, #formula, "C a, C b"},
#define PLIMSOLL_BINARY_FORM(form, Name, formula) {#form, #formula, "C a, C b"},
#define PLIMSOLL_COMPARE(op, Name, formula) {#op, #formula, "C a, C b", "bool"},
#define PLIMSOLL_LOGIC(op, Name, formula) {#op, #formula, "C a, C b", "bool", "bool"},
#define PLIMSOLL_BITWISE(op, Name, formula)
#include "kernels/elementwise.def"
};

// The parameters of functions that have them are the op's attributes.
struct FormulaParameters {
  llvm::StringLiteral op, a, b;
};
constexpr FormulaParameters parameters[] = {
#define PLIMSOLL_UNARY_WITH(op, Name, first, second, formula) {#op, #first, #second},
#include "kernels/elementwise.def"
};

const Formula* find_formula(llvm::StringRef name) {
  const auto* found = llvm::find_if(formulas, [&](const Formula& each) { return each.name == name; });
  return found == std::end(formulas) ? nullptr : found;
}

// ---- Types and numbers ----

llvm::StringRef stored(DType dtype) {
  switch (dtype) {
    case DType::F32: return "float";
    case DType::BF16: return "bf16";
    case DType::F16: return "f16";
    case DType::I64: return "int64_t";
    case DType::I32: return "int32_t";
    case DType::U8: return "uint8_t";
    default: return "bool";
  }
}
llvm::StringRef computed(DType dtype) { return is_float(dtype) ? "float" : stored(dtype); }

std::string float_literal(double number) {
  const auto value = static_cast<float>(number);
  if (std::isnan(value)) return "__int_as_float(0x7fffffff)";
  if (std::isinf(value)) return value < 0 ? "-__int_as_float(0x7f800000)" : "__int_as_float(0x7f800000)";
  char text[48];
  std::snprintf(text, sizeof text, "%af", static_cast<double>(value));
  return text;
}

// ---- The iteration ----

// Dimensions from the outermost to the innermost, joined where every operand walks through without a jump.
struct Iteration {
  int64_t elements = 1;
  llvm::SmallVector<int64_t, 4> sizes;
  llvm::SmallVector<llvm::SmallVector<int64_t, 4>, 8> strides;  // by operand, by dimension; 0 repeats
};

Iteration iteration_of(const OpCall& call, const Graph& body, llvm::ArrayRef<int64_t> shape) {
  Iteration it;
  it.elements = element_count(shape);
  it.strides.resize(call.count());
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    llvm::SmallVector<int64_t, 8> steps;
    for (size_t i = 0; i < call.count(); ++i)
      steps.push_back(is_random_counter(body.type(body.inputs[i])) ? 0
                                                                   : broadcast_steps(call.operand(i).shape, shape)[d]);
    bool joins = !it.sizes.empty();
    for (size_t i = 0; i < steps.size() && joins; ++i) joins = it.strides[i].back() == steps[i] * shape[d];
    if (!joins) it.sizes.push_back(1);
    it.sizes.back() *= shape[d];
    for (size_t i = 0; i < steps.size(); ++i) {
      if (!joins) it.strides[i].push_back(0);
      it.strides[i].back() = steps[i];
    }
  }
  if (!it.sizes.empty()) return it;
  it.sizes.push_back(1);
  for (auto& each : it.strides) each.push_back(0);
  return it;
}

// Does every run of `length` elements begin at a multiple of it in each operand that walks along it?
bool runs_align(const Iteration& it, int64_t length) {
  if (it.sizes.size() == 1) return true;
  if (it.sizes.back() % length != 0) return false;
  return llvm::all_of(it.strides, [&](const auto& strides) {
    return strides.back() == 0 ||
           llvm::all_of(llvm::makeArrayRef(strides).drop_back(), [&](int64_t stride) { return stride % length == 0; });
  });
}

// The same body with its dropouts counted from 0.
Graph without_streams(const Graph& body) {
  Graph counted = body;
  int64_t next = 0;
  for (NodeId id : counted.order())
    if (counted.node(id).op->name == "dropout") counted.node(id).attrs.set("id", next++);
  return counted;
}

// ---- The kernel ----

class Writer {
 public:
  Writer(const OpCall& call, llvm::ArrayRef<Type> results)
      : call_(call),
        results_(results),
        body_(llvm::cantFail(fused_body(call.get_string("body")))),
        it_(iteration_of(call, *body_, results[0].shape)),
        length_(run_length()),
        code_(text_) {}

  FusedSource write() {
    names_.resize(body_->value_count());
    for (size_t i = 0; i < call_.count(); ++i) names_[index_of(body_->inputs[i])] = formatv("x{0}", i).str();
    std::string element;
    for (NodeId id : body_->order()) element += "    " + statement(body_->node(id)) + "\n";
    code_ << "#include \"kernels/cuda/elementwise/fused_elements.cuh\"\n\nusing namespace plimsoll::cuda;\n\n";
    code_ << functions_;
    comment();
    const int64_t runs = (it_.elements + length_ - 1) / length_;
    source_.blocks = (runs + source_.threads - 1) / source_.threads;
    signature();
    code_ << formatv("  const {0} run = {0}(blockIdx.x) * {1} + threadIdx.x;\n  if (run >= {2}) return;\n", index(),
                     source_.threads, runs);
    code_ << formatv("  const {0} at = run * {1};\n", index(), length_);
    code_ << (it_.elements % length_ == 0
                  ? formatv("  const int count = {0};\n", length_).str()
                  : formatv("  const int count = at + {0} <= {1} ? {0} : static_cast<int>({1} - at);\n", length_,
                            it_.elements)
                        .str());
    for (size_t i = 0; i < call_.count(); ++i) load(i);
    code_ << draws_;
    for (size_t r = 0; r < results_.size(); ++r)
      code_ << formatv("  Run<{0}, {1}> y{2}_run;\n", stored(results_[r].dtype), length_, r);
    code_ << formatv("#pragma unroll\n  for (int k = 0; k < {0}; ++k) {{\n", length_);
    for (size_t i = 0; i < call_.count(); ++i) read(i);
    code_ << element;
    for (size_t r = 0; r < results_.size(); ++r)
      code_ << formatv("    y{0}_run.at[k] = Narrow<{1}>::of({2});\n", r, stored(results_[r].dtype),
                       names_[index_of(body_->outputs[r].value)]);
    code_ << "  }\n";
    for (size_t r = 0; r < results_.size(); ++r) code_ << formatv("  store_run(y{0} + at, y{0}_run, count);\n", r);
    code_ << "}\n";
    return finish();
  }

 private:
  // Elements that a thread takes: 16 bytes of the narrowest tensor, 8 at most, fewer where runs would not be aligned.
  int64_t run_length() const {
    int64_t narrowest = 8;
    for (size_t i = 0; i < call_.count(); ++i)
      if (it_.strides[i].back() != 0) narrowest = std::min(narrowest, dtype_bytes(call_.operand(i).dtype));
    for (const Type& result : results_) narrowest = std::min(narrowest, dtype_bytes(result.dtype));
    int64_t length = std::min<int64_t>(8, 16 / narrowest);
    while (length > 1 && (!runs_align(it_, length) || length > it_.elements)) length /= 2;
    return length;
  }

  bool is_counter(size_t i) const { return is_random_counter(body_->type(body_->inputs[i])); }
  llvm::StringRef index() const { return it_.elements < (int64_t{1} << 31) ? "uint32_t" : "int64_t"; }

  void comment() {
    const std::string lines = to_text(without_streams(*body_));
    for (llvm::StringRef line : llvm::split(lines, '\n'))
      if (!line.trim().empty()) code_ << "// " << line << "\n";
    code_ << "// over " << to_string(results_[0].shape) << " of";
    for (size_t i = 0; i < call_.count(); ++i) code_ << (i ? ", " : " ") << to_string(call_.operand(i));
    code_ << "\n";
  }

  void signature() {
    code_ << formatv("extern \"C\" __global__ void __launch_bounds__({0}) KERNEL(", source_.threads);
    for (size_t r = 0; r < results_.size(); ++r) code_ << formatv("{0}* y{1}, ", stored(results_[r].dtype), r);
    for (size_t i = 0; i < call_.count(); ++i)
      code_ << formatv("{0}const {1}* x{2}_at", i ? ", " : "", stored(call_.operand(i).dtype), i);
    if (!source_.streams.empty()) code_ << ", int64_t first_block";
    for (size_t i = 0; i < source_.streams.size(); ++i) code_ << formatv(", uint32_t stream{0}", i);
    code_ << ") {\n";
  }

  // Where the run's elements begin in the operand. Dimensions that it alone walks through without a jump count as one.
  std::string offset(size_t i) const {
    const auto& strides = it_.strides[i];
    std::string sum;
    int64_t inner = 1;
    for (size_t d = it_.sizes.size(); d-- > 0;) {
      const int64_t stride = strides[d];
      int64_t size = it_.sizes[d];
      while (d > 0 && strides[d - 1] == strides[d] * it_.sizes[d]) size *= it_.sizes[--d];
      if (stride != 0) sum = term(inner, size, stride) + (sum.empty() ? "" : " + ") + sum;
      inner *= size;
    }
    return sum.empty() ? "0" : sum;
  }

  // The index in a dimension of that size, of which one step is `inner` elements of the result, times the stride.
  std::string term(int64_t inner, int64_t size, int64_t stride) const {
    std::string text = inner > 1 ? formatv("at / {0}", inner).str() : "at";
    if (inner * size < it_.elements) text += formatv(" % {0}", size).str();
    return stride == 1 ? text : formatv("{0} * {1}", text == "at" ? text : "(" + text + ")", stride).str();
  }

  void load(size_t i) {
    if (is_counter(i)) return;
    if (it_.strides[i].back() != 0)
      code_ << formatv("  const auto x{0}_run = load_run<{1}>(x{0}_at + {2}, count);\n", i, length_, offset(i));
    else
      code_ << formatv("  const {1} x{0} = widen(x{0}_at[{2}]);\n", i, computed(call_.operand(i).dtype), offset(i));
  }

  void read(size_t i) {
    if (!is_counter(i) && it_.strides[i].back() != 0)
      code_ << formatv("    const {1} x{0} = widen(x{0}_run.at[k]);\n", i, computed(call_.operand(i).dtype));
  }

  // ---- One node of the body ----

  std::string statement(const Node& node) {
    const ValueId result = node.results[0];
    const DType dtype = body_->type(result).dtype;
    std::string value = expression(node, dtype);
    if (is_16_bit_float(dtype) && node.op->name != "constant")
      value = formatv("rounded<{0}>({1})", stored(dtype), value).str();
    std::string& name = names_[index_of(result)];
    name = formatv("v{0}", made_++).str();
    return formatv("const {0} {1} = {2};", computed(dtype), name, value).str();
  }

  std::string argument(const Node& node, size_t i) const { return names_[index_of(node.operands[i])]; }

  std::string expression(const Node& node, DType dtype) {
    const auto types = operand_types(*body_, node);
    const OpCall call(*node.op, node.attrs, types);
    const llvm::StringRef op = node.op->name;
    if (op == "constant") return literal(*node.attrs.get_tensor("value"));
    if (op == "cast") return cast(argument(node, 0), call.operand(0).dtype, dtype);
    if (op == "copy") return argument(node, 0);
    if (op == "where") return formatv("{0} ? {1} : {2}", argument(node, 0), argument(node, 1), argument(node, 2)).str();
    if (op == "not") return "!" + argument(node, 0);
    if (op == "is_nan") return "isnan(" + argument(node, 0) + ")";
    if (op == "is_inf") return is_inf(call, argument(node, 0));
    if (op == "dropout") return dropout(node, call);
    if (op == "add_n") return sum(node);
    if (is_16_bit_float(dtype) && op == "gelu" && !is_tanh_form(call)) return "narrow_gelu(" + argument(node, 0) + ")";
    if (is_16_bit_float(dtype) && op == "gelu_grad" && !is_tanh_form(call))
      return formatv("{1} * narrow_gelu_slope({0})", argument(node, 0), argument(node, 1)).str();
    return apply(node, call);
  }

  static std::string literal(const Tensor& value) {
    const DType dtype = value.type().dtype;
    if (is_float(dtype)) return float_literal(value.get(0));
    return formatv("static_cast<{0}>({1}LL)", computed(dtype), value.get_int(0)).str();
  }

  // Floats become integers by truncation, and these wrap.
  static std::string cast(const std::string& x, DType from, DType to) {
    if (to == DType::Bool) return x + " != 0";
    if (is_float(from) && is_integer(to))
      return formatv("static_cast<{0}>(static_cast<int64_t>({1}))", computed(to), x).str();
    return formatv("static_cast<{0}>({1})", computed(to), x).str();
  }

  static std::string is_inf(const OpCall& call, const std::string& x) {
    const bool negative = call.get_int("negative") != 0, positive = call.get_int("positive") != 0;
    return formatv("isinf({0}) && ({0} < 0 ? {1} : {2})", x, negative ? "true" : "false", positive ? "true" : "false")
        .str();
  }

  std::string sum(const Node& node) const {
    std::string terms = argument(node, 0);
    for (size_t i = 1; i < node.operands.size(); ++i) terms += " + " + argument(node, i);
    return terms;
  }

  std::string dropout(const Node& node, const OpCall& call) {
    const double ratio = call.get_float("ratio");
    const size_t stream = source_.streams.size();
    source_.streams.push_back(static_cast<uint32_t>(call.get_int("id")));
    const std::string name = formatv("draws{0}", stream).str();
    draws_ += formatv("  const Draws<{0}> {1}({2}_at, stream{3}, first_block, at);\n", length_, name, argument(node, 1),
                      stream)
                  .str();
    return formatv("{0}.keep(k, {1}, {2}ull, {3})", name, argument(node, 0),
                   static_cast<uint64_t>(std::ceil(ratio * 0x1p32)), float_literal(ratio < 1 ? 1 / (1 - ratio) : 0))
        .str();
  }

  // A call of the op's function, which stands before the kernel.
  std::string apply(const Node& node, const OpCall& call) {
    std::string name = node.op->name.str();
    double a = 0, b = 0;
    if (name == "gelu" && is_tanh_form(call)) name = "gelu_tanh";
    if (name == "gelu_grad" && is_tanh_form(call)) name = "gelu_tanh_grad";
    if (name == "mod" && call.get_int("fmod")) name = "fmod";
    if (name == "clip") a = call.attrs.get_float("min", -INFINITY), b = call.attrs.get_float("max", INFINITY);
    for (const FormulaParameters& each : parameters)
      if (each.op == name) a = call.get_float(each.a), b = call.get_float(each.b);
    const Formula& formula = *find_formula(name);
    define(formula);
    std::string arguments = argument(node, 0);
    for (size_t i = 1; i < node.operands.size(); ++i) arguments += ", " + argument(node, i);
    if (node.operands.size() == 1) arguments += ", " + float_literal(a) + ", " + float_literal(b);
    return "op_" + name + "(" + arguments + ")";
  }

  void define(const Formula& formula) {
    const std::string head = formatv("op_{0}(", formula.name).str();
    if (llvm::StringRef(functions_).contains(" " + head)) return;
    const bool compares = formula.result == "bool" && formula.element == "float";
    functions_ += compares ? "template <typename C>\n" : "";
    const std::string body = compares ? "" : formatv("using C = {0}; ", formula.element).str();
    std::string parameters = formula.parameters.str();
    if (!compares)
      for (size_t at = 0; (at = parameters.find("C ", at)) != std::string::npos; at += 2)
        parameters.replace(at, 1, formula.element.str());
    functions_ += formatv("__device__ inline {0} {1}{2}) {{ {3}return {4}; }\n", formula.result, head, parameters, body,
                          formula.text)
                      .str();
  }

  FusedSource finish() {
    code_.flush();
    source_.name = "fused_" + llvm::utohexstr(llvm::xxHash64(text_), /*LowerCase=*/true);
    const size_t at = text_.find("KERNEL");
    text_.replace(at, 6, source_.name);
    source_.text = std::move(text_);
    return std::move(source_);
  }

  const OpCall& call_;
  llvm::ArrayRef<Type> results_;
  FusedBody body_;
  Iteration it_;
  int64_t length_;
  FusedSource source_;
  std::string text_, functions_, draws_;
  llvm::raw_string_ostream code_;
  std::vector<std::string> names_;  // by value of the body
  int made_ = 0;
};

constexpr SourceHeader headers[] = {
    {
        "kernels/cuda/elementwise/fused_elements.cuh",
#include "kernels/cuda/elementwise/fused_elements.inc"
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

FusedSource fused_source(const OpCall& call, llvm::ArrayRef<Type> results) { return Writer(call, results).write(); }

llvm::ArrayRef<SourceHeader> fused_source_headers() { return headers; }

}  // namespace plimsoll
