#!/usr/bin/env python3
"""Writes first inputs for the fuzzers: a folder of small files for each.

Usage: make_corpus.py FOLDER [PLIMSOLL]

With the program, plans are among them. Needs Python's standard library alone.
"""
import io
import json
import pathlib
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "cli"))
import onnx_writer as onnx
from hostile_test import npy


def safetensors():
    header = json.dumps({"x": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(16)


def archive(method):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as members:
        members.writestr("x.npy", npy("<f4", "(4,)", bytes(16)))
        members.writestr("y.npy", npy("<i8", "(2, 1)", bytes(16)))
    return out.getvalue()


def data():
    yield b"\0" + safetensors()
    yield b"\1" + npy("<f4", "(4,)", bytes(16))
    yield b"\1" + archive(zipfile.ZIP_STORED)
    yield b"\1" + archive(zipfile.ZIP_DEFLATED)
    yield b"\2" + struct.pack("<100H", *range(100))
    shard = io.BytesIO()
    with tarfile.open(fileobj=shard, mode="w", format=tarfile.PAX_FORMAT) as members:
        for name in ("a.jpg", "a.cls", "long/" * 30 + "b.json"):
            member = tarfile.TarInfo(name)
            member.size = 3
            members.addfile(member, io.BytesIO(b"abc"))
    yield b"\3" + shard.getvalue()
    rows = zlib.compress(b"\0\x10\x20\x30")
    chunks = ((b"IHDR", struct.pack(">2I5B", 1, 1, 8, 2, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b""))
    yield b"\4\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
                                             for kind, body in chunks)


def machine():
    device = {"name": "odd", "title": "Odd", "backend": "cpu", "memory_bytes": 1 << 30, "reserves": [],
              "matmul_tflops": {"f32": 1}, "vector_tflops": 1, "memory_gb_per_s": 10, "launch_us": 1}
    yield b"\0" + json.dumps({"devices": [device]}).encode()
    yield b"\1" + json.dumps(device).encode()
    yield b"\2" + (TESTS.parent / "ir" / "machine" / "devices.json").read_bytes()[:4096]
    yield b"\3" + b'{"call":"h200 linear/cublaslt (bf16[2,3], bf16[4,3]) {transpose_w=1}","us":12.5}\n'


def config():
    yield b'lr = 3e-4\nbudget = "24GiB"\n[compile]\nfreeze = ["a", "b"]\n[run]\nsteps = 5\n'
    yield b'[transforms]\nresize = 256\ncrop = "none"\n'


def ir_text():
    for path in sorted(TESTS.glob("passes/**/*.ir")):
        if path.stat().st_size < 3000:
            yield path.read_bytes()


def models():
    for path in sorted((TESTS / "cli" / "models").glob("*.onnx")):
        yield path.read_bytes()
    nodes = [onnx.node("LSTM", "x w r", "y", "/lstm", hidden_size=1), onnx.node("ReduceMean", "y", "loss", keepdims=0)]
    yield onnx.model(nodes, [onnx.value("x", onnx.FLOAT, 3, 1, 1)], [onnx.value("loss", onnx.FLOAT)],
                     [onnx.tensor("w", [1, 4, 1], [0.1] * 4), onnx.tensor("r", [1, 4, 1], [0.1] * 4)])
    inner = onnx.function("f", "a", "b", [onnx.node("Relu", "a", "b")])
    yield onnx.linear(extra=[onnx.node("f", "x", "h", "/f", domain="own")], functions=[inner])
    nodes = [onnx.node("Reshape", "x shape", "i"), onnx.node("MaxPool", "i", "p", "/pool", kernel_shape=[2, 2], pads=[0, 0, 1, 1]),
             onnx.node("ReduceMean", "p", "loss", keepdims=0)]
    shape = onnx.tensor("shape", [4], raw=struct.pack("<4q", 1, 1, 4, 3), dtype=onnx.INT64)
    yield onnx.model(nodes, [onnx.value("x", onnx.FLOAT, 4, 3)], [onnx.value("loss", onnx.FLOAT)], [shape])


def plan_bytes(content):
    """The field `plan` of a PlanFile: behind the kind and the format."""
    at = content.index(b"plimsoll plan") + len(b"plimsoll plan")
    while at < len(content):
        tag, at = content[at], at + 1
        number, shift = 0, 0
        while True:
            byte, at = content[at], at + 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        if tag & 7 == 2:
            return content[at:at + number]
    return b""


def plans(program):
    for options in ((), ("--accumulate", "2"), ("--optimizer", "sgd", "--split", "2")):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "p.plan"
            subprocess.run([program, "compile", TESTS / "cli" / "models" / "linear.onnx", "--device", "cpu", "-o", path, *options],
                           check=True, capture_output=True)
            yield plan_bytes(path.read_bytes())


def main():
    folder = pathlib.Path(sys.argv[1])
    corpora = {"data": data(), "machine": machine(), "config": config(), "ir_text": ir_text(), "onnx": models(),
               "plan": plans(sys.argv[2]) if len(sys.argv) > 2 else []}
    for name, inputs in corpora.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i, content in enumerate(inputs):
            (folder / name / f"seed{i}").write_bytes(content)


if __name__ == "__main__":
    main()
