#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/importer.h"

// Sequences and optionals exist only during import: a sequence is the list of its tensors.

namespace plimsoll {
namespace {

// Returns a position in [-size, size), or [-size, size] if an element is inserted.
size_t position(NodeContext& n, size_t input, size_t size, bool may_be_end) {
  int64_t at = n.known_int(input, "position"), count = static_cast<int64_t>(size);
  if (at < 0) at += count;
  if (at < 0 || at > count || (at == count && !may_be_end))
    n.fail("position " + llvm::Twine(at) + " is outside a sequence of " + llvm::Twine(count));
  return n.failed() ? 0 : static_cast<size_t>(at);
}

void import_construct(NodeContext& n) {
  ValueList values = n.inputs();
  n.output_item(0, Item::of_elements({values.begin(), values.end()}));
}

void import_empty(NodeContext& n) { n.output_item(0, Item::of_elements({})); }

void import_at(NodeContext& n) {
  std::vector<ValueId> elements = n.sequence(0);
  size_t at = position(n, 1, elements.size(), false);
  if (!n.failed()) n.output(0, elements[at]);
}

void import_insert(NodeContext& n) {
  std::vector<ValueId> elements = n.sequence(0);
  ValueId added = n.input(1);
  size_t at = n.has(2) ? position(n, 2, elements.size(), true) : elements.size();
  elements.insert(elements.begin() + static_cast<long>(at), added);
  n.output_item(0, Item::of_elements(std::move(elements)));
}

void import_erase(NodeContext& n) {
  std::vector<ValueId> elements = n.sequence(0);
  if (elements.empty()) return n.fail("takes from an empty sequence");
  size_t at = n.has(1) ? position(n, 1, elements.size(), false) : elements.size() - 1;
  elements.erase(elements.begin() + static_cast<long>(at));
  n.output_item(0, Item::of_elements(std::move(elements)));
}

void import_length(NodeContext& n) {
  n.output(0, n.constant_value(Tensor::scalar_int(static_cast<int64_t>(n.sequence(0).size()))));
}

// Without sizes every piece is one slice, which may lose the split dimension.
void import_split_to_sequence(NodeContext& n) {
  ValueId x = n.input(0);
  int64_t axis = n.axis(n.attr_int("axis", 0), n.rank(x));
  Ints sizes = n.has(1) ? n.known_ints(1, "split sizes") : Ints{1};
  bool one_size = !n.has(1) || n.rank(n.input(1)) == 0;
  if (n.failed()) return;
  if (one_size) {
    int64_t size = sizes.front(), left = n.dim(x, axis);
    if (size < 1) return n.fail("splits into pieces of " + llvm::Twine(size));
    for (sizes.clear(); left > 0; left -= size) sizes.push_back(std::min(size, left));
  }
  ValueList pieces{x};
  if (sizes.size() != 1) pieces = n.emit_all("split", {x}, {{"axis", axis}, {"sizes", sizes}});
  bool drop = !n.has(1) && n.attr_int("keepdims", 1) == 0;
  Shape shape = n.shape(x);
  if (drop) shape.erase(shape.begin() + axis);
  std::vector<ValueId> elements;
  for (ValueId piece : pieces) elements.push_back(drop ? n.reshape(piece, shape) : piece);
  n.output_item(0, Item::of_elements(std::move(elements)));
}

void import_concat_from_sequence(NodeContext& n) {
  std::vector<ValueId> elements = n.sequence(0);
  if (elements.empty()) return n.fail("joins an empty sequence");
  bool stack = n.attr_int("new_axis", 0) != 0;
  int64_t axis = n.axis(n.attr_int("axis", 0), n.rank(elements.front()) + (stack ? 1 : 0));
  if (stack)
    for (ValueId& element : elements) element = n.unsqueeze(element, axis);
  n.output(0, n.concat(elements, axis));
}

// Imports the body once per element. Other inputs are sequences, read in parallel, or tensors, passed to each call.
void import_sequence_map(NodeContext& n) {
  const onnx::AttributeProto* body = n.attr("body");
  std::vector<ValueId> first = n.sequence(0);
  if (!body || !body->has_g())
    n.fail("has no body");
  else if (static_cast<size_t>(body->g().output_size()) < n.output_count())
    n.fail("its body lacks outputs");
  if (n.failed()) return;
  std::vector<std::vector<ValueId>> results(n.output_count());
  for (size_t i = 0; i < first.size(); ++i) {
    std::vector<Item> arguments;
    for (size_t j = 0; j < n.input_count(); ++j) {
      bool walked = n.item(j).kind == Item::Kind::Sequence;
      if (walked && n.item(j).elements.size() != first.size()) return n.fail("its sequences differ in length");
      arguments.push_back(walked ? Item::of(n.item(j).elements[i]) : n.item(j));
    }
    std::vector<Item> outputs = n.importer().run_subgraph(body->g(), arguments);
    for (size_t j = 0; j < n.output_count(); ++j) {
      if (outputs[j].kind != Item::Kind::Tensor) return n.fail("its body could not be imported");
      results[j].push_back(outputs[j].tensor);
    }
  }
  for (size_t j = 0; j < n.output_count(); ++j) n.output_item(j, Item::of_elements(results[j]));
}

// An optional is a value or nothing.
void import_optional(NodeContext& n) { n.output_item(0, n.has(0) ? n.item(0) : Item()); }

void import_optional_get(NodeContext& n) {
  if (!n.has(0)) return n.fail("takes the element of an empty optional");
  n.output_item(0, n.item(0));
}

void import_optional_has(NodeContext& n) { n.output(0, n.constant_value(Tensor::scalar_int(n.has(0), DType::Bool))); }

constexpr ImportRow sequence_table[] = {
    {"ConcatFromSequence", 11, import_concat_from_sequence},
    {"Optional", 15, import_optional},
    {"OptionalGetElement", 15, import_optional_get},
    {"OptionalHasElement", 15, import_optional_has},
    {"SequenceAt", 11, import_at},
    {"SequenceConstruct", 11, import_construct},
    {"SequenceEmpty", 11, import_empty},
    {"SequenceErase", 11, import_erase},
    {"SequenceInsert", 11, import_insert},
    {"SequenceLength", 11, import_length},
    {"SequenceMap", 17, import_sequence_map},
    {"SplitToSequence", 11, import_split_to_sequence},
};

}  // namespace

llvm::ArrayRef<ImportRow> sequence_rows() { return sequence_table; }

}  // namespace plimsoll
