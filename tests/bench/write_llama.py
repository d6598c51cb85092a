#!/usr/bin/env python3
"""Writes a Llama-shaped language model with its loss as ONNX, without weights: `run --init` draws them. Needs Python's standard library alone.

Usage: write_llama.py OUT.onnx [--layers 16] [--hidden 2048] [--gated 8192] [--heads 32] [--kv-heads 8] [--vocabulary 32000] [--batch 8] [--sequence 1024]

The defaults are the layers of Llama 3.2 1B with a vocabulary of Llama 2. Nodes carry module paths as PyTorch's exporter writes them.
"""
import argparse
import math
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
from onnx_writer import FLOAT, INT64, field, model, node, tensor, value  # noqa: E402


def in_module(made, path):
    """The node with the module path that the exporter leaves beside it."""
    return made + field(9, field(1, "pkg.torch.onnx.name_scopes") + field(2, str(["", *path])))


class Writer:
    def __init__(self, args):
        self.args, self.nodes, self.weights = args, [], []

    def weight(self, name, *shape):
        self.weights.append(tensor(name, shape, external={"location": "weights.bin"}))
        return name

    def add(self, path, op, inputs, output, **attributes):
        self.nodes.append(in_module(node(op, inputs, output, name=f"/{path}/{op}", **attributes), [path]))
        return output.split()[0]

    def linear(self, path, x, inputs, outputs):
        turned = self.add(path, "Transpose", self.weight(f"{path}.weight", outputs, inputs), f"{path}.turned", perm=[1, 0])
        return self.add(path, "MatMul", f"{x} {turned}", f"{path}.out")

    def norm(self, path, x):
        return self.add(path, "RMSNormalization", f"{x} {self.weight(f'{path}.weight', self.args.hidden)}", f"{path}.out")

    def angles(self):
        half = self.args.hidden // self.args.heads // 2
        for name, function in (("cos", math.cos), ("sin", math.sin)):
            rows = b"".join(struct.pack(f"<{half}f", *(function(at * 10000 ** (-i / half)) for i in range(half)))
                            for at in range(self.args.sequence))
            table = tensor("", [1, self.args.sequence, half], raw=rows)
            # A constant, since a float initializer would be a parameter.
            self.nodes.append(field(2, name) + field(4, "Constant") + field(5, field(1, "value") + field(5, table) + field(20, 4)))

    def layer(self, path, x):
        a = self.args
        head = a.hidden // a.heads
        n = self.norm(f"{path}.input_layernorm", x)
        attention = f"{path}.self_attn"
        sides = {"q": a.heads, "k": a.kv_heads, "v": a.kv_heads}
        q, k, v = (self.linear(f"{attention}.{side}_proj", n, a.hidden, heads * head) for side, heads in sides.items())
        q = self.add(attention, "RotaryEmbedding", f"{q} cos sin", f"{q}.rotated", num_heads=a.heads)
        k = self.add(attention, "RotaryEmbedding", f"{k} cos sin", f"{k}.rotated", num_heads=a.kv_heads)
        o = self.add(attention, "Attention", f"{q} {k} {v}", f"{attention}.out", q_num_heads=a.heads, kv_num_heads=a.kv_heads, is_causal=1)
        x = self.add(path, "Add", f"{x} {self.linear(f'{attention}.o_proj', o, a.hidden, a.hidden)}", f"{path}.middle")
        n = self.norm(f"{path}.post_attention_layernorm", x)
        gate, up = (self.linear(f"{path}.mlp.{side}_proj", n, a.hidden, a.gated) for side in ("gate", "up"))
        sigmoid = self.add(f"{path}.mlp", "Sigmoid", gate, f"{gate}.sigmoid")
        silu = self.add(f"{path}.mlp", "Mul", f"{gate} {sigmoid}", f"{gate}.silu")
        gated = self.add(f"{path}.mlp", "Mul", f"{silu} {up}", f"{path}.mlp.gated")
        return self.add(path, "Add", f"{x} {self.linear(f'{path}.mlp.down_proj', gated, a.gated, a.hidden)}", f"{path}.out")

    def write(self):
        a = self.args
        self.angles()
        x = self.add("model.embed_tokens", "Gather", f"{self.weight('model.embed_tokens.weight', a.vocabulary, a.hidden)} input_ids", "embedded")
        for i in range(a.layers):
            x = self.layer(f"model.layers.{i}", x)
        logits = self.linear("lm_head", self.norm("model.norm", x), a.hidden, a.vocabulary)
        for name, dims in (("rows", [-1, a.vocabulary]), ("flat", [-1])):
            self.weights.append(tensor(name, [len(dims)], raw=struct.pack(f"<{len(dims)}q", *dims), dtype=INT64))
        self.add("loss", "Reshape", f"{logits} rows", "scores")
        self.add("loss", "Reshape", "labels flat", "classes")
        self.add("loss", "SoftmaxCrossEntropyLoss", "scores classes", "loss")
        tokens = [value(name, INT64, a.batch, a.sequence) for name in ("input_ids", "labels")]
        return model(self.nodes, tokens, [value("loss", FLOAT)], self.weights, opset=23)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    for name, size in {"layers": 16, "hidden": 2048, "gated": 8192, "heads": 32, "kv-heads": 8, "vocabulary": 32000, "batch": 8, "sequence": 1024}.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    args = parser.parse_args()
    args.out.write_bytes(Writer(args).write())


if __name__ == "__main__":
    main()
