#!/usr/bin/env python3
"""Write the golden case of a model whose file has its weights in 4 and 8 bits: ONNX Runtime's loss, and what PEFT trains
beside the numbers that the codes stand for.

Usage: make_quantised.py OUT_DIR

Needs torch, onnx, onnxruntime, safetensors and peft. Everything runs on the CPU in float32. Also packs the case into
quantised.tar.xz, with the files that make_adapters.py describes, model.onnx and batch.safetensors.
"""
import json
import pathlib
import sys
import tarfile

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from peft import LoraConfig, get_peft_model
from safetensors.numpy import save_file

from make_adapters import train_adapter

ROWS, CLASSES = 6, 7
SIZES = [40, 48, 32, 56, 32, 48, 40, 24, 16]  # of what the layers fc1 to fc8 read and make
SETTINGS = dict(r=3, lora_alpha=6, target_modules=r"fc\d|emb")
OPTIONS = ["--lora-rank", "3", "--lora-alpha", "6", "--lora-targets", r"fc[0-9]", "--lora-targets", "emb"]
random = np.random.default_rng(5)


def codes(low, high, *shape):
    return random.integers(low, high + 1, shape)


def scales(*shape):
    return (random.random(shape) * 0.5 + 0.5).astype(np.float32) / 24


def tensor(name, dtype, values, dims=None):
    return helper.make_tensor(name, dtype, dims or values.shape, values.flatten().tolist())


def packed(values):
    """Two 4-bit codes of the last axis in a byte, the first in its low half."""
    return (values[..., 0::2] | values[..., 1::2] << 4).astype(np.uint8)


