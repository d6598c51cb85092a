#pragma once

// Every pipeline of graph passes as text, in running order.

#include "ir/machine/stage_devices.h"
#include "passes/job.h"

namespace plimsoll {

// The clean stage runs the first once, the second until nothing changes, and the third once.
extern const llvm::StringLiteral clean_pipeline, fixpoint_pipeline, finish_pipeline;

// What a forward graph goes through before it is cleaned for evaluation.
extern const llvm::StringLiteral inference_pipeline;

// Image models on devices whose convolutions are faster with channels last.
extern const llvm::StringLiteral layout_pipeline;

// Error: Fault::Usage where a stage's device cannot run what the pipelines of the request's precision make.
Status check_devices(const TrainingRequest& request, const StageDevices& devices);

// What adds the adapters of a request to a clean forward graph.
std::string adapter_pipeline(const AdapterRequest& adapters);

// What stores frozen weights as a request asks; empty: as they are trained.
std::string quantize_pipeline(const TrainingRequest& request);

// Which parameters become states of the narrower type in which alone they are read.
enum class Narrowed : uint8_t { Frozen, Trained };

// What the forward graph goes through before it is differentiated, first that of the whole job, then that of one of
// several ranks; and each function of the training step after. Of stages whose ranks have parts of tensors, each
// micro-batch is divided by itself, once the stages have theirs; the last of the three tidies up behind that.
std::string forward_pipeline(const TrainingRequest& request, const KernelPreferences& preferences,
                             Narrowed narrowed = Narrowed::Frozen);
std::string partition_pipeline(const TrainingRequest& request, const KernelPreferences& preferences);
bool has_stages_with_parts(const TrainingRequest& request);
extern const llvm::StringLiteral parts_of_stages_pipeline;
// First, where a function takes the batch as a whole.
extern const llvm::StringLiteral whole_batch_pipeline;

// Where the moments of a batch norm behind a product of pixels are made.
enum class ImageMoments : uint8_t { InPasses, BesideProducts };
// Beside products where the catalog has a kernel that is predicted to be quicker than a convolution with a pass behind.
ImageMoments preferred_moments(const KernelCatalog& catalog);
// With `joins_dropouts` gradients of norms make the dropouts of what they give, which asks for more bytes at once.
std::string step_pipeline(const TrainingRequest& request, const KernelPreferences& preferences, ImageMoments moments,
                          bool joins_dropouts = false);

// Behind the sums and scatters by row, which take what lies between them and lookups while elementwise ops are apart.
extern const llvm::StringLiteral fuse_pipeline;

// The program's functions after that. A budget search runs the steps in between again and again: it offloads and
// rematerialises until what is placed fits.
extern const llvm::StringLiteral schedule_pipeline, place_pipeline;

}  // namespace plimsoll
