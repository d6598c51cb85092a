#!/usr/bin/env python3
"""Measures how compile time and memory grow with depth, by repeating the last transformer block of a model.

Usage: scale_layers.py PLIMSOLL MODEL.onnx [--factors 1,2,4,8,16,32] [--dim NAME=N] [--device cpu]

It finds the block by its module path (.layers.N. or .h.N.), and its input and output by the values that cross its border. Needs onnx.
"""
import argparse
import os
import pathlib
import re
import subprocess
import tempfile
import time

import onnx

BLOCK = re.compile(r"\.(?:layers|h)\.(\d+)(?:['.]|$)")


def block_of(node):
    scopes = next((entry.value for entry in node.metadata_props if entry.key == "pkg.torch.onnx.name_scopes"), "")
    found = BLOCK.search(scopes)
    return int(found.group(1)) if found else None


def deepen(model, extra):
    """Appends `extra` copies of the last block to the model."""
    graph = model.graph
    numbered = [(block_of(node), node) for node in graph.node]
    last = max(number for number, _ in numbered if number is not None)
    block = [node for number, node in numbered if number == last]
    before = {name for number, node in numbered if number == last - 1 for name in node.output}
    made = {name for node in block for name in node.output}
    own = {tensor.name: tensor for tensor in graph.initializer if BLOCK.search("." + tensor.name) and f".{last}." in tensor.name}
    entry, = {name for node in block for name in node.input} & before
    leaving = {name for number, node in numbered if number != last for name in node.input} & made
    leave, = [name for name in leaving if any(name in node.output for node in block[-8:])]
    at = max(i for i, node in enumerate(graph.node) if block_of(node) == last) + 1
    copies, stream = [], leave
    for k in range(1, extra + 1):
        rename = {name: f"{name}.copy{k}" for name in made} | {entry: stream}
        rename |= {name: name.replace(f".{last}.", f".{last + k}.") for name in own}
        for name, tensor in own.items():
            graph.initializer.add().CopyFrom(tensor)
            graph.initializer[-1].name = rename[name]
        for node in block:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = f"{node.name}.copy{k}"
            copy.input[:] = [rename.get(name, name) for name in node.input]
            copy.output[:] = [rename[name] for name in node.output]
            copies.append(copy)
        stream = rename[leave]
    tail = list(graph.node)[at:]
    for node in tail:
        node.input[:] = [stream if name == leave and extra else name for name in node.input]
    nodes = list(graph.node)[:at] + copies + tail
    del graph.node[:]
    graph.node.extend(nodes)
    for entry_ in graph.metadata_props:
        entry_.value = "" if "signature" in entry_.key else entry_.value
    return last + 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--factors", default="1,2,4,8,16,32")
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    print("| layers | ONNX nodes | seconds | MiB resident |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for factor in [int(word) for word in args.factors.split(",")]:
            model = onnx.load(args.model, load_external_data=False)
            layers = deepen(model, 0)
            if factor > 1:
                deepen(model, layers * (factor - 1))
            path, plan = pathlib.Path(folder) / "deep.onnx", pathlib.Path(folder) / "deep.plan"
            onnx.save(model, path)
            nodes = len(model.graph.node)
            del model
            command = [args.program, "compile", str(path), "-o", str(plan), "--device", args.device]
            command += [word for dim in args.dim for word in ("--dim", dim)]
            started = time.monotonic()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            errors = process.stderr.read()
            _, status, usage = os.wait4(process.pid, 0)
            if status:
                raise SystemExit(errors)
            print(f"| {layers * factor} | {nodes} | {time.monotonic() - started:.2f} | {usage.ru_maxrss // 1024} |", flush=True)


if __name__ == "__main__":
    main()
