#include "runtime/kernels/fused_writer.h"

#include "ir/text.h"
#include "runtime/kernels/loop_nests.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"
#include "llvm/Support/xxhash.h"

namespace plimsoll {
namespace {

using llvm::formatv;

// The same body with its dropouts counted from 0.
Graph without_streams(const Graph& body) {
  Graph counted = body;
  int64_t next = 0;
  for (NodeId id : counted.order())
    if (counted.node(id).op->name == "dropout") counted.node(id).attrs.set("id", next++);
  return counted;
}

}  // namespace

FusedIteration::FusedIteration(const OpCall& call, const Graph& body, llvm::ArrayRef<int64_t> shape)
    : elements(element_count(shape)), strides(call.count()) {
  llvm::SmallVector<Shape, 8> all_steps;
  for (size_t i = 0; i < call.count(); ++i) {
    const bool is_counter = is_random_counter(body.type(body.inputs[i]));
    all_steps.push_back(is_counter ? Shape(shape.size(), 0) : read_steps(call, i, shape));
    starts.push_back(read_start(call, i));
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d] == 1) continue;
    llvm::SmallVector<int64_t, 8> steps;
    for (const Shape& own : all_steps) steps.push_back(own[d]);
    bool joins = !sizes.empty();
    for (size_t i = 0; i < steps.size() && joins; ++i) joins = strides[i].back() == steps[i] * shape[d];
    if (!joins) sizes.push_back(1);
    sizes.back() *= shape[d];
    for (size_t i = 0; i < steps.size(); ++i) {
      if (!joins) strides[i].push_back(0);
      strides[i].back() = steps[i];
    }
  }
  if (!sizes.empty()) return;
  sizes.push_back(1);
  for (auto& each : strides) each.push_back(0);
}

bool FusedIteration::runs_align(int64_t length) const {
  for (size_t i = 0; i < strides.size(); ++i)
    if (walks(i) && starts[i] % length != 0) return false;
  if (sizes.size() == 1) return true;
  if (sizes.back() % length != 0) return false;
  return llvm::all_of(strides, [&](const auto& own) {
    return own.back() == 0 ||
           llvm::all_of(llvm::ArrayRef<int64_t>(own).drop_back(), [&](int64_t stride) { return stride % length == 0; });
  });
}

RunReads FusedIteration::run_reads(size_t operand, int64_t length) const {
  const auto& own = strides[operand];
  size_t d = own.size() - 1;
  const int64_t step = own[d];
  int64_t line = sizes[d];
  while (d > 0 && own[d - 1] == own[d] * sizes[d]) line *= sizes[--d];
  const llvm::ArrayRef<int64_t> outer = llvm::ArrayRef<int64_t>(own).take_front(d);
  if (line != elements && line % length != 0)
    return {line < length ? LineReads::Places : LineReads::TwoLines, step, line};
  const bool aligns =
      starts[operand] % length == 0 && llvm::all_of(outer, [&](int64_t stride) { return stride % length == 0; });
  return {step == 1 && aligns ? LineReads::Words : LineReads::Steps, step, line};
}

FusedWriter::FusedWriter(const OpCall& call, llvm::ArrayRef<Type> results, llvm::ArrayRef<int64_t> shape)
    : call(call),
      results(results),
      body(llvm::cantFail(fused_body(call.get_string("body")))),
      iteration(call, *body, shape),
      variables(*body) {
  source.streams.assign(variables.streams().begin(), variables.streams().end());
}

int64_t FusedWriter::whole_run_length(llvm::ArrayRef<Type> element_results) const {
  int64_t narrowest = 8;
  for (size_t i = 0; i < call.count(); ++i)
    if (iteration.walks(i)) narrowest = std::min(narrowest, dtype_bytes(call.operand(i).dtype));
  for (const Type& result : element_results) narrowest = std::min(narrowest, dtype_bytes(result.dtype));
  int64_t length = std::min<int64_t>(8, 16 / narrowest);
  while (length > iteration.elements) length /= 2;
  return length;
}

int64_t FusedWriter::run_length(llvm::ArrayRef<Type> element_results) const {
  int64_t length = whole_run_length(element_results);
  while (length > 1 && !iteration.runs_align(length)) length /= 2;
  return length;
}

// Dimensions that the operand alone walks through without a jump count as one.
std::string FusedWriter::offset(size_t operand, llvm::StringRef at) const {
  const auto& strides = iteration.strides[operand];
  std::string sum;
  int64_t inner = 1;
  for (size_t d = iteration.sizes.size(); d-- > 0;) {
    const int64_t stride = strides[d];
    int64_t size = iteration.sizes[d];
    while (d > 0 && strides[d - 1] == strides[d] * iteration.sizes[d]) size *= iteration.sizes[--d];
    if (stride != 0) sum = term(at, inner, size, stride) + (sum.empty() ? "" : " + ") + sum;
    inner *= size;
  }
  return sum.empty() ? "0" : sum;
}

std::string FusedWriter::term(llvm::StringRef at, int64_t inner, int64_t size, int64_t stride) const {
  std::string text = inner > 1 ? formatv("{0} / {1}", at, inner).str() : at.str();
  if (inner * size < iteration.elements) text += formatv(" % {0}", size).str();
  return stride == 1 ? text : formatv("{0} * {1}", text == at ? text : "(" + text + ")", stride).str();
}

std::string FusedWriter::pointers() const {
  std::string text;
  for (size_t r = 0; r < results.size(); ++r)
    text += formatv("{0}{1}* y{2}", r ? ", " : "", stored_type(results[r].dtype), r).str();
  for (size_t i = 0; i < call.count(); ++i) text += formatv(", const {0}* x{1}_at", stored_operand(i), i).str();
  return text;
}

std::string FusedWriter::draw_parameters() const {
  std::string text = source.streams.empty() ? "" : ", int64_t first_draw";
  for (size_t i = 0; i < source.streams.size(); ++i) text += formatv(", uint32_t stream{0}", i).str();
  return text;
}

std::string FusedWriter::statements(llvm::ArrayRef<NodeId> nodes, llvm::StringRef indent) {
  std::string text;
  for (NodeId id : nodes) text += indent.str() + variables.write(id) + "\n";
  return text;
}

std::string FusedWriter::comment() const {
  std::string text;
  const std::string lines = to_text(without_streams(*body));
  for (llvm::StringRef line : llvm::split(lines, '\n'))
    if (!line.trim().empty()) text += "// " + line.str() + "\n";
  text += "// over";
  for (size_t i = 0; i < call.count(); ++i) text += (i ? ", " : " ") + to_string(call.operand(i));
  return text + "\n";
}

FusedSource FusedWriter::finish(const std::string& kernels, llvm::StringRef header) {
  std::string text = formatv("#include \"{0}\"\n\nusing namespace plimsoll::cuda;\n\n", header).str() +
                     variables.functions() + comment() + kernels;
  source.name = "fused_" + llvm::utohexstr(llvm::xxHash64(text), /*LowerCase=*/true);
  for (size_t at = 0; (at = text.find("KERNEL", at)) != std::string::npos;) text.replace(at, 6, source.name);
  source.text = std::move(text);
  return std::move(source);
}

}  // namespace plimsoll
