// Runs every .ir file below tests/. With PLIMSOLL_BLESS=1 in the environment the check: lines of failing
// files are rewritten from what the passes made; read the difference before keeping it.

#include "tests/support/file_test.h"

#include "llvm/Support/raw_ostream.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace plimsoll {
namespace {

std::vector<std::filesystem::path> test_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(PLIMSOLL_TEST_DATA))
    if (entry.path().extension() == ".ir") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

TEST_SUITE_BEGIN("file");

TEST_CASE("file tests") {
  const char* bless = std::getenv("PLIMSOLL_BLESS");
  std::vector<std::filesystem::path> files = test_files();
  REQUIRE(!files.empty());
  for (const std::filesystem::path& path : files) {
    std::string name = std::filesystem::relative(path, PLIMSOLL_TEST_DATA).string(), text = read(path);
    FileTestReport report = run_file_test(text);
    for (const std::string& failure : report.failures) FAIL_CHECK(name << ":" << failure);
    if (bless && *bless == '1' && report.blessed != text) std::ofstream(path, std::ios::binary) << report.blessed;
  }
}

TEST_SUITE_END();

}  // namespace plimsoll
