// docs/ops.md is written from the records and compared with the file. PLIMSOLL_BLESS=1 in the environment writes it.

#include "ir/op_def.h"

#include "llvm/Support/raw_ostream.h"

#include <doctest/doctest.h>
#include <cstdlib>
#include <fstream>
#include <sstream>

using namespace plimsoll;

namespace {

constexpr struct {
  bool is_family;
  llvm::StringLiteral name;
} entries[] = {
#define PLIMSOLL_FAMILY(name) {true, #name},
#define PLIMSOLL_OP(name) {false, #name},
#include "ir/ops/ops.def"
#undef PLIMSOLL_OP
};

std::string text_of(const Ports& ports) {
  std::string text;
  for (const Port& port : ports) {
    text += (text.empty() ? "" : ", ") + port.name.str();
    if (port.kind == Port::Kind::OneOrMore) text += "+";
    if (port.kind == Port::Kind::AnyNumber) text += "*";
    if (port.kind == Port::Kind::Optional) text += "?";
    if (!port.condition.empty()) text += " (with " + port.condition.str() + ")";
  }
  return text;
}

std::string default_of(const AttrSpec& attr) {
  std::ostringstream text;
  if (attr.kind == AttrKind::Int)
    text << attr.integer;
  else if (attr.kind == AttrKind::Float)
    text << attr.number;
  else
    text << attr.text.str();
  return text.str();
}

std::string text_of(const AttrSpecs& attrs) {
  std::string text;
  for (const AttrSpec& attr : attrs) {
    text += (text.empty() ? "" : ", ") + attr.name.str();
    if (attr.has_default)
      text += " = " + default_of(attr);
    else
      text += (attr.need == AttrNeed::Optional ? "?: " : ": ") + kind_name(attr.kind).split(' ').second.str();
  }
  return text;
}

std::string ops_page() {
  std::string page =
      "# The ops\n\n"
      "This page is written from the op records (`ir/ops/`) by a test; run it with PLIMSOLL_BLESS=1 after a change.\n"
      "`x?` is optional, `xs+` is one or more, `xs*` any number. An attribute is given with its default or its kind.\n";
  for (const auto& [is_family, name] : entries) {
    if (is_family) {
      page += "\n## " + name.str() + "\n\n| op | operands | results | attributes | meaning |\n|---|---|---|---|---|\n";
      continue;
    }
    const OpDef& op = get_op(name);
    std::string meaning;
    for (char c : op.summary) meaning += c == '|' ? std::string("\\|") : std::string(1, c);
    page += "| `" + name.str() + "` | " + text_of(op.operands) + " | " + text_of(op.results) + " | " +
            text_of(op.attrs) + " | " + meaning + " |\n";
  }
  return page;
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("docs/ops.md says what the op records say") {
    const std::string path = PLIMSOLL_TEST_DATA "/../docs/ops.md", page = ops_page();
    if (std::getenv("PLIMSOLL_BLESS")) std::ofstream(path) << page;
    std::stringstream file;
    file << std::ifstream(path).rdbuf();
    CHECK(file.str() == page);
  }
}
