#include "frontend/onnx/node_context.h"

#include "frontend/onnx/import_rows.h"
#include "frontend/onnx/importer.h"
#include "ir/fold.h"

namespace plimsoll {

NodeContext::NodeContext(Importer& importer, const onnx::NodeProto& node, const ImportRow& row, int64_t opset,
                         llvm::ArrayRef<Item> inputs)
    : importer_(importer),
      node_(node),
      row_(row),
      opset_(opset),
      inputs_(inputs.begin(), inputs.end()),
      outputs_(output_count()),
      given_(output_count(), false),
      first_value_(importer.graph().value_count()) {}

llvm::StringRef NodeContext::target() const { return row_.target; }

const ImportOptions& NodeContext::options() const { return importer_.options(); }

void NodeContext::fail(const llvm::Twine& message) {
  if (failed_) return;
  failed_ = true;
  failure_ = message.str();
}

void NodeContext::fail(Status error) { fail(take_diag(std::move(error)).text()); }

// Inputs and values.

ValueId NodeContext::input(size_t i) {
  const ValueId value = codes(i);
  const Weight* weight = importer_.weight_behind(value);
  if (weight && weight->four_bits)
    fail("input " + llvm::Twine(i) + ", " + weight->name + ", has 4-bit elements, which DequantizeLinear alone reads");
  return failed_ ? ValueId::None : value;
}

ValueId NodeContext::codes(size_t i) {
  if (!has(i)) fail("input " + llvm::Twine(i) + " is missing");
  if (failed_) return ValueId::None;
  if (inputs_[i].kind == Item::Kind::Sequence) fail("input " + llvm::Twine(i) + " is a sequence, not a tensor");
  return inputs_[i].tensor;
}

ValueList NodeContext::inputs() {
  ValueList values;
  for (size_t i = 0; i < inputs_.size(); ++i) values.push_back(input(i));
  return values;
}

std::vector<ValueId> NodeContext::sequence(size_t i) {
  if (!has(i) || inputs_[i].kind != Item::Kind::Sequence) fail("input " + llvm::Twine(i) + " is not a sequence");
  return failed_ ? std::vector<ValueId>() : inputs_[i].elements;
}

const Type& NodeContext::type(ValueId value) const {
  static const Type nothing;
  return value == ValueId::None ? nothing : importer_.graph().type(value);
}

int64_t NodeContext::dim(ValueId value, int64_t axis) const {
  return axis >= 0 && axis < rank(value) ? shape(value)[axis] : 1;
}

Shape NodeContext::dims_from(ValueId value, int64_t axis) const {
  const Shape& all = type(value).shape;
  Shape dims;
  for (int64_t i = axis; i < rank(value); ++i) dims.push_back(all[i]);
  return dims;
}

TensorRef NodeContext::constant(ValueId value) const {
  return value == ValueId::None ? nullptr : plimsoll::constant_value(importer_.graph(), value);
}

TensorRef NodeContext::known(size_t i, llvm::StringRef what) {
  ValueId value = input(i);
  if (failed_) return nullptr;
  if (TensorRef tensor = constant(value)) return tensor;
  if (TensorRef tensor = importer_.stored_value(value)) return tensor;
  undecided_ = importer_.inputs_behind(value);
  std::string behind = undecided_.empty() ? "" : "; it depends on " + llvm::join(undecided_, ", ");
  fail("its " + what + " is computed from data and cannot be known before running" + behind);
  return nullptr;
}

Ints NodeContext::known_ints(size_t i, llvm::StringRef what) {
  TensorRef tensor = known(i, what);
  return tensor ? Ints(tensor->ints()) : Ints();
}

Floats NodeContext::known_floats(size_t i, llvm::StringRef what) {
  Floats values;
  if (TensorRef tensor = known(i, what))
    for (int64_t e = 0; e < tensor->type().elements(); ++e) values.push_back(tensor->get(e));
  return values;
}

int64_t NodeContext::known_int(size_t i, llvm::StringRef what) {
  Ints values = known_ints(i, what);
  if (!failed_ && values.size() != 1) fail("its " + what + " has " + llvm::Twine(values.size()) + " elements, not one");
  return failed_ ? 0 : values.front();
}

int64_t NodeContext::axis(int64_t axis, int64_t rank) {
  int64_t normal = axis < 0 ? axis + rank : axis;
  if (normal >= 0 && normal < rank) return normal;
  fail("axis " + llvm::Twine(axis) + " is outside rank " + llvm::Twine(rank));
  return 0;
}

Ints NodeContext::axes(llvm::ArrayRef<int64_t> axes, int64_t rank) {
  Ints normal;
  for (int64_t a : axes) {
    normal.push_back(axis(a, rank));
    if (llvm::count(normal, normal.back()) > 1) fail("axis " + llvm::Twine(a) + " stands twice");
  }
  return normal;
}

Ints NodeContext::all_axes(ValueId x, int64_t first) const {
  Ints all;
  for (int64_t axis = first; axis < rank(x); ++axis) all.push_back(axis);
  return all;
}

Ints NodeContext::axes_or_all(llvm::ArrayRef<int64_t> given, ValueId x) {
  return given.empty() ? all_axes(x) : axes(given, rank(x));
}

// Attributes.

const onnx::AttributeProto* NodeContext::attr(llvm::StringRef name) const {
  for (const onnx::AttributeProto& attribute : node_.attribute())
    if (attribute.name() == name) return &attribute;
  return nullptr;
}

int64_t NodeContext::attr_int(llvm::StringRef name, int64_t otherwise) const {
  const onnx::AttributeProto* attribute = attr(name);
  return attribute ? attribute->i() : otherwise;
}

double NodeContext::attr_float(llvm::StringRef name, double otherwise) const {
  const onnx::AttributeProto* attribute = attr(name);
  return attribute ? attribute->f() : otherwise;
}

std::string NodeContext::attr_string(llvm::StringRef name, llvm::StringRef otherwise) const {
  const onnx::AttributeProto* attribute = attr(name);
  return attribute ? attribute->s() : otherwise.str();
}

Ints NodeContext::attr_ints(llvm::StringRef name) const {
  const onnx::AttributeProto* attribute = attr(name);
  return attribute ? Ints(attribute->ints().begin(), attribute->ints().end()) : Ints();
}

Floats NodeContext::attr_floats(llvm::StringRef name) const {
  const onnx::AttributeProto* attribute = attr(name);
  return attribute ? Floats(attribute->floats().begin(), attribute->floats().end()) : Floats();
}

std::vector<std::string> NodeContext::attr_strings(llvm::StringRef name) const {
  const onnx::AttributeProto* attribute = attr(name);
  if (!attribute) return {};
  return {attribute->strings().begin(), attribute->strings().end()};
}

DType NodeContext::attr_dtype(llvm::StringRef name, DType otherwise) {
  const onnx::AttributeProto* attribute = attr(name);
  if (!attribute) return otherwise;
  Result<DType> dtype = dtype_from_onnx(static_cast<int32_t>(attribute->i()));
  if (dtype) return *dtype;
  fail(dtype.takeError());
  return otherwise;
}

Tensor NodeContext::attr_tensor(llvm::StringRef name) {
  const onnx::AttributeProto* attribute = attr(name);
  if (!attribute || !attribute->has_t()) {
    fail("attribute " + name + " is missing or no tensor");
    return Tensor::scalar(0, DType::F32);
  }
  Result<Tensor> tensor = tensor_from_onnx(attribute->t(), importer_.model().data());
  if (tensor) return std::move(*tensor);
  fail(tensor.takeError());
  return Tensor::scalar(0, DType::F32);
}

// Emission.

std::string NodeContext::result_name(llvm::StringRef op) const {
  for (const std::string& output : node_.output())
    if (!output.empty()) return output + "." + op.str();
  return op.str();
}

ValueList NodeContext::emit_all(llvm::StringRef op, llvm::ArrayRef<ValueId> operands, Attrs attrs) {
  constexpr size_t max_results = 4;
  if (failed_) return ValueList(max_results, ValueId::None);
  Result<ValueList> results = importer_.emit(get_op(op), operands, std::move(attrs), result_name(op));
  if (results) return std::move(*results);
  std::string text = take_diag(results.takeError()).text();
  llvm::StringRef message = text;
  message.consume_front((op + ": ").str());
  fail(message);
  return ValueList(max_results, ValueId::None);
}

ValueId NodeContext::emit(llvm::StringRef op, llvm::ArrayRef<ValueId> operands, Attrs attrs) {
  return emit_all(op, operands, std::move(attrs)).front();
}

ValueId NodeContext::constant_value(Tensor value) {
  return emit("constant", {}, {{"value", std::make_shared<const Tensor>(std::move(value))}});
}

ValueId NodeContext::reshape(ValueId x, llvm::ArrayRef<int64_t> shape) {
  if (failed_ || llvm::ArrayRef<int64_t>(type(x).shape) == shape) return x;
  return emit("reshape", {x}, {{"shape", Ints(shape.begin(), shape.end())}});
}

ValueId NodeContext::transpose(ValueId x, llvm::ArrayRef<int64_t> permutation) {
  bool identity = true;
  for (size_t i = 0; i < permutation.size(); ++i) identity &= permutation[i] == static_cast<int64_t>(i);
  return identity ? x : emit("transpose", {x}, {{"perm", Ints(permutation.begin(), permutation.end())}});
}

ValueId NodeContext::expand(ValueId x, llvm::ArrayRef<int64_t> shape) {
  if (failed_ || llvm::ArrayRef<int64_t>(type(x).shape) == shape) return x;
  return emit("expand", {x}, {{"shape", Ints(shape.begin(), shape.end())}});
}

ValueId NodeContext::cast(ValueId x, DType dtype) {
  return failed_ || type(x).dtype == dtype ? x : emit("cast", {x}, {{"to", dtype}});
}

ValueId NodeContext::slice(ValueId x, int64_t axis, int64_t start, int64_t size) {
  if (failed_ || dim(x, axis) == size) return x;
  Ints starts(rank(x), 0), steps(rank(x), 1), sizes = shape(x);
  starts[axis] = start;
  sizes[axis] = size;
  return emit("slice", {x}, {{"starts", starts}, {"steps", steps}, {"sizes", sizes}});
}

ValueId NodeContext::select(ValueId x, int64_t axis, int64_t index) {
  if (failed_) return x;
  Shape dims = shape(x);
  dims.erase(dims.begin() + axis);
  return reshape(slice(x, axis, index, 1), dims);
}

ValueId NodeContext::unsqueeze(ValueId x, int64_t axis) {
  if (failed_) return x;
  Shape dims = shape(x);
  dims.insert(dims.begin() + axis, 1);
  return reshape(x, dims);
}

ValueId NodeContext::concat(llvm::ArrayRef<ValueId> pieces, int64_t axis) {
  return pieces.size() == 1 ? pieces.front() : emit("concat", pieces, {{"axis", axis}});
}

ValueId NodeContext::reduce(llvm::StringRef op, ValueId x, llvm::ArrayRef<int64_t> axes, bool keep_dims) {
  if (axes.empty()) return x;
  Ints sorted(axes.begin(), axes.end());
  llvm::sort(sorted);
  return emit(op, {x}, {{"axes", sorted}, {"keep_dims", int64_t{keep_dims}}});
}

// Outputs.

void NodeContext::output(size_t i, ValueId value) {
  if (failed_ || !wants(i)) return;
  if (index_of(value) >= first_value_) importer_.graph().rename(value, node_.output(static_cast<int>(i)));
  output_item(i, Item::of(value));
}

void NodeContext::output_item(size_t i, Item item) {
  if (failed_ || !wants(i)) return;
  outputs_[i] = std::move(item);
  given_[i] = true;
}

}  // namespace plimsoll
