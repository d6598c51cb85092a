#!/usr/bin/env python3
"""Write the small models of cli_test.py, good and bad. Needs onnx.

Usage: make_models.py models
"""
import pathlib
import sys

import onnx
from onnx import TensorProto, helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
OPSET = 20


def value(name, dtype, *shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def weight(name="weight", shape=(3, 2)):
    count = 1
    for size in shape:
        count *= size
    return helper.make_tensor(name, FLOAT, shape, [0.1 * (i % 5 - 2) for i in range(count)])


def model(nodes, inputs, outputs=None, weights=None):
    graph = helper.make_graph(nodes, "main", inputs, outputs or [value("loss", FLOAT)],
                              [weight()] if weights is None else weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)


def node(op, inputs, output, name, **attributes):
    return helper.make_node(op, inputs.split(), [output], name, **attributes)


# A linear classifier with its loss.
PREDICT = node("MatMul", "x weight", "logits", "/head/MatMul")
LOSS = node("SoftmaxCrossEntropyLoss", "logits labels", "loss", "/loss")
INPUTS = [value("x", FLOAT, 4, 3), value("labels", INT64, 4)]


def external():
    """The weight is in an external file that does not exist."""
    tensor = TensorProto(name="weight", data_type=FLOAT, dims=[3, 2], data_location=TensorProto.EXTERNAL)
    for key, text in (("location", "no_such_file.bin"), ("offset", "0"), ("length", "24")):
        tensor.external_data.add(key=key, value=text)
    return model([PREDICT, LOSS], INPUTS, weights=[tensor])


def models():
    symbolic = [value("x", FLOAT, "batch", 3), value("labels", INT64, "batch")]
    return {
        "linear": model([PREDICT, LOSS], INPUTS),
        "linear_wider": model([PREDICT, LOSS], INPUTS, weights=[weight(shape=(3, 7))]),
        "symbolic_batch": model([PREDICT, LOSS], symbolic),
        "cycle": model([node("Add", "x second", "first", "/a/Add"), node("Neg", "first", "second", "/b/Neg"),
                        node("MatMul", "second weight", "logits", "/head/MatMul"), LOSS], INPUTS),
        "inner_sizes": model([PREDICT, LOSS], INPUTS, weights=[weight(shape=(5, 2))]),
        "mixed_dtypes": model([node("Add", "x labels", "sum", "/mixed/Add"),
                               node("MatMul", "sum weight", "logits", "/head/MatMul"), LOSS], INPUTS),
        "undefined_value": model([node("MatMul", "nowhere weight", "logits", "/head/MatMul"), LOSS], INPUTS),
        "defined_twice": model([PREDICT, node("Relu", "logits", "logits", "/again/Relu"), LOSS], INPUTS),
        "missing_external": external(),
        "unsupported_operator": model([node("Det", "x", "d", "/odd/Det"), PREDICT,
                                       node("Mul", "logits d", "scaled", "/odd/Mul"),
                                       node("SoftmaxCrossEntropyLoss", "scaled labels", "loss", "/loss")],
                                      [value("x", FLOAT, 4, 3), value("labels", INT64, 4)]),
        "not_differentiable": model([PREDICT, node("ArgMax", "logits", "choice", "/odd/ArgMax", axis=1, keepdims=0),
                                     node("Cast", "choice", "real", "/odd/Cast", to=FLOAT),
                                     node("ReduceMean", "real", "loss", "/loss", keepdims=0)], INPUTS),
        # A class for each token, of four samples of any length.
        "tokens": model([node("Gather", "table ids", "rows", "/embed/Gather"), node("MatMul", "rows weight", "logits", "/head/MatMul"),
                         node("Transpose", "logits", "scores", "/head/Transpose", perm=[0, 2, 1]),
                         node("SoftmaxCrossEntropyLoss", "scores labels", "loss", "/loss", ignore_index=-100)],
                        [value("ids", INT64, 4, "seq"), value("labels", INT64, 4, "seq")], weights=[weight("table", (7, 3)), weight()]),
        "no_loss": model([PREDICT], INPUTS[:1], [value("logits", FLOAT, 4, 2)]),
    }


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    for name, content in models().items():
        (folder / f"{name}.onnx").write_bytes(content.SerializeToString())
    whole = (folder / "linear.onnx").read_bytes()
    (folder / "truncated.onnx").write_bytes(whole[: len(whole) // 2])


if __name__ == "__main__":
    main()
