#include "ir/plan/page.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace plimsoll {
namespace {

bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

// The first `count` characters.
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

std::string printed(const char* form, double value) {
  char text[48];
  std::snprintf(text, sizeof text, form, value);
  return text;
}

}  // namespace

std::string Page::toned(Tone tone, llvm::StringRef text) const {
  constexpr llvm::StringLiteral codes[] = {"", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[33m", "\x1b[36m"};
  if (!options_.color || tone == Tone::Plain) return text.str();
  return (codes[static_cast<size_t>(tone)] + text + "\x1b[0m").str();
}

void Page::heading(llvm::StringRef title, llvm::StringRef note) {
  line();
  line(toned(Tone::Strong, title) +
       (note.empty() ? "" : "  " + toned(Tone::Quiet, clipped(note, columns() - width_of(title) - 2))));
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

std::string format_us(double us) {
  if (us >= 1e6) return printed(us >= 1e8 ? "%.0f s" : us >= 1e7 ? "%.1f s" : "%.2f s", us / 1e6);
  if (us >= 1e3) return printed(us >= 1e5 ? "%.0f ms" : us >= 1e4 ? "%.1f ms" : "%.2f ms", us / 1e3);
  return printed(us >= 100 ? "%.0f us" : "%.1f us", us);
}

std::string format_share(double share) { return printed("%.1f %%", 100 * share); }

std::string format_count(int64_t count) {
  std::string digits = std::to_string(count);
  for (auto at = static_cast<int64_t>(digits.size()) - 3; at > (count < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

}  // namespace plimsoll
