#pragma once

// What evaluation gives of a batch besides the loss. Metrics are computed by ops of the graph, so that the logits of a
// large vocabulary never leave the device.

#include "ir/plan/plan.h"

namespace plimsoll {

// `graph` is a clean forward graph in inference mode, its first output the loss. Adds the output "weight" where the
// loss is a mean over weighted samples, and what the metrics need:
// - "accuracy", "topK" such as "top5": predictions that are right, or whose class is among the K likeliest
// - "f1", "miou": the confusion matrix "confusion", [label, prediction]
// - "perplexity": nothing besides the loss
// All but the last count classes; logits and labels are those of the model's only cross-entropy, or are named, as in
// "accuracy:LOGITS:LABELS". Counts have the output "counted" beside them: how many labels are not to be ignored. Any
// other text names a scalar float output of the model. Errors say what there is.
Status add_metrics(Graph& graph, llvm::ArrayRef<std::string> metrics);

// "accuracy" of "accuracy:LOGITS:LABELS".
llvm::StringRef metric_name(llvm::StringRef metric);

// How the outputs of a batch with so many samples add up to those of a data set.
OutputUse use_of_output(llvm::StringRef output, const Type& type, int64_t batch);

}  // namespace plimsoll
