#pragma once

// Trains small graphs on random values in a poisoned arena.

#include "ir/device.h"
#include "ir/text.h"
#include "tests/support/one_batch.h"

#include "doctest/doctest.h"

namespace plimsoll::testing {

inline Graph parsed(llvm::StringRef text) {
  Result<Graph> graph = parse_graph(text);
  REQUIRE_MESSAGE(bool(graph), llvm::toString(graph.takeError()));
  return std::move(*graph);
}

inline DeviceDescription cpu_device() {
  Result<DeviceCatalog> catalog = DeviceCatalog::builtin();
  REQUIRE(bool(catalog));
  Result<DeviceDescription> device = catalog->find("cpu");
  REQUIRE(bool(device));
  return *device;
}

inline std::unique_ptr<Session> started(Plan plan, const RandomValues& values) {
  ExecutorOptions options;
  options.poison = true;
  Result<std::unique_ptr<Session>> session = Session::create(std::move(plan), options);
  REQUIRE_MESSAGE(bool(session), llvm::toString(session.takeError()));
  Status s = (*session)->initialise(
      [&](llvm::StringRef name, const TensorView& into) {
        const Tensor& tensor = values.tensors.at(name.str());
        for (int64_t i = 0; i < into.elements(); ++i) into.set(i, tensor.get(i));
        return Status::success();
      },
      1);
  REQUIRE_FALSE(bool(s));
  return std::move(*session);
}

}  // namespace plimsoll::testing
