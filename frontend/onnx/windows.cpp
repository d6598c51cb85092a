#include "frontend/onnx/windows.h"

namespace plimsoll {

Ints split_pads(llvm::ArrayRef<int64_t> total, bool odd_at_begin) {
  Ints pads(2 * total.size(), 0);
  for (size_t d = 0; d < total.size(); ++d) {
    int64_t small = total[d] / 2, large = total[d] - small;
    pads[d] = odd_at_begin ? large : small;
    pads[d + total.size()] = odd_at_begin ? small : large;
  }
  return pads;
}

void check_window_number(NodeContext& n, int64_t number) {
  constexpr int64_t max_number = int64_t{1} << 30;
  if (number > max_number || number < -max_number)
    n.fail("a window with the number " + llvm::Twine(number) + " is beyond what any tensor has");
}

NodeWindow read_window(NodeContext& n, llvm::ArrayRef<int64_t> spatial, llvm::ArrayRef<int64_t> kernel, WindowFor use) {
  auto list = [&](llvm::StringRef name, size_t size, int64_t otherwise) {
    Ints values = n.attr_ints(name);
    if (values.empty()) values.assign(size, otherwise);
    if (values.size() != size)
      n.fail("attribute " + name + " has " + llvm::Twine(values.size()) + " entries for " +
             llvm::Twine(spatial.size()) + " spatial dimensions");
    return values;
  };
  size_t rank = spatial.size();
  NodeWindow window{Ints(kernel.begin(), kernel.end()), list("strides", rank, 1), list("dilations", rank, 1),
                    list("pads", 2 * rank, 0)};
  if (kernel.size() != rank)
    n.fail("a kernel of " + llvm::Twine(kernel.size()) + " dimensions over " + llvm::Twine(rank) +
           " spatial dimensions");
  for (int64_t size : llvm::concat<int64_t>(window.kernel, window.strides, window.dilations))
    if (size < 1) n.fail("a kernel size, stride or dilation is " + llvm::Twine(size));
  for (int64_t size : llvm::concat<int64_t>(window.kernel, window.strides, window.dilations, window.pads))
    check_window_number(n, size);
  std::string auto_pad = n.attr_string("auto_pad", "NOTSET");
  if (n.failed() || auto_pad == "NOTSET" || auto_pad.empty()) return window;
  window.pads.assign(2 * rank, 0);
  if (auto_pad == "VALID" || use == WindowFor::Transpose) return window;
  if (auto_pad != "SAME_UPPER" && auto_pad != "SAME_LOWER") n.fail("auto_pad is '" + auto_pad + "'");
  Ints total;
  for (size_t d = 0; d < rank; ++d) {
    int64_t outputs = (spatial[d] + window.strides[d] - 1) / window.strides[d];
    total.push_back(std::max<int64_t>(0, (outputs - 1) * window.strides[d] + window.span(d) - spatial[d]));
  }
  window.pads = split_pads(total, auto_pad == "SAME_LOWER");
  return window;
}

}  // namespace plimsoll
