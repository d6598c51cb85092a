#include "ir/support/lexer.h"

#include "ir/support/strings.h"

#include "llvm/ADT/StringExtras.h"

namespace plimsoll {
namespace {

bool is_name_char(char c) { return llvm::isAlnum(c) || llvm::StringRef("_.$/:-").contains(c); }
bool is_number_char(char c) { return llvm::isAlnum(c) || llvm::StringRef("+-.").contains(c); }

}  // namespace

void Lexer::skip_blanks() {
  while (at_ < text_.size()) {
    if (llvm::isSpace(text_[at_]))
      ++at_;
    else if (starts_with(text_.substr(at_), "//"))
      at_ = std::min(text_.find('\n', at_), text_.size());
    else
      return;
  }
}

// A colon at the end belongs to what follows: `%x: f32[2]`.
std::string Lexer::take_bare() {
  llvm::StringRef name = text_.substr(at_).take_while(is_name_char).rtrim(':');
  at_ += name.size();
  return name.str();
}

Token Lexer::quoted(Token::Kind kind, size_t start) {
  std::string text;
  for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
    if (text_[at_] != '\\') {
      text += text_[at_];
      continue;
    }
    char escape = ++at_ < text_.size() ? text_[at_] : '\0';
    if (escape == 'n') {
      text += '\n';
    } else if (escape == '"' || escape == '\\') {
      text += escape;
    } else if (unsigned code; escape == 'x' && !text_.substr(at_ + 1, 2).getAsInteger(16, code)) {
      text += static_cast<char>(code);
      at_ += 2;
    } else {
      return {Token::Kind::Bad, "unknown escape in a string", at_};
    }
  }
  if (at_ >= text_.size()) return {Token::Kind::Bad, "string without an end", start};
  ++at_;
  return {kind, std::move(text), start};
}

Token Lexer::next() {
  skip_blanks();
  size_t start = at_;
  if (at_ >= text_.size()) return {Token::Kind::End, "", start};
  char c = text_[at_];
  auto kind = c == '%' ? Token::Kind::Value : c == '@' ? Token::Kind::Graph : Token::Kind::String;
  if (kind != Token::Kind::String) ++at_;
  if (at_ < text_.size() && text_[at_] == '"') return quoted(kind, start);
  if (kind != Token::Kind::String) {
    std::string name = take_bare();
    if (name.empty()) return {Token::Kind::Bad, std::string("a name must follow ") + c, start};
    return {kind, std::move(name), start};
  }
  if (llvm::StringRef("(){}[]<>,=:").contains(c)) {
    ++at_;
    return {Token::Kind::Mark, std::string(1, c), start};
  }
  if (c == '#' || llvm::isDigit(c) || llvm::StringRef("+-.").contains(c)) {
    if (c == '#') ++at_;
    llvm::StringRef number = text_.substr(at_).take_while(is_number_char);
    at_ += number.size();
    return {c == '#' ? Token::Kind::Origin : Token::Kind::Number, number.str(), start};
  }
  if (std::string word = take_bare(); !word.empty()) return {Token::Kind::Word, std::move(word), start};
  ++at_;
  return {Token::Kind::Bad, std::string("unexpected '") + c + "'", start};
}

std::string Lexer::place_of(size_t offset) const {
  llvm::StringRef before = text_.take_front(offset);
  size_t line_start = before.rfind('\n');
  size_t column = line_start == llvm::StringRef::npos ? before.size() + 1 : before.size() - line_start;
  return std::to_string(before.count('\n') + 1) + ":" + std::to_string(column);
}

}  // namespace plimsoll
