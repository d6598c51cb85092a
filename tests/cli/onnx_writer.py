"""Writes ONNX models, good and bad, without the onnx package: protobuf fields by their numbers in onnx.proto."""
import struct

FLOAT, INT64 = 1, 7


def varint(number):
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def fields(number, values):
    return b"".join(field(number, value) for value in values)


def value(name, dtype, *shape):
    dims = fields(1, [field(2, dim) if isinstance(dim, str) else field(1, dim) for dim in shape])
    return field(1, name) + field(2, field(1, field(1, dtype) + field(2, dims)))


def tensor(name, dims, floats=None, raw=None, external=None, dtype=FLOAT):
    out = fields(1, dims) + field(2, dtype) + field(8, name)
    if floats is not None:
        out += field(9, struct.pack(f"<{len(floats)}f", *floats))
    if raw is not None:
        out += field(9, raw)
    if external is not None:
        out += fields(13, [field(1, key) + field(2, str(text)) for key, text in external.items()]) + field(14, 1)
    return out


def attribute(name, content):
    if isinstance(content, bool) or isinstance(content, int):
        return field(1, name) + field(3, int(content)) + field(20, 2)
    if isinstance(content, str):
        return field(1, name) + field(4, content) + field(20, 3)
    return field(1, name) + fields(8, content) + field(20, 7)


def node(op, inputs, outputs, name="", domain="", **attributes):
    return (fields(1, inputs.split()) + fields(2, outputs.split()) + field(3, name) + field(4, op) +
            fields(5, [attribute(key, content) for key, content in attributes.items()]) +
            (field(7, domain) if domain else b""))


def function(name, inputs, outputs, nodes, domain="own"):
    return (field(1, name) + fields(4, inputs.split()) + fields(5, outputs.split()) + fields(7, nodes) +
            field(9, field(2, 20)) + field(9, field(1, domain) + field(2, 1)) + field(10, domain))


def model(nodes, inputs, outputs, weights=(), functions=(), opset=20):
    graph = (fields(1, nodes) + field(2, "main") + fields(5, weights) + fields(11, inputs) + fields(12, outputs))
    opsets = field(8, field(2, opset)) + (field(8, field(1, "own") + field(2, 1)) if functions else b"")
    return field(1, 9) + field(7, graph) + opsets + fields(25, functions)


def linear(weight=None, extra=(), x="x", rows=4, opset=20, functions=()):
    """A linear classifier with its loss; `extra` nodes make the value `h` of `x`."""
    weight = weight if weight is not None else tensor("weight", [3, 2], [0.1 * i for i in range(6)])
    nodes = [*extra, node("MatMul", f"{'h' if extra else x} weight", "logits", "/head/MatMul"),
             node("SoftmaxCrossEntropyLoss", "logits labels", "loss", "/loss")]
    return model(nodes, [value(x, FLOAT, rows, 3), value("labels", INT64, rows)], [value("loss", FLOAT)], [weight],
                 functions, opset)