def nbits(name, x, y, inputs, outputs, bits, block, zeros, bias):
    """MatMulNBits. Rows of codes are filled up to whole blocks."""
    blocks = -(-inputs // block)
    pack = packed if bits == 4 else np.uint8
    weights = [tensor(f"{name}.weight_Q{bits}", TensorProto.UINT8, pack(codes(0, 2**bits - 1, outputs, blocks, block))),
               tensor(f"{name}.weight_scales", TensorProto.FLOAT, scales(outputs, blocks) * (1 if bits == 4 else 1 / 16))]
    names = [x, weights[0].name, weights[1].name]
    if zeros:
        low, high = 2**bits // 2 - 2, 2**bits // 2 + 2
        points = codes(low, high, outputs, blocks)
        points = packed(np.pad(points, ((0, 0), (0, blocks % 2)))) if bits == 4 else points
        weights.append(tensor(f"{name}.weight_zp", TensorProto.UINT8, points))
        names.append(weights[-1].name)
    if bias:
        weights.append(tensor(f"{name}.bias", TensorProto.FLOAT, scales(outputs)))
        names += [""] * (5 - len(names)) + [weights[-1].name]
    return weights, [helper.make_node("MatMulNBits", names, [y], f"/{name}/MatMul_Q4", domain="com.microsoft", K=inputs, N=outputs,
                                      bits=bits, block_size=block)]


def bnb4(name, x, y, inputs, outputs, kind, block):
    count = inputs * outputs
    weights = [tensor(f"{name}.weight_Bnb4", TensorProto.UINT8, codes(0, 255, (count + 1) // 2)),
               tensor(f"{name}.weight_absmax", TensorProto.FLOAT, scales(-(-count // block)) * 6)]
    return weights, [helper.make_node("MatMulBnb4", [x, weights[0].name, weights[1].name], [y], f"/{name}/MatMul_Bnb4",
                                      domain="com.microsoft", K=inputs, N=outputs, block_size=block, quant_type=kind)]


def qdq(name, dtype, shape, scale_shape, zeros=True, **attributes):
    """DequantizeLinear of NAME.weight to NAME.floats."""
    low, high = {TensorProto.INT4: (-8, 7), TensorProto.UINT4: (0, 15), TensorProto.INT8: (-128, 127), TensorProto.UINT8: (0, 255)}[dtype]
    middle = (low + high + 1) // 2
    weights = [tensor(f"{name}.weight_quantized", dtype, codes(low, high, *shape)),
               tensor(f"{name}.weight_scale", TensorProto.FLOAT, scales(*scale_shape) * (16 / (high - low + 1)))]
    if zeros:
        weights.append(tensor(f"{name}.weight_zero", dtype, codes(middle - 1, middle + 1, *scale_shape), scale_shape))
    return weights, [helper.make_node("DequantizeLinear", [w.name for w in weights], [f"{name}.floats"], f"/{name}/DequantizeLinear",
                                      **attributes)]


def multiplied(made, name, x, y, turned=False, bias=None):
    weights, nodes = made
    floats = f"{name}.floats"
    if bias is not None:
        weights.append(tensor(f"{name}.bias", TensorProto.FLOAT, scales(bias)))
        return weights, nodes + [helper.make_node("Gemm", [x, floats, f"{name}.bias"], [y], f"/{name}/Gemm", transB=1)]
    if turned:
        nodes.append(helper.make_node("Transpose", [floats], [f"{name}.turned"], f"/{name}/Transpose", perm=[1, 0]))
    return weights, nodes + [helper.make_node("MatMul", [x, f"{name}.turned" if turned else floats], [y], f"/{name}/MatMul")]


def make_model():
    n, x = SIZES, [f"h{i}" for i in range(9)]
    y = [f"y{i}" for i in range(9)]
    layers = [
        qdq("emb", TensorProto.INT8, [9, n[0]], [9], axis=0),
        nbits("fc1", "h0", "y1", n[0], n[1], 4, 16, True, True),
        nbits("fc2", "h1", "y2", n[1], n[2], 8, 32, False, False),
        bnb4("fc3", "h2", "y3", n[2], n[3], 1, 64),
        bnb4("fc4", "h3", "y4", n[3], n[4], 0, 16),
        multiplied(qdq("fc5", TensorProto.INT4, [n[4], n[5]], [n[4] // 16, n[5]], zeros=False, axis=0, block_size=16), "fc5", "h4", "y5"),
        multiplied(qdq("fc6", TensorProto.UINT4, [n[6], n[5]], [n[6], 3], axis=1, block_size=16), "fc6", "h5", "y6", turned=True),
        multiplied(qdq("fc7", TensorProto.INT8, [n[6], n[7]], [n[7]], axis=1), "fc7", "h6", "y7"),
        multiplied(qdq("fc8", TensorProto.UINT8, [n[8], n[7]], []), "fc8", "h7", "y8", bias=n[8]),
    ]
    weights = [tensor for tensors, _ in layers for tensor in tensors]
    nodes = layers[0][1] + [helper.make_node("Gather", ["emb.floats", "ids"], ["rows"], "/emb/Gather"),
                            helper.make_node("Add", ["x", "rows"], [x[0]], "/Add")]
    for i, (_, own) in enumerate(layers[1:], 1):
        nodes += own + [helper.make_node("Relu" if i % 2 else "Tanh", [y[i]], [x[i]], f"/act{i}")]
    weights.append(tensor("head.weight", TensorProto.FLOAT, scales(n[8], CLASSES) * 6))
    nodes += [helper.make_node("MatMul", [x[8], "head.weight"], ["logits"], "/head/MatMul"),
              helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"], "/loss")]
    graph = helper.make_graph(nodes, "quantised", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, n[0]]),
                                                   helper.make_tensor_value_info("ids", TensorProto.INT64, [ROWS]),
                                                   helper.make_tensor_value_info("labels", TensorProto.INT64, [ROWS])],
                              [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10)


def floats_of(model):
    """What each layer's codes stand for: ONNX's reference says it of DequantizeLinear, and products with a unit matrix by ONNX
    Runtime of the others. Layers as [outputs, inputs], the embedding as its rows."""
    found = {}
    for node in model.graph.node:
        name = node.name.split("/")[1]
        own = [w for w in model.graph.initializer if w.name in node.input]
        if node.op_type == "DequantizeLinear":
            graph = helper.make_graph([node], "one", [], [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)], own)
            one = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
            values = ReferenceEvaluator(one).run(None, {})[0]
            found[name] = values.T if name in ("fc5", "fc7") else values
        if node.op_type.startswith("MatMul") and node.domain:
            inputs = next(a.i for a in node.attribute if a.name == "K")
            bare = onnx.NodeProto()
            bare.CopyFrom(node)
            if len(bare.input) > 5:
                bare.input[5] = ""
            graph = helper.make_graph([bare], "one", [helper.make_tensor_value_info(node.input[0], TensorProto.FLOAT, [inputs, inputs])],
                                      [helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)], own)
            one = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10)
            session = onnxruntime.InferenceSession(one.SerializeToString())
            found[name] = session.run(None, {node.input[0]: np.eye(inputs, dtype=np.float32)})[0].T
    return found


class Net(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        numbers = {w.name: onnx.numpy_helper.to_array(w) for w in model.graph.initializer if w.data_type == TensorProto.FLOAT}
        floats = floats_of(model)
        self.emb = torch.nn.Embedding.from_pretrained(torch.tensor(floats["emb"]))
        for i in range(1, 9):
            layer = torch.nn.Linear(SIZES[i - 1], SIZES[i], bias=f"fc{i}.bias" in numbers)
            layer.weight.data = torch.tensor(np.ascontiguousarray(floats[f"fc{i}"]))
            if layer.bias is not None:
                layer.bias.data = torch.tensor(numbers[f"fc{i}.bias"])
            setattr(self, f"fc{i}", layer)
        self.head = torch.nn.Linear(SIZES[8], CLASSES, bias=False)
        self.head.weight.data = torch.tensor(numbers["head.weight"].T.copy())

    def forward(self, x, ids, labels):
        h = x + self.emb(ids)
        for i in range(1, 9):
            h = getattr(self, f"fc{i}")(h)
            h = torch.relu(h) if i % 2 else torch.tanh(h)
        return torch.nn.functional.cross_entropy(self.head(h), labels)


def main():
    folder = pathlib.Path(sys.argv[1]) / "quantised"
    folder.mkdir(parents=True)
    model = make_model()
    onnx.checker.check_model(model)
    onnx.save(model, folder / "model.onnx")
    batch = {"x": random.standard_normal((ROWS, SIZES[0])).astype(np.float32), "ids": codes(0, 8, ROWS), "labels": codes(0, CLASSES - 1, ROWS)}
    save_file(batch, folder / "batch.safetensors")
    net = Net(model)
    loss = net(**{name: torch.tensor(values) for name, values in batch.items()}).item()
    frozen = onnxruntime.InferenceSession(model.SerializeToString()).run(None, batch)[0].item()
    print("loss of ONNX Runtime", frozen, "of torch", loss)
    torch.manual_seed(7)
    expected = train_adapter(get_peft_model(net, LoraConfig(**SETTINGS)), None, {name: torch.tensor(values) for name, values in batch.items()}, folder)
    (folder / "expected.json").write_text(json.dumps({**expected, "options": OPTIONS, "root": "", "frozen_loss": frozen}, indent=1))
    with tarfile.open(pathlib.Path(__file__).parent / "quantised.tar.xz", "w:xz") as archive:
        archive.add(folder, arcname="quantised")


if __name__ == "__main__":
    main()
