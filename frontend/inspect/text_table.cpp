#include "frontend/inspect/text_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace plimsoll {
namespace {

bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

// Returns the first `count` characters; `tail` returns the last ones.
llvm::StringRef head(llvm::StringRef text, int count) {
  size_t at = 0;
  while (at < text.size() && count > 0) {
    ++at;
    while (at < text.size() && !starts_character(text[at])) ++at;
    --count;
  }
  return text.take_front(at);
}

llvm::StringRef tail(llvm::StringRef text, int count) {
  size_t at = text.size();
  while (at > 0 && count > 0)
    if (starts_character(text[--at])) --count;
  return text.drop_front(at);
}

}  // namespace

std::string TextTable::styled(Style style, llvm::StringRef text) const {
  constexpr llvm::StringLiteral codes[] = {"", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[36m"};
  if (!options_.color || style == Style::Plain) return text.str();
  return (codes[static_cast<size_t>(style)] + text + "\x1b[0m").str();
}

void TextTable::heading(llvm::StringRef title, llvm::StringRef note) {
  line();
  line(styled(Style::Strong, title) +
       (note.empty() ? "" : "  " + styled(Style::Quiet, clipped(note, columns() - width_of(title) - 2))));
}

int width_of(llvm::StringRef text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), starts_character));
}

std::string clipped(llvm::StringRef text, int columns) {
  if (width_of(text) <= columns) return text.str();
  return columns < 2 ? "" : head(text, columns - 1).str() + "…";
}

std::string clipped_middle(llvm::StringRef text, int columns) {
  if (width_of(text) <= columns) return text.str();
  if (columns < 5) return clipped(text, columns);
  return head(text, (columns - 1) / 2).str() + "…" + tail(text, columns - 1 - (columns - 1) / 2).str();
}

std::string left(llvm::StringRef text, int columns) {
  std::string padded = clipped(text, columns);
  return padded + std::string(static_cast<size_t>(std::max(0, columns - width_of(padded))), ' ');
}

std::string right(llvm::StringRef text, int columns) {
  std::string padded = clipped(text, columns);
  return std::string(static_cast<size_t>(std::max(0, columns - width_of(padded))), ' ') + padded;
}

std::string repeated(llvm::StringRef text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

std::string bar(double share, int columns) {
  constexpr llvm::StringLiteral eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  auto filled = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * columns * 8));
  if (filled == 0 && share > 0) filled = 1;
  return repeated("█", filled / 8) + eighths[filled % 8].str();
}

}  // namespace plimsoll
