#include "kernels/cuda/norm/group_parts.h"
#include "kernels/cuda/norm/group_slabs.h"
#include "tests/support/kernel_candidates.h"

// How group norms of few large groups divide their work: no device is needed.

using namespace plimsoll;
using namespace plimsoll::cuda;

TEST_SUITE("cuda/group-parts") {
  TEST_CASE("planes are whole rows of whole accesses, with as many blocks as fill the chip") {
    for (int64_t channels : {1, 2, 3, 6, 8, 30, 33, 64, 100, 320, 513, 2048})
      for (int64_t inner : {int64_t{1}, int64_t{8}, int64_t{35}, int64_t{4096}, int64_t{2097152}})
        for (int64_t batch : {1, 3, 64, 300})
          for (bool channels_last : {false, true})
            for (int64_t element_bytes : {2, 4})
              for (int64_t access_bytes : {group_part_bytes, group_part_grad_bytes}) {
                const GroupParts p({batch, channels, inner, channels_last}, element_bytes, access_bytes);
                CAPTURE(channels);
                CAPTURE(inner);
                CAPTURE(batch);
                CHECK((p.length == 1 || p.length * element_bytes == access_bytes));
                CHECK(p.columns() * p.length == p.positions * p.channels);
                CHECK(p.rows() * p.positions == inner);
                CHECK(p.planes * p.channels == batch * channels);
                CHECK(p.across * p.column_blocks >= p.columns());
                CHECK(p.across * (p.column_blocks - 1) < p.columns());
                CHECK(p.across * p.down() == 256);
                CHECK(p.parts >= 1);
                CHECK((p.parts == 1 || p.parts * 4 * p.down() < p.rows() + 4 * p.down()));
                CHECK(p.partials() == p.parts * (p.channels == 1 ? 1 : p.positions));
                CHECK(p.all_partials() == batch * channels * p.partials());
              }
  }

  TEST_CASE("channels that are no whole accesses share rows of several positions, if these divide the image") {
    const auto parts_of = [](int64_t inner, int64_t channels) {
      return GroupParts({2, channels, inner, true}, 2, vector_bytes);
    };
    CHECK(parts_of(64, 32).positions == 1);
    CHECK(parts_of(64, 30).positions == 4);
    CHECK(parts_of(64, 3).positions == 8);
    CHECK(parts_of(64, 3).is_whole());
    CHECK_FALSE(parts_of(63, 3).is_whole());
    CHECK(parts_of(63, 3).positions == 1);
    CHECK(GroupParts({2, 32, 64, false}, 2, vector_bytes).positions == 8);
    CHECK_FALSE(GroupParts({2, 32, 63, false}, 2, vector_bytes).is_whole());
  }

  TEST_CASE("two volumes of 32 channels are a wave of blocks") {
    const GroupParts volumes({2, 32, int64_t{128} * 128 * 128, true}, 2, vector_bytes);
    CHECK(volumes.planes * volumes.column_blocks * volumes.parts == one_wave);
  }

  TEST_CASE("the quicker kernel of a group norm comes first, predicted as an H200 measured it") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    struct Images {
      int64_t batch, positions, channels, groups, channels_last;
      const char *y_kernel, *dx_kernel;
      double y_us, dx_us;
    };
    for (const Images& s : {Images{2, 2097152, 32, 32, 1, "parts", "parts", 210.2, 321.9},
                            {2, 262144, 64, 64, 1, "parts", "parts", 64.8, 91.0},
                            {8, 262144, 32, 32, 1, "parts", "parts", 114.0, 166.9},
                            {1, 65536, 64, 64, 1, "parts", "parts", 19.5, 22.6},
                            {1, 262144, 128, 32, 1, "parts", "parts", 64.5, 91.8},
                            {4, 16384, 256, 32, 1, "parts", "parts", 39.5, 50.4},
                            {1, 4096, 256, 256, 1, "groups", "parts", 10.7, 14.0},
                            {2, 1030301, 33, 33, 1, "parts", "parts", 326.8, 346.5},
                            {16, 4096, 320, 32, 1, "groups", "parts", 46.5, 70.1},
                            {128, 1024, 128, 32, 1, "groups", "groups", 22.6, 36.6},
                            {2, 2097152, 32, 32, 0, "parts", "parts", 215.9, 328.7},
                            {64, 784, 256, 32, 0, "groups", "groups", 38.3, 87.6},
                            {8, 31999, 512, 512, 0, "groups", "groups", 189.1, 326.1}})
      for (bool gradient : {false, true}) {
        const Shape shape =
            s.channels_last ? Shape{s.batch, s.positions, s.channels} : Shape{s.batch, s.channels, s.positions};
        const Type x(DType::BF16, shape), of_groups(DType::F32, {s.batch, s.groups}),
            of_channels(DType::F32, {s.channels});
        Attrs attrs{{"channels_last", s.channels_last}, {"groups", s.groups}};
        if (gradient)
          attrs.set("has_scale", int64_t{1}), attrs.set("has_bias", int64_t{1});
        else
          attrs.set("eps", 1e-5);
        const std::vector<const Type*> types =
            gradient ? std::vector<const Type*>{&x, &x, &of_groups, &of_groups, &of_channels}
                     : std::vector<const Type*>{&x, &of_channels, &of_channels};
        const OpCall call(get_op(gradient ? "group_norm_grad" : "group_norm"), attrs, types);
        INFO(s.batch, " x ", s.positions, " x ", s.channels, gradient ? ", dx" : "");
        const KernelCandidate first = CudaCatalog(h200).candidates(call.op, call, llvm::cantFail(infer(call))).front();
        CHECK(first.name == (gradient ? s.dx_kernel : s.y_kernel));
        CHECK(first.predicted_us == doctest::Approx(gradient ? s.dx_us : s.y_us).epsilon(0.15));
      }
  }
}
