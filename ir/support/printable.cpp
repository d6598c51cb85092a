#include "ir/support/printable.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/ConvertUTF.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr size_t longest_style = 16;

// Bytes of the UTF-8 character at the start of `text`; 0: there is none.
size_t character_bytes(llvm::StringRef text) {
  const auto* at = reinterpret_cast<const llvm::UTF8*>(text.data());
  const size_t size = llvm::getNumBytesForUTF8(*at);
  if (size > text.size() || !llvm::isLegalUTF8Sequence(at, at + size)) return 0;
  return size;
}

bool is_control(llvm::StringRef character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return (first < ' ' && first != '\n' && first != '\t') || first == 0x7f;
  return first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;  // U+0080 to U+009F
}

// Bytes of a style at the start of `text`; 0: there is none.
size_t style_bytes(llvm::StringRef text) {
  if (!text.consume_front("\x1b[")) return 0;
  const size_t digits = std::min(text.find_if_not([](char c) { return llvm::isDigit(c) || c == ';'; }), text.size());
  return digits < text.size() && text[digits] == 'm' && digits + 3 <= longest_style ? digits + 3 : 0;
}

void escape(char byte, std::string& out) {
  const auto value = static_cast<unsigned char>(byte);
  out += "\\x";
  out += llvm::hexdigit(value >> 4, /*LowerCase=*/true);
  out += llvm::hexdigit(value & 15, /*LowerCase=*/true);
}

// Takes one character or style from `text`.
void take_one(llvm::StringRef& text, bool with_styles, std::string& out) {
  if (const size_t style = with_styles ? style_bytes(text) : 0; style > 0) {
    out += text.take_front(style);
    text = text.drop_front(style);
    return;
  }
  const size_t size = character_bytes(text);
  if (size == 0 || is_control(text.take_front(size)))
    for (char byte : text.take_front(std::max<size_t>(size, 1))) escape(byte, out);
  else
    out += text.take_front(size);
  text = text.drop_front(std::max<size_t>(size, 1));
}

// Where a character or a style begins at the end of `text` and may go on in the next call.
bool is_unfinished(llvm::StringRef text, bool with_styles) {
  if (text[0] == '\x1b')
    return with_styles && text.size() < longest_style &&
           (text.size() == 1 || (text[1] == '[' && text.drop_front(2).find_if_not([](char c) {
              return llvm::isDigit(c) || c == ';';
            }) == llvm::StringRef::npos));
  return llvm::getNumBytesForUTF8(static_cast<llvm::UTF8>(text[0])) > text.size();
}

}  // namespace

std::string printable(llvm::StringRef text) {
  std::string out;
  while (!text.empty()) take_one(text, false, out);
  return out;
}

PrintableStream::~PrintableStream() {
  flush();
  to_ << printable(pending_);
}

void PrintableStream::write_impl(const char* at, size_t size) {
  written_ += size;
  pending_.append(at, size);
  llvm::StringRef text = pending_;
  std::string out;
  while (!text.empty() && !is_unfinished(text, with_styles_)) take_one(text, with_styles_, out);
  pending_.erase(0, pending_.size() - text.size());
  to_ << out;
}

}  // namespace plimsoll
