#include "ir/support/strings.h"
#include "tests/support/divided_step.h"

// Rows of a batch that do not divide by the ranks along the data axis, where ops look at all rows at once.

namespace plimsoll {
namespace {

using namespace testing;

Tensor rows_from(const Tensor& whole, int64_t first, int64_t count) {
  Type type = whole.type();
  const int64_t row = type.elements() / type.shape[0];
  type.shape[0] = count;
  Tensor part(type);
  for (int64_t i = 0; i < type.elements(); ++i) part.view().set(i, whole.get(first * row + i));
  return part;
}

TEST_SUITE("unit") {
  TEST_CASE("ops over all rows read those of the batch, however these are shared") {
    // A softmax and a maximum over the batch, and scores of each row beside each other one (Oord et al. 2018).
    const auto model = [](int64_t batch) {
      const std::string n = std::to_string(batch), rows = "f64[" + n + ",4]", pairs = "f64[" + n + "," + n + "]";
      return parsed("graph @all_rows(%x: f64[" + n + ",6], %labels: i64[" + n +
                    "]) state(%w: f64[6,4] parameter trained, %v: f64[4,3] parameter trained) {\n"
                    "  %h = linear(%x, %w) : " +
                    rows + "\n  %p = softmax(%h) {axis=0} : " + rows +
                    "\n  %m = reduce_max(%h) {axes=[0], keep_dims=1} : f64[1,4]\n  %d = sub(%h, %m) : " + rows +
                    "\n  %s = matmul(%h, %d) {transpose_b=1} : " + pairs + "\n  %q = softmax(%s) {axis=1} : " + pairs +
                    "\n  %c = matmul(%q, %p) : " + rows + "\n  %y = linear(%c, %v) : f64[" + n +
                    ",3]\n  %a = reduce_mean(%q) {axes=[0,1], keep_dims=0} : f64[]\n"
                    "  %loss, %lse, %weight = cross_entropy(%y, %labels) {reduction=\"mean\"} : f64[], f64[" +
                    n + "], f64[]\n  %g = mul(%p, %p) : " + rows +
                    "\n  %e = reduce_sum(%g) {axes=[0,1], keep_dims=0} : f64[]\n  %t = add(%loss, %e) : f64[]\n"
                    "  %u = add(%t, %a) : f64[]\n  return loss=%u\n}\n");
    };
    for (const auto& [batch, ranks] : {std::pair(6, 2), {5, 2}, {5, 3}, {7, 4}, {9, 5}})
      for (int zero : {0, 3}) {
        CAPTURE(batch);
        CAPTURE(ranks);
        CAPTURE(zero);
        TrainingRequest request = request_of(ranks);
        request.zero = zero;
        check_divided(model(batch), request, 1e-9);
      }
  }

  TEST_CASE("local batch norms see the rows of the rank that count") {
    // A residual, a ReLU, running statistics, and rows behind the last one that have whatever the reader put there.
    const auto model = [](int64_t batch, bool last) {
      const std::string n = std::to_string(batch), x = last ? n + ",4,6" : n + ",6,4",
                        layout = last ? ", channels_last=1" : "";
      return parsed("graph @local(%x: f64[" + x + "], %labels: i64[" + n +
                    "]) state(%s: f64[6] parameter trained, %b: f64[6] parameter trained, %v: f64[24,24] parameter "
                    "trained, %w: f64[24,3] parameter trained, %mean: f64[6] buffer, %var: f64[6] buffer) {\n"
                    "  %flat = reshape(%x) {shape=[" +
                    n + ",24]} : f64[" + n + ",24]\n  %h = linear(%flat, %v) : f64[" + n +
                    ",24]\n  %image = reshape(%h) {shape=[" + x + "]} : f64[" + x +
                    "]\n  %u, %um, %uv = batch_norm(%image, %s, %b, %x) {activation=\"relu\", eps=0.001" + layout +
                    "} : f64[" + x + "], f64[6], f64[6]\n  %rows = reshape(%u) {shape=[" + n + ",24]} : f64[" + n +
                    ",24]\n  %z = linear(%rows, %w) : f64[" + n +
                    ",3]\n  %loss, %lse, %weight = cross_entropy(%z, %labels) {reduction=\"mean\"} : f64[], f64[" + n +
                    "], f64[]\n  %nm = running_update(%mean, %um) {momentum=0.9} : f64[6]\n"
                    "  %nv = running_update(%var, %uv) {count=" +
                    std::to_string(4 * batch) +
                    ", momentum=0.9} : f64[6]\n  return loss=%loss\n  update %mean = %nm\n  update %var = %nv\n}\n");
    };
    for (bool last : {false, true})
      for (const auto& [batch, ranks] : {std::pair(int64_t{5}, int64_t{2}), {5, 3}, {7, 4}, {6, 3}}) {
        CAPTURE(last);
        CAPTURE(batch);
        CAPTURE(ranks);
        TrainingRequest alone = request_of(1), local = request_of(ranks);
        local.batch_norm = Statistics::OfOwnRows;
        RandomValues values;
        values.add_for(model(batch, last));
        RankTrainer all(program_of(model(batch, last), local), local.mesh, values);
        const std::vector<double> losses = all.step(1);
        // Each rank by itself, its samples' gradients weighed by their share. Momentum 0 at the first step: the step is
        // the learning rate times the gradient.
        const int64_t share = (batch + ranks - 1) / ranks;
        double loss = 0;
        std::map<std::string, Tensor> moved;
        for (int64_t first = 0; first < batch; first += share) {
          const int64_t count = std::min(share, batch - first);
          const double weight = static_cast<double>(count) / static_cast<double>(batch);
          RandomValues own = values;
          for (const char* name : {"x", "labels"})
            own.tensors.at(name) = rows_from(values.tensors.at(name), first, count);
          RankTrainer one(program_of(model(count, last), alone), {}, own);
          loss += weight * one.step(1).front();
          for (const char* name : {"s", "b", "v", "w", "mean", "var"}) {
            const Tensor& now = one.states(0).at(name);
            auto [at, fresh] = moved.try_emplace(name, now.type());
            const bool is_buffer = starts_with(name, "m") || llvm::StringRef(name) == "var";
            const double part = is_buffer ? 1 / static_cast<double>(ranks) : weight;
            for (int64_t i = 0; i < now.type().elements(); ++i)
              at->second.view().set(i, at->second.get(i) + part * now.get(i));
          }
        }
        for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
          CHECK(losses[rank] == doctest::Approx(loss).epsilon(1e-12));
          for (const auto& [name, want] : moved) {
            CAPTURE(name);
            check_close(all.states(rank).at(name), want, 1e-10);
          }
        }
      }
  }
}

}  // namespace
}  // namespace plimsoll
