#pragma once

// Splits the text form into tokens. Blanks and `//` comments separate; lines mean nothing.

#include "llvm/ADT/StringRef.h"

#include <string>

namespace plimsoll {

struct Token {
  enum class Kind {
    End,
    Mark,    // one of ( ) { } [ ] < > , = :
    Word,    // letters first: op, dtype and attribute names, keywords; also a lone _
    Number,  // as written: digits, sign or dot first
    String,  // unescaped
    Value,   // %name
    Graph,   // @name
    Origin,  // #number
    Bad,     // text says what is wrong
  } kind = Kind::End;
  std::string text;   // without quotes or sigil
  size_t offset = 0;  // of its first character

  bool is(char mark) const { return kind == Kind::Mark && text[0] == mark; }
  bool is_word(llvm::StringRef word) const { return kind == Kind::Word && text == word; }
};

class Lexer {
 public:
  explicit Lexer(llvm::StringRef text) : text_(text) {}

  Token next();
  // "line:column" of an offset, both from 1.
  std::string place_of(size_t offset) const;

 private:
  void skip_blanks();
  std::string take_bare();
  Token quoted(Token::Kind kind, size_t start);

  llvm::StringRef text_;
  size_t at_ = 0;
};

}  // namespace plimsoll
