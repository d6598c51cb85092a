#include "frontend/driver/config_file.h"

#include "ir/support/did_you_mean.h"
#include "ir/support/strings.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/FileSystem.h"

#include <CLI/CLI.hpp>

// CLI11 parses the TOML. The options become words, so that all options arrive on one path; CLI11's own support for
// configuration files works for the main command only.

namespace plimsoll {
namespace {

// A job file holds the options of one command, train, so that its sections are headings.
bool is_job(const std::vector<std::string>& words) { return words.front() == "train"; }

std::string config_path(const std::vector<std::string>& words) {
  if (is_job(words)) return words.size() > 1 && !starts_with(words[1], "-") ? words[1] : "";
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--config" && i + 1 < words.size()) return words[i + 1];
    if (llvm::StringRef word = words[i]; word.consume_front("--config=")) return word.str();
  }
  return "";
}

bool is_given(const std::vector<std::string>& words, const std::string& option) {
  return llvm::any_of(words, [&](llvm::StringRef word) {
    return word == option || (starts_with(word, option) && starts_with(word.drop_front(option.size()), "="));
  });
}

}  // namespace

Result<std::vector<std::string>> words_of_config(const std::vector<std::string>& words,
                                                 const std::vector<std::string>& known) {
  std::string path = config_path(words);
  if (path.empty()) return std::vector<std::string>();
  if (!llvm::sys::fs::exists(path)) return system_error(path + ": no such file");
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_file(path);
  } catch (const CLI::Error& error) {
    return usage_error(path + ": " + error.what());
  }
  std::vector<std::string> more;
  bool has_transforms = false;
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11's marks for sections
    if (!item.parents.empty() && item.parents.front() == "transforms") {
      has_transforms = true;
      continue;
    }
    if (!is_job(words) && !item.parents.empty() && item.parents.front() != words.front())
      continue;  // another command's section
    std::string option = "--" + item.name;
    if (!llvm::is_contained(known, option)) {
      std::vector<llvm::StringRef> names(known.begin(), known.end());
      std::vector<std::string> near = did_you_mean(option, names, 1);
      return usage_error(path + ": no option is called " + item.name +
                         (near.empty() ? "" : "; did you mean " + near.front().substr(2) + "?"));
    }
    if (is_given(words, option)) continue;
    for (const std::string& value : item.inputs) more.push_back(option + "=" + value);
  }
  // The section is not of options: who reads the transforms reads this file.
  constexpr llvm::StringLiteral transforms = "--transforms";
  if (has_transforms && llvm::is_contained(known, transforms.str()) && !is_given(words, transforms.str()))
    more.push_back((transforms + "=" + path).str());
  return more;
}

}  // namespace plimsoll
