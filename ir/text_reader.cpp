#include "ir/text_reader.h"

#include "ir/support/strings.h"

#include "llvm/ADT/StringExtras.h"

#include <charconv>
#include <cstring>

namespace plimsoll {
namespace {

using Kind = Token::Kind;

bool reads_as_float(const Token& token) {
  if (token.is_word("nan") || token.is_word("inf")) return true;
  return token.kind == Kind::Number && llvm::StringRef(token.text).find_first_of(".ein") != llvm::StringRef::npos;
}

std::optional<DType> dtype_of(const Token& token) {
  return token.kind == Kind::Word ? parse_dtype(token.text) : std::nullopt;
}

}  // namespace

void TextReader::fail_at(size_t offset, const llvm::Twine& message) {
  if (failed_) return;
  failed_ = true;
  message_ = (file_.empty() ? "" : file_ + ":").str() + lexer_.place_of(offset) + ": " + message.str();
}

void TextReader::fail_expected(const llvm::Twine& what) {
  if (token_.kind == Kind::End)
    fail("expected " + what + ", got the end");
  else
    fail("expected " + what + ", got '" + token_.text + "'");
}

void TextReader::advance() {
  token_ = lexer_.next();
  if (token_.kind == Kind::Bad) fail(token_.text);
}

bool TextReader::accept(char mark) {
  if (failed_ || !token_.is(mark)) return false;
  advance();
  return true;
}

bool TextReader::accept_word(llvm::StringRef word) {
  if (failed_ || !token_.is_word(word)) return false;
  advance();
  return true;
}

void TextReader::expect(char mark) {
  if (!accept(mark)) fail_expected(llvm::Twine("'") + llvm::Twine(mark) + "'");
}

std::string TextReader::name(Kind kind, llvm::StringRef what) {
  if (token_.kind != kind) fail_expected(what);
  std::string text = token_.text;
  advance();
  return text;
}

std::string TextReader::plain_name(llvm::StringRef what) {
  return name(token_.kind == Kind::String ? Kind::String : Kind::Word, what);
}

int64_t TextReader::integer() {
  int64_t value = 0;
  if (token_.kind != Kind::Number || llvm::StringRef(token_.text).getAsInteger(10, value)) fail_expected("an integer");
  advance();
  return value;
}

double TextReader::number() {
  double value = 0;
  llvm::StringRef text = token_.text;
  auto [end, error] = std::from_chars(text.begin(), text.end(), value);
  if (error != std::errc() || end != text.end()) fail_expected("a number");
  advance();
  return value;
}

Type TextReader::type() {
  std::optional<DType> dtype = dtype_of(token_);
  if (!dtype) fail_expected("a type");
  advance();
  return Type(dtype.value_or(DType::F32), shape());
}

Shape TextReader::shape() {
  Shape dims;
  expect('[');
  list(']', [&] {
    int64_t dim = integer();
    if (dim < 0) fail("a dimension is negative");
    dims.push_back(dim);
    if (!is_countable(dims)) fail("too many elements");
    if (failed_) dims.pop_back();
  });
  return dims;
}

Attrs TextReader::attributes() {
  Attrs attrs;
  list('}', [&] {
    size_t start = offset();
    std::string attr_name = plain_name("an attribute");
    if (attrs.has(attr_name)) fail_at(start, "attribute " + attr_name + " is there already");
    expect('=');
    attrs.set(attr_name, attribute());
  });
  return attrs;
}

Attr TextReader::attribute() {
  if (token_.kind == Kind::String) return name(Kind::String, "a string");
  if (reads_as_float(token_)) return number();
  if (token_.kind == Kind::Number) return integer();
  if (accept('[')) return list_attribute();
  std::optional<DType> dtype = dtype_of(token_);
  if (!dtype) fail_expected("an attribute's value");
  advance();
  Type tensor_type(dtype.value_or(DType::F32), {});
  if (failed_ || !token_.is('[')) return tensor_type.dtype;
  tensor_type.shape = shape();
  return tensor(tensor_type);
}

// "[.]" is the empty list of numbers, "[]" that of integers.
Attr TextReader::list_attribute() {
  if (token_.kind == Kind::Number && token_.text == ".") {
    advance();
    expect(']');
    return Floats();
  }
  if (!reads_as_float(token_)) {
    Ints ints;
    list(']', [&] { ints.push_back(integer()); });
    return ints;
  }
  Floats floats;
  list(']', [&] { floats.push_back(number()); });
  return floats;
}

TensorRef TextReader::tensor(const Type& type) {
  // Before memory is asked for: no element takes less than a character.
  if (type.elements() > static_cast<int64_t>(text_.size())) fail(to_string(type) + " has more elements than the text");
  if (failed_) return std::make_shared<const Tensor>(Type(type.dtype, {0}));
  auto tensor = std::make_shared<Tensor>(type);
  size_t start = offset();
  expect('<');
  if (token_.kind == Kind::Number && starts_with(token_.text, "0x")) {
    tensor_bytes(*tensor);
    expect('>');
    return tensor;
  }
  int64_t count = 0;
  list('>', [&] { element(tensor->view(), count++); });
  if (count != type.elements())
    fail_at(start,
            to_string(type) + " has " + std::to_string(type.elements()) + " elements, got " + std::to_string(count));
  return tensor;
}

void TextReader::tensor_bytes(Tensor& tensor) {
  std::string bytes;
  if (!llvm::tryGetFromHex(llvm::StringRef(token_.text).drop_front(2), bytes) ||
      static_cast<int64_t>(bytes.size()) != tensor.type().bytes())
    fail(to_string(tensor.type()) + " has " + std::to_string(tensor.type().bytes()) + " bytes");
  else
    std::memcpy(tensor.data(), bytes.data(), bytes.size());
  advance();
}

void TextReader::element(const TensorView& view, int64_t i) {
  if (i >= view.elements()) return advance();  // counted, and reported by the caller
  if (view.type.dtype == DType::F64) return view.set(i, number());
  if (is_float(view.type.dtype)) return view.set(i, float_number());
  uint64_t wide = 0;
  if (view.type.dtype == DType::U64 && !llvm::StringRef(token_.text).getAsInteger(10, wide)) {
    view.set_int(i, static_cast<int64_t>(wide));
    return advance();
  }
  view.set_int(i, integer());
}

// Rounded once, from the text to f32.
float TextReader::float_number() {
  float value = 0;
  std::from_chars(token_.text.data(), token_.text.data() + token_.text.size(), value);
  number();
  return value;
}

}  // namespace plimsoll
