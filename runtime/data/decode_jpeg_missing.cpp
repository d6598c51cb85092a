#include "runtime/data/image.h"

namespace plimsoll {

Status decode_jpeg(llvm::StringRef where, llvm::ArrayRef<uint8_t>, const DecodeRequest&, Image&) {
  return system_error(where +
                      ": this build reads no JPEG images; install libjpeg62-turbo-dev or libjpeg-turbo8-dev and "
                      "configure it again");
}

}  // namespace plimsoll
