#include "kernels/cuda/common/short_rows.h"
#include "tests/support/kernel_candidates.h"

// Which rows some lanes of a warp take, and what that takes: no device is needed.

using namespace plimsoll;
using namespace plimsoll::testing;
using namespace plimsoll::cuda;

TEST_SUITE("cuda/short-rows") {
  TEST_CASE("lanes hold a whole row in accesses that divide it") {
    for (int64_t length = 0; length <= 600; ++length)
      for (int64_t element_bytes : {2, 4}) {
        const RowsByLanes rows(1000, length, element_bytes);
        CAPTURE(length);
        if (rows.lanes == 0) {
          CHECK((length == 0 || length > 64));
          continue;
        }
        CHECK(rows.access * rows.accesses == length);
        CHECK(rows.access * element_bytes <= vector_bytes);
        CHECK(rows.lanes * rows.held >= rows.accesses);
        CHECK((rows.lanes == 1 || rows.lanes / 2 * rows.held < rows.accesses));
        CHECK(rows.lanes <= 32);
        CHECK((rows.lanes & (rows.lanes - 1)) == 0);
      }
    CHECK(RowsByLanes(1, 256, 2).lanes == 32);
    CHECK(RowsByLanes(1, 264, 2).lanes == 0);
    CHECK(RowsByLanes(1, 4, 2).lanes == 1);
    CHECK(RowsByLanes(1, 65, 2).lanes == 0);
  }

  TEST_CASE("short rows are predicted as an H200 measured them") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    const auto check = [&](llvm::StringRef op, const Attrs& attrs, llvm::ArrayRef<Type> operands, double us) {
      llvm::SmallVector<const Type*, 4> types;
      for (const Type& type : operands) types.push_back(&type);
      const OpCall call(get_op(op), attrs, types);
      INFO(op.str(), " of ", to_string(operands[0]));
      const KernelCandidate first = CudaCatalog(h200).candidates(call.op, call, llvm::cantFail(infer(call))).front();
      CHECK(first.predicted_us == doctest::Approx(us).epsilon(0.2));
    };
    struct Rows {
      int64_t count, length;
      double y_us, dx_us;
    };
    for (const Rows& s : {Rows{4194304, 4, 19.6, 24.9},
                          {1048576, 3, 9.4, 10.0},
                          {401408, 21, 27.3, 27.2},
                          {1204224, 49, 174.9, 174.0},
                          {393216, 64, 28.1, 36.8},
                          {98304, 256, 29.8, 37.0},
                          {98304, 1024, 99.7, 147.2},
                          {100352, 196, 30.7, 33.4},
                          {200704, 784, 168.0, 223.1}}) {
      const Type x(DType::BF16, {s.count, s.length});
      check("softmax", {{"axis", int64_t{1}}}, {x}, s.y_us);
      check("softmax_grad", {{"axis", int64_t{1}}}, {x, x}, s.dx_us);
    }
    struct Columns {
      int64_t outer, length, inner;
      double y_us, dx_us;
    };
    for (const Columns& s : {Columns{196608, 9, 64, 134.3, 157.9},
                             {64, 9, 32768, 26.2, 29.7},
                             {4096, 16, 196, 19.2, 24.0},
                             {4096, 16, 197, 22.9, 29.0}}) {
      const Type x(DType::BF16, {s.outer, s.length, s.inner});
      check("softmax", {{"axis", int64_t{1}}}, {x}, s.y_us);
      check("softmax_grad", {{"axis", int64_t{1}}}, {x, x}, s.dx_us);
    }
    for (const Rows& s :
         {Rows{401408, 96, 36.0}, {4194304, 4, 18.8}, {401408, 21, 22.1}, {401408, 64, 19.3}, {200704, 192, 37.1}})
      check("reduce_sum", {{"axes", Ints{1}}}, {Type(DType::BF16, {s.count, s.length})}, s.y_us);
    struct Classes {
      int64_t rows, classes;
      double loss_us, grad_us, both_us;
    };
    for (const Classes& s : {Classes{4194304, 4, 63.7, 55.5, 110.8},
                             {1048576, 21, 130.9, 131.4, 193.5},
                             {262144, 64, 42.5, 40.9, 71.3},
                             {16384, 10, 6.1, 3.5, 10.3}}) {
      const Type logits(DType::BF16, {s.rows, s.classes}), labels(DType::I64, {s.rows}), lse(DType::F32, {s.rows}),
          scalar(DType::F32, {});
      check("cross_entropy", {}, {logits, labels}, s.loss_us);
      check("cross_entropy_grad", {}, {logits, labels, lse, scalar, scalar}, s.grad_us);
      check("cross_entropy_with_grad", {}, {logits, labels, scalar}, s.both_us);
    }
  }
}
