#include "runtime/comm/group_ranks.h"
#include "runtime/comm/host_collectives.h"
#include "tests/support/ranks_on_threads.h"
#include "tests/support/sample_tensors.h"

#include <doctest/doctest.h>

// Collectives on host memory among ranks of one process.

namespace plimsoll {
namespace {

using namespace testing;

// What rank r has at place i.
double number(int64_t rank, int64_t i) { return static_cast<double>((rank + 1) * (i % 1000 + 1)); }

void check_collectives(std::vector<std::unique_ptr<Communicator>> ranks, DType dtype, int64_t elements) {
  const auto count = static_cast<int64_t>(ranks.size()), piece = (elements + count - 1) / count + 1;
  std::vector<int64_t> wrong(ranks.size(), 0);
  on_ranks(ranks, [&](Communicator& own) {
    HostCollectives collectives(own);
    Tensor in(Type(dtype, {elements})), sum(Type(dtype, {elements})), part(Type(dtype, {piece})), all(in.type());
    for (int64_t i = 0; i < elements; ++i) in.view().set(i, number(own.rank(), i));
    llvm::cantFail(collectives.reduce_all(sum.view(), in.view()));
    llvm::cantFail(collectives.reduce_pieces(part.view(), in.view()));
    llvm::cantFail(collectives.gather_pieces(all.view(), part.view()));
    Tensor want(in.type());
    for (int64_t i = 0; i < elements; ++i) {
      double total = 0;
      for (int64_t rank = 0; rank < count; ++rank) total += number(rank, i);
      want.view().set(i, total);
    }
    wrong[static_cast<size_t>(own.rank())] = !(sum == want) + !(all == want);
    llvm::cantFail(collectives.reduce_all(in.view(), in.view()));  // over its operand
    wrong[static_cast<size_t>(own.rank())] += !(in == want);
  });
  for (int64_t each : wrong) CHECK(each == 0);
}

// Each rank hands a long number row to the next one, and the groups of a mesh add up at the same time.
void check_transfers_and_groups(std::vector<std::unique_ptr<Communicator>> ranks, const Mesh& mesh) {
  std::vector<int64_t> wrong(ranks.size(), 0);
  on_ranks(ranks, [&](Communicator& own) {
    const int64_t rank = own.rank(), count = own.ranks(), before = (rank + count - 1) % count;
    std::vector<int64_t> sent(300000, rank), got(sent.size(), -1);
    const auto bytes = static_cast<int64_t>(sent.size() * sizeof(int64_t));
    int64_t& failures = wrong[static_cast<size_t>(rank)];
    llvm::cantFail(own.transfer({(rank + 1) % count, sent.data(), bytes}, {before, got.data(), bytes}));
    failures += got.front() != before || got.back() != before;
    if (rank == 0) llvm::cantFail(own.transfer({count - 1, sent.data(), bytes}, {}));
    if (rank == count - 1) llvm::cantFail(own.transfer({}, {0, got.data(), bytes}));
    if (rank == count - 1) failures += got.back() != 0;
    MeshCollectives groups(own, mesh);
    for (MeshAxis axis : {MeshAxis::Data, MeshAxis::Tensor, MeshAxis::Stage}) {
      if (mesh[axis] == 1) continue;
      Tensor sum = Tensor::scalar(static_cast<double>(rank), DType::F32);
      llvm::cantFail(groups.along(axis)->reduce_all(sum.view(), sum.view()));
      double want = 0;
      for (int64_t member : mesh.group_of(rank, axis)) want += static_cast<double>(member);
      failures += sum.get(0) != want || groups.along(axis)->rank() != mesh.coordinate(rank, axis);
    }
  });
  for (int64_t each : wrong) CHECK(each == 0);
}

TEST_SUITE("unit") {
  TEST_CASE("collectives on host memory add up in any dtype and any length") {
    for (int64_t count : {1, 2, 3, 4})
      for (int64_t elements : {1, 5, 1000, 700001}) {
        check_collectives(make_thread_ranks(count), DType::F32, elements);
        if (elements < 2000) check_collectives(make_thread_ranks(count), DType::F64, elements);
      }
    check_collectives(make_thread_ranks(3), DType::BF16, 7);
  }

  TEST_CASE("ranks that meet at an address do the same") { check_collectives(tcp_ranks(3, 0), DType::F32, 400001); }

  TEST_CASE("two ranks transfer by themselves, and groups of a mesh communicate at the same time") {
    const Mesh mesh = llvm::cantFail(parse_mesh("data=2,tensor=3,stage=2"));
    CHECK(mesh.group_of(7, MeshAxis::Stage) == std::vector<int64_t>{1, 7});
    CHECK(mesh.group_of(7, MeshAxis::Data) == std::vector<int64_t>{7, 10});
    CHECK(mesh.group_of(7, MeshAxis::Tensor) == std::vector<int64_t>{6, 7, 8});
    check_transfers_and_groups(make_thread_ranks(mesh.ranks()), mesh);
    check_transfers_and_groups(tcp_ranks(4, 1), llvm::cantFail(parse_mesh("data=2,stage=2")));
  }

  TEST_CASE("where ranks cannot be connected, one of those of a host tells why, and names the rank or the address") {
    // The texts of the ranks that are started, each on a thread.
    const auto failures = [](llvm::ArrayRef<int64_t> started, const std::string& host, int port) {
      std::vector<std::string> texts(started.size());
      std::vector<std::thread> threads;
      for (size_t i = 0; i < started.size(); ++i)
        threads.emplace_back([&, i] {
          Result<std::unique_ptr<Communicator>> connected = connect_by_tcp(started[i], 4, host, port, 2);
          texts[i] = connected ? "connected" : take_diag(connected.takeError()).text();
        });
      for (std::thread& thread : threads) thread.join();
      return texts;
    };
    const auto check = [&](llvm::ArrayRef<int64_t> started, const std::string& host, int port,
                           std::vector<std::string> want) {
      want.resize(started.size());  // the others have no words
      const std::vector<std::string> said = failures(started, host, port);
      for (size_t i = 0; i < started.size(); ++i) CHECK(said[i] == want[i]);
    };
    check({0, 1}, "127.0.0.1", 23941,
          {"rank 0: ranks 2 and 3 did not come within 2 s; they look for rank 0 at 127.0.0.1:23941"});
    check({1, 3}, "127.0.0.1", 23942, {"rank 1: rank 0 did not answer at 127.0.0.1:23942 within 2 s"});
    check({0, 1, 2, 3}, "no-such-host.invalid", 23943,
          {"rank 0: the address of rank 0, no-such-host.invalid, is not known"});
    check({3}, "no-such-host.invalid", 23944, {"rank 3: the address of rank 0, no-such-host.invalid, is not known"});
  }

  TEST_CASE("a rank that goes away makes the others fail") {
    std::vector<std::unique_ptr<Communicator>> ranks = make_thread_ranks(3);
    std::vector<std::string> failures(3);
    on_ranks(ranks, [&](Communicator& own) {
      if (own.rank() == 1) return own.abort();
      int64_t mine = own.rank(), all[3];
      if (Status s = own.gather_all(&mine, all, sizeof mine))
        failures[static_cast<size_t>(own.rank())] = take_diag(std::move(s)).text();
    });
    CHECK(failures[0] == "rank 0: another rank has gone");
    CHECK(failures[2] == "rank 2: another rank has gone");
  }
}

}  // namespace
}  // namespace plimsoll
