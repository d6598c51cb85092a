#!/usr/bin/env python3
"""Export the quickstart's model: the forward graph with its loss, and its initial weights inside.

Usage: export_model.py small_gpt.onnx

Needs torch and onnxscript. The batch stays symbolic, so `plimsoll compile --dim batch=N` decides it. The exporter's
own optimizer stays off: it would merge parameters that merely start out equal, such as all biases of one length.
"""
import os
import sys

import torch

import model as definition


def relative_paths(node):
    """Lets source lines in the file name modules, not folders of the machine that exported it."""
    roots = [os.path.dirname(os.path.abspath(p)) + os.sep for p in (__file__, os.path.dirname(torch.__file__))]
    for key, text in list(node.metadata_props.items()):
        for root in roots:
            text = text.replace(root, "")
        node.metadata_props[key] = text


def main():
    (target,) = sys.argv[1:]
    torch.manual_seed(0)
    model = definition.SmallGpt().train()
    tokens = torch.randint(0, definition.VOCABULARY, (8, definition.ROWS))
    labels = torch.randint(0, definition.VOCABULARY, (8, definition.ROWS))
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(model, (tokens, labels), dynamo=True, optimize=False, opset_version=20, verbose=False,
                                input_names=["tokens", "labels"], output_names=["loss"],
                                dynamic_shapes=({0: batch}, {0: batch}))
    for node in program.model.graph:
        relative_paths(node)
    program.save(target)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{target}: {parameters / 1e6:.2f} M parameters, {os.path.getsize(target) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
