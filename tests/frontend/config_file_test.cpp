#include "frontend/driver/config_file.h"

#include "llvm/ADT/SmallString.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/raw_ostream.h"

#include <doctest/doctest.h>

namespace plimsoll {
namespace {

using Words = std::vector<std::string>;

// What a command "compile --config FILE" followed by `words` reads from a file of that text; or the error.
Words read(llvm::StringRef text, Words words = {}) {
  llvm::SmallString<128> path;
  int descriptor = 0;
  REQUIRE_FALSE(llvm::sys::fs::createTemporaryFile("plimsoll", "toml", descriptor, path));
  llvm::raw_fd_ostream(descriptor, /*shouldClose=*/true) << text;
  words.insert(words.begin(), {"compile", "--config", path.str().str()});
  Result<Words> more =
      words_of_config(words, {{"compile", {"--lr", "--freeze", "--budget", "--nesterov"}}, {"run", {"--steps"}}});
  llvm::sys::fs::remove(path);
  return more ? *more : Words{take_diag(more.takeError()).text().substr(path.size() + 2)};
}

TEST_SUITE("unit") {
  TEST_CASE("config file: options become words, the command line wins") {
    CHECK(read("lr = 3e-4\nbudget = \"24GiB\"\n") == Words{"--lr=3e-4", "--budget=24GiB"});
    CHECK(read("freeze = [\"a\", \"b\"]\n") == Words{"--freeze=a", "--freeze=b"});
    CHECK(read("lr = 1\nbudget = \"1GiB\"\n", {"--lr", "2"}) == Words{"--budget=1GiB"});
    CHECK(read("lr = 1\n", {"--lr=2"}) == Words{});
    CHECK(read("nesterov = true\n") == Words{"--nesterov=true"});
  }

  TEST_CASE("config file: sections are for their command") {
    CHECK(read("[compile]\nlr = 1\n[run]\nsteps = 5\n") == Words{"--lr=1"});
  }

  TEST_CASE("config file: the sections of a job are headings") {
    const CommandOptions known = {{"train", {"--lr", "--steps"}}};
    llvm::SmallString<128> path;
    int descriptor = 0;
    REQUIRE_FALSE(llvm::sys::fs::createTemporaryFile("plimsoll", "toml", descriptor, path));
    llvm::raw_fd_ostream(descriptor, /*shouldClose=*/true) << "steps = 5\n[optimizer]\nlr = 1\n";
    Result<Words> more = words_of_config({"train", path.str().str()}, known);
    llvm::sys::fs::remove(path);
    REQUIRE(bool(more));
    CHECK(*more == Words{"--steps=5", "--lr=1"});
    CHECK(words_of_config({"train", "--lr", "3"}, known)->empty());
  }

  TEST_CASE("config file: the section of transforms is read by who asks for transforms") {
    llvm::SmallString<128> path;
    int descriptor = 0;
    REQUIRE_FALSE(llvm::sys::fs::createTemporaryFile("plimsoll", "toml", descriptor, path));
    llvm::raw_fd_ostream(descriptor, /*shouldClose=*/true) << "steps = 5\n[transforms]\nflip = 0.5\n";
    const CommandOptions known = {{"train", {"--steps", "--transforms"}}};
    Result<Words> more = words_of_config({"train", path.str().str()}, known);
    llvm::sys::fs::remove(path);
    REQUIRE(bool(more));
    CHECK(*more == Words{"--steps=5", "--transforms=" + path.str().str()});
  }

  TEST_CASE("config file: names that no command reads are refused") {
    CHECK(read("[compile]\nlr = 1\n[run]\nstep = 5\n") == Words{"no option is called step; did you mean steps?"});
    CHECK(read("[compil]\nlr = 1\n") == Words{"no command is called compil; did you mean compile?"});
    CHECK(read("[compile.inner]\nlr = 1\n")[0].find("the section compile.inner belongs to no command") == 0);
    CHECK(read("config = \"other.toml\"\n")[0].find("config: ") == 0);
  }

  TEST_CASE("config file: an unknown name is refused with the nearest") {
    CHECK(read("bugdet = 1\n") == Words{"no option is called bugdet; did you mean budget?"});
    CHECK(words_of_config({"compile", "--lr", "1"}, {{"compile", {"--lr"}}})->empty());
  }
}

}  // namespace
}  // namespace plimsoll
