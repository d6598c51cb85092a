#include "ir/support/regex_text.h"

#include <doctest/doctest.h>

#include <string>

using namespace plimsoll;

namespace {

std::string refusal_of(const std::string& pattern) {
  Result<llvm::Regex> regex = parse_regex(pattern);
  return regex ? "" : take_diag(regex.takeError()).text();
}

}  // namespace

TEST_SUITE("unit") {
  TEST_CASE("regular expressions: usual ones are read, as a whole where asked") {
    for (const char* pattern :
         {"bias$", "^blocks\\.(0|1)\\.", "[a-z{}]+\\{2\\}", "(layer_[0-9]{1,3}\\.){2}", "[]]{255}"})
      CHECK(refusal_of(pattern) == "");
    CHECK(parse_regex("a|b")->match("xbx"));
    CHECK_FALSE(parse_regex("a|b", /*whole=*/true)->match("xbx"));
    CHECK(parse_regex("a|b", /*whole=*/true)->match("b"));
  }

  TEST_CASE("regular expressions: what repeats too much is refused at once") {
    CHECK(refusal_of("(unclosed").find("'(unclosed' is not a regular expression: ") == 0);
    for (const char* pattern :
         {"((((a{255}){255}){255}){255})", "((a{100}){100}){100}", "(a|bc){200}{200}", "((x{1,255}){0,255}y){5}"})
      CHECK(refusal_of(pattern).find("repeats too much for a regular expression: more than 10000 parts") !=
            std::string::npos);
    CHECK(refusal_of(std::string(20000, 'a')).find("10000") != std::string::npos);
  }
}
