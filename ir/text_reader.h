#pragma once

// The lower half of the parser: tokens, errors with their place, numbers, types and attributes. The first
// error sticks: after it nothing is accepted any more, so callers need not look until the end.

#include "ir/attrs.h"
#include "ir/support/lexer.h"

namespace plimsoll {

class TextReader {
 public:
  TextReader(llvm::StringRef text, llvm::StringRef file) : text_(text), lexer_(text), file_(file) { advance(); }

  const Token& token() const { return token_; }
  size_t offset() const { return token_.offset; }
  bool failed() const { return failed_; }
  Status take_status() { return failed_ ? model_error(message_) : Status::success(); }

  void fail(const llvm::Twine& message) { fail_at(token_.offset, message); }
  void fail_at(size_t offset, const llvm::Twine& message);
  // "expected WHAT, got 'token'"
  void fail_expected(const llvm::Twine& what);

  void advance();
  bool accept(char mark);
  bool accept_word(llvm::StringRef word);
  void expect(char mark);

  // The text of a token of that kind; `what` names it in the error.
  std::string name(Token::Kind kind, llvm::StringRef what);
  std::string plain_name(llvm::StringRef what);  // without sigil: bare or quoted
  int64_t integer();
  double number();
  Type type();
  Shape shape();
  Attrs attributes();  // behind the opening brace

  // Items separated by commas up to `close`, perhaps none.
  template <typename Item>
  void list(char close, Item item) {
    if (accept(close)) return;
    do item();
    while (accept(','));
    expect(close);
  }

 private:
  Attr attribute();
  Attr list_attribute();
  TensorRef tensor(const Type& type);
  void tensor_bytes(Tensor& tensor);
  void element(const TensorView& view, int64_t i);
  float float_number();

  llvm::StringRef text_;
  Lexer lexer_;
  llvm::StringRef file_;
  Token token_;
  bool failed_ = false;
  std::string message_;
};

}  // namespace plimsoll
