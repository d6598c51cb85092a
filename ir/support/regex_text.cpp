#include "ir/support/regex_text.h"

#include "llvm/ADT/SmallVector.h"

#include <algorithm>

namespace plimsoll {
namespace {

constexpr int64_t max_parts = 10000;

// The largest number of a bound, "3", "3,", "3,7", which stands behind the brace; the text goes on behind its end.
int64_t take_bound(llvm::StringRef& text) {
  const auto [bound, rest] = text.split('}');
  text = rest;
  const auto [least, most] = bound.split(',');
  int64_t times = 1, last = 1;
  if (least.getAsInteger(10, times)) times = 1;
  if (most.getAsInteger(10, last)) last = 1;
  return std::clamp<int64_t>(std::max(times, last), 1, max_parts) + 1;
}

// Characters, classes and groups once each bound's copies are made, as far as the limit.
int64_t count_parts(llvm::StringRef text) {
  struct Group {
    int64_t parts = 0, last = 0;  // `last` of the part that a bound would repeat, in `parts` too
    void add(int64_t count) {
      parts = std::min(parts + count, max_parts + 1);
      last = count;
    }
  };
  llvm::SmallVector<Group, 8> groups(1);
  while (!text.empty()) {
    const char c = text.front();
    text = text.drop_front();
    if (c == '(') {
      groups.emplace_back();
    } else if (c == ')' && groups.size() > 1) {
      const int64_t parts = groups.pop_back_val().parts + 1;
      groups.back().add(parts);
    } else if (c == '{') {
      const int64_t last = groups.back().last, times = take_bound(text);
      groups.back().add(std::min(last * times, max_parts + 1));
    } else if (c == '[') {
      text = text.drop_front(std::min(text.size(), text.find(']', 1)));
      groups.back().add(1);
    } else {
      if (c == '\\') text = text.drop_front(std::min<size_t>(text.size(), 1));
      groups.back().add(1);
    }
  }
  int64_t parts = 0;
  for (const Group& group : groups) parts += group.parts;
  return parts;
}

}  // namespace

Result<llvm::Regex> parse_regex(llvm::StringRef pattern, bool whole) {
  if (count_parts(pattern) > max_parts)
    return usage_error("'" + pattern.take_front(200) + "' repeats too much for a regular expression: more than " +
                       llvm::Twine(max_parts) + " parts");
  llvm::Regex regex(whole ? ("^(" + pattern + ")$").str() : pattern.str());
  std::string why;
  if (!regex.isValid(why)) return usage_error("'" + pattern + "' is not a regular expression: " + why);
  return regex;
}

}  // namespace plimsoll
