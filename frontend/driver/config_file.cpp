#include "frontend/driver/config_file.h"

#include "ir/support/did_you_mean.h"
#include "ir/support/read_file.h"
#include "ir/support/strings.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/StringExtras.h"

#include <CLI/CLI.hpp>
#include <sstream>

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

// The error of a name that is none of `known`.
Status unknown_name(const llvm::Twine& what, llvm::StringRef name, const std::vector<std::string>& known) {
  std::vector<llvm::StringRef> names;
  for (llvm::StringRef each : known) names.push_back(starts_with(each, "--") ? each.drop_front(2) : each);
  std::vector<std::string> near = did_you_mean(name, names, 1);
  return usage_error(what + " is called " + name + (near.empty() ? "" : "; did you mean " + near.front() + "?"));
}

// Whether `item` is for the command that `words` name; an error where it is for none.
Result<bool> is_wanted(const CLI::ConfigItem& item, const std::vector<std::string>& words,
                       const CommandOptions& commands) {
  const std::string& command = words.front();
  if (item.parents.size() > 1)
    return usage_error("the section " + llvm::join(item.parents, ".") +
                       " belongs to no command; options stand right in the section of their command");
  const std::string& section = item.parents.empty() || is_job(words) ? command : item.parents.front();
  const auto found = commands.find(section);
  if (found == commands.end()) {
    std::vector<std::string> names;
    for (const auto& each : commands) names.push_back(each.first);
    return unknown_name("no command", section, names);
  }
  if (item.name == "config") return usage_error("config: a file of options names no other one");
  if (!llvm::is_contained(found->second, "--" + item.name)) return unknown_name("no option", item.name, found->second);
  return section == command;
}

}  // namespace

Result<std::vector<std::string>> words_of_config(const std::vector<std::string>& words,
                                                 const CommandOptions& commands) {
  std::string path = config_path(words);
  if (path.empty()) return std::vector<std::string>();
  Result<std::unique_ptr<llvm::MemoryBuffer>> file = read_file(path);
  if (!file) return file.takeError();
  std::istringstream text((*file)->getBuffer().str());
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(text);
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
    Result<bool> wanted = is_wanted(item, words, commands);
    if (!wanted) return in_context(path, wanted.takeError());
    const std::string option = "--" + item.name;
    if (!*wanted || is_given(words, option)) continue;
    for (const std::string& value : item.inputs) more.push_back(option + "=" + value);
  }
  // The section is not of options: who reads the transforms reads this file.
  constexpr llvm::StringLiteral transforms = "--transforms";
  if (has_transforms && llvm::is_contained(commands.at(words.front()), transforms.str()) &&
      !is_given(words, transforms.str()))
    more.push_back((transforms + "=" + path).str());
  return more;
}

}  // namespace plimsoll
