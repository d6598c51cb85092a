#pragma once

// Data sets of images: folders of JPEG and PNG files, and tar shards whose members are named as WebDataset does.

#include "runtime/data/dataset.h"
#include "runtime/data/image_transforms.h"

#include <memory>

namespace plimsoll {

// An image and its class.
struct ImageItem {
  std::string path;                // of the file, or of the tar shard
  int64_t offset = 0, bytes = -1;  // in the shard; -1: the whole file
  int64_t label = -1;              // -1: none
};

struct ImageList {
  std::vector<ImageItem> items;
  std::vector<std::string> classes;  // names in the order of their numbers; empty where labels are numbers
  std::string labels_from;           // what told the labels, for people
};

// Of a folder: labels.csv ("file,label" and a first line of titles) or labels.json (file to label) in it, else the
// folders that hold the images are the classes, in the order of their names. A label is a number, or a name, and names
// are numbered in their order. Of a .tar file, or a folder of such: members KEY.jpg (.jpeg, .png) with the class in
// KEY.cls as a number or in KEY.json as its "label" or "cls".
Result<ImageList> list_images(llvm::StringRef path);

// Whether the path is a .tar file or a folder with images or .tar files.
bool has_images(llvm::StringRef path);

// Feeds inputs of [rows, 3 or 1, height, width] or [rows, height, width, 3 or 1] with the image, floats with the
// transformed values and u8 with 255 times the untransformed ones; and integer inputs of [rows] with the class, or
// float ones of [rows, classes] with 1 at the class. Decoded images are kept in up to `cache_bytes` of memory. With a
// `decoder`, which excludes the cache, JPEGs of the common kind are decoded there.
Result<std::unique_ptr<Dataset>> open_images(llvm::StringRef path, llvm::ArrayRef<InputSpec> inputs,
                                             const ImageTransforms& transforms, int64_t cache_bytes = 0,
                                             std::shared_ptr<ImageDecoder> decoder = nullptr);

}  // namespace plimsoll
