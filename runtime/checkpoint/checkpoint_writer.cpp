#include "runtime/checkpoint/checkpoint_writer.h"

#include <cassert>
#include <csignal>
#include <utility>

namespace plimsoll {
namespace {

// Signals that end a run are for the thread that trains; this one would be stopped amid a file.
void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) llvm::consumeError(finish());
}

void CheckpointWriter::start(std::function<Status()> work) {
  assert(!thread_.joinable() && "one checkpoint at a time");
  done_ = false;
  thread_ = std::thread([this, work = std::move(work)] {
    block_signals();
    result_.emplace(work());
    done_ = true;
  });
}

Status CheckpointWriter::finish() {
  thread_.join();
  Status result = std::move(*result_);
  result_.reset();
  return result;
}

}  // namespace plimsoll
