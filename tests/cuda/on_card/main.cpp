// Tests that need a card. Where there is none they say so and count as skipped (exit 77).
#define DOCTEST_CONFIG_IMPLEMENT
#include "runtime/cuda/loader.h"

#include <doctest/doctest.h>

#include <cstdio>

int main(int argc, char** argv) {
  plimsoll::Result<std::unique_ptr<plimsoll::CudaBackend>> backend = plimsoll::load_cuda_backend();
  if (!backend) {
    std::printf("skipped: %s\n", plimsoll::take_diag(backend.takeError()).text().c_str());
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
