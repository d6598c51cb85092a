#!/usr/bin/env python3
"""Writes a Llama of another shape from an export of one, without weights: planning needs none, and `run --init` draws them.

Usage: reshape_llama.py MODEL.onnx OUT.onnx [--layers 40] [--hidden 4096=5120] [--gated 11008=13824]

Layers are repeated as scale_layers.py does; sizes are replaced in parameters and in the constants of reshapes. Heads keep their size, so their number
grows with the hidden size; the export must not spell it out. Needs onnx.
"""
import argparse

import onnx

from scale_layers import deepen


def pair(text):
    old, new = text.split("=")
    return int(old), int(new)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--hidden", type=pair, help="OLD=NEW")
    parser.add_argument("--gated", type=pair, help="OLD=NEW")
    args = parser.parse_args()
    model = onnx.load(args.model, load_external_data=False)
    layers = deepen(model, 0)
    if args.layers and args.layers > layers:
        deepen(model, args.layers - layers)
    sizes = dict(filter(None, (args.hidden, args.gated)))
    for tensor in model.graph.initializer:
        tensor.dims[:] = [sizes.get(dim, dim) for dim in tensor.dims]
        places = [entry for entry in tensor.external_data if entry.key == "location"]  # offsets and lengths are those of the old shape
        del tensor.external_data[:]
        tensor.external_data.extend(places)
    for node in model.graph.node:
        for attribute in node.attribute:
            attribute.ints[:] = [sizes.get(number, number) for number in attribute.ints]
    del model.graph.value_info[:]
    onnx.save(model, args.out)


if __name__ == "__main__":
    main()
