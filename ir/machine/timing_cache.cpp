#include "ir/machine/timing_cache.h"

#include "ir/support/json_text.h"
#include "ir/support/output_file.h"
#include "ir/support/read_file.h"
#include "ir/text.h"

#include "llvm/Support/FileSystem.h"
#include "llvm/Support/JSON.h"

#include <algorithm>

namespace plimsoll {
namespace {

std::string key_of(llvm::StringRef device, llvm::StringRef op, llvm::StringRef kernel, const OpCall& call) {
  std::string key = (device + " " + op + "/" + kernel + " (").str();
  for (size_t i = 0; i < call.count(); ++i) {
    if (i > 0) key += ", ";
    key += call.has(i) ? to_string(call.operand(i)) : "-";
  }
  return key + ") " + to_text(call.attrs);
}

class TimedCatalog : public KernelCatalog {
 public:
  TimedCatalog(std::unique_ptr<KernelCatalog> base, std::string device, std::shared_ptr<const TimingCache> times)
      : base_(std::move(base)), device_(std::move(device)), times_(std::move(times)) {}

  std::vector<KernelCandidate> candidates(const OpDef& op, const OpCall& call,
                                          llvm::ArrayRef<Type> results) const override {
    std::vector<KernelCandidate> candidates = base_->candidates(op, call, results);
    // The reference is the last resort and is never worth measuring.
    const size_t count = candidates.size() - (candidates.size() > 1 && candidates.back().name == "reference" ? 1 : 0);
    std::vector<size_t> places;
    std::vector<KernelCandidate> measured;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const std::optional<double> time = times_->find(device_, op.name, candidates[i].name, call);
      if (!time) continue;
      candidates[i].predicted_us = *time;
      if (i >= count) continue;
      places.push_back(i);
      measured.push_back(candidates[i]);
    }
    std::stable_sort(measured.begin(), measured.end(), [](const KernelCandidate& a, const KernelCandidate& b) {
      return a.predicted_us < b.predicted_us;
    });
    for (size_t i = 0; i < places.size(); ++i) candidates[places[i]] = std::move(measured[i]);
    return candidates;
  }

  KernelPreferences preferences() const override { return base_->preferences(); }

 private:
  std::unique_ptr<KernelCatalog> base_;
  std::string device_;
  std::shared_ptr<const TimingCache> times_;
};

}  // namespace

Result<TimingCache> TimingCache::load(llvm::StringRef path) {
  Result<std::unique_ptr<llvm::MemoryBuffer>> file = read_file(path);
  if (!file) return file.takeError();
  TimingCache cache;
  llvm::SmallVector<llvm::StringRef, 0> lines;
  (*file)->getBuffer().split(lines, '\n', -1, /*KeepEmpty=*/false);
  for (size_t i = 0; i < lines.size(); ++i) {
    Result<llvm::json::Value> parsed = parse_json(lines[i]);
    const llvm::json::Object* object = parsed ? parsed->getAsObject() : nullptr;
    const std::optional<llvm::StringRef> call = text_field(object, "call");
    const std::optional<double> time = number_field(object, "us");
    if (!parsed) llvm::consumeError(parsed.takeError());
    if (!call || !time || !(*time > 0))
      return usage_error(path + ":" + llvm::Twine(i + 1) + ": expected {\"call\": TEXT, \"us\": a number above 0}");
    cache.times_[*call] = *time;
  }
  return cache;
}

Result<TimingCache> TimingCache::load_if_there(llvm::StringRef path) {
  return llvm::sys::fs::exists(path) ? load(path) : TimingCache();
}

Status TimingCache::save(llvm::StringRef path) const {
  std::vector<llvm::StringRef> keys;
  for (const auto& entry : times_) keys.push_back(entry.first());
  std::sort(keys.begin(), keys.end());
  return write_output_file(path, [&](llvm::raw_ostream& out) {
    for (llvm::StringRef key : keys) {
      llvm::json::OStream line(out);
      line.object([&] {
        line.attribute("call", key);
        line.attribute("us", times_.lookup(key));
      });
      out << "\n";
    }
    return Status::success();
  });
}

void TimingCache::add(llvm::StringRef device, llvm::StringRef op, llvm::StringRef kernel, const OpCall& call,
                      double microseconds) {
  times_[key_of(device, op, kernel, call)] = microseconds;
}

std::optional<double> TimingCache::find(llvm::StringRef device, llvm::StringRef op, llvm::StringRef kernel,
                                        const OpCall& call) const {
  auto found = times_.find(key_of(device, op, kernel, call));
  if (found == times_.end()) return std::nullopt;
  return found->second;
}

std::unique_ptr<KernelCatalog> timed_catalog(std::unique_ptr<KernelCatalog> base, std::string device,
                                             std::shared_ptr<const TimingCache> times) {
  return std::make_unique<TimedCatalog>(std::move(base), std::move(device), std::move(times));
}

}  // namespace plimsoll
