#include "kernels/cuda/norm/resident_channels.h"
#include "tests/support/kernel_candidates.h"

// How batch norms in one launch divide their work: no device is needed.

using namespace plimsoll;
using namespace plimsoll::cuda;

TEST_SUITE("cuda/resident-channels") {
  TEST_CASE("rows are whole repeats of the channels, and slabs and parts are blocks that are all there at once") {
    for (int64_t channels = 1; channels <= 2200; channels += channels < 300 ? 1 : 37)
      for (int64_t pixels : {int64_t{1}, int64_t{8}, int64_t{140}, int64_t{200704}})
        for (int64_t element_bytes : {int64_t{2}, int64_t{4}}) {
          const ChannelShape shape{1, channels, pixels, true};
          const ResidentChannels c(shape, element_bytes);
          CAPTURE(channels);
          CAPTURE(pixels);
          if (!c.is_taken()) continue;
          const int64_t elements = vector_bytes / element_bytes;
          CHECK(c.rows * c.row_words * elements == pixels * channels);
          CHECK(c.slabs * c.slab_words == c.row_words);
          CHECK(c.slabs * c.channels == channels);
          CHECK(c.slab_words * elements % c.channels == 0);
          CHECK(c.channels <= resident_threads);
          CHECK(c.parts >= 1);
          CHECK(c.parts <= c.rows);
          CHECK(c.slabs * c.parts <= max_resident_blocks);
          CHECK(resident_workspace(shape, element_bytes) == 2 * c.parts * channels);
        }
  }

  TEST_CASE("any channels are taken whose repeats divide the pixels and are no more than 64 words") {
    const auto takes = [](int64_t pixels, int64_t channels) {
      return ResidentChannels(ChannelShape{2, channels, pixels / 2, true}, 2).is_taken();
    };
    for (int64_t channels : {2, 8, 18, 36, 64, 72, 100, 144, 512, 2048}) CHECK(takes(400, channels));
    CHECK(takes(16, 63));
    CHECK_FALSE(takes(18, 63));     // repeats are of eight pixels
    CHECK_FALSE(takes(400, 127));   // 127 words
    CHECK_FALSE(takes(400, 1072));  // slabs would have 67 words or two
    CHECK_FALSE(ResidentChannels(ChannelShape{2, 64, 200, false}, 2).is_taken());
  }

  TEST_CASE("on Hopper most batch norms take one launch, predicted as an H200 measured them") {
    const DeviceDescription h200 = llvm::cantFail(llvm::cantFail(DeviceCatalog::builtin()).find("h200"));
    struct Images {
      int64_t batch, size, channels;
      double y_us, dx_us;  // with a ReLU
    };
    for (const Images& s : {Images{64, 56, 18, 13.0, 14.2},
                            {64, 28, 36, 12.6, 12.4},
                            {64, 14, 72, 11.7, 11.9},
                            {64, 7, 144, 8.5, 9.3},
                            {64, 56, 64, 24.8, 36.9},
                            {256, 14, 256, 22.7, 34.4},
                            {256, 7, 512, 14.8, 18.9},
                            {256, 28, 128, 41.5, 66.5},
                            {64, 112, 64, 83.6, 128.4},
                            {128, 14, 672, 29.0, 47.2}})
      for (bool gradient : {false, true}) {
        const Type x(DType::BF16, {s.batch, s.size, s.size, s.channels}), of_channels(DType::F32, {s.channels});
        Attrs attrs{{"channels_last", int64_t{1}}, {"eps", 1e-5}};
        if (!gradient) attrs.set("activation", std::string("relu"));
        const std::vector<const Type*> types =
            gradient ? std::vector<const Type*>{&x, &x, &of_channels, &of_channels, &of_channels, &of_channels}
                     : std::vector<const Type*>{&x, &of_channels, &of_channels};
        const OpCall call(get_op(gradient ? "batch_norm_grad" : "batch_norm"), attrs, types);
        INFO(s.size, " pixels, ", s.channels, " channels", gradient ? ", dx" : "");
        const KernelCandidate first = CudaCatalog(h200).candidates(call.op, call, llvm::cantFail(infer(call))).front();
        CHECK(first.name == "resident");
        CHECK(first.predicted_us == doctest::Approx(gradient ? s.dx_us : s.y_us).epsilon(0.35));
      }
  }
}
