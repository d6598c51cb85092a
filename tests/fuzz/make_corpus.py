#!/usr/bin/env python3
"""Writes first inputs for the fuzzers: a folder of small files for each.

Usage: make_corpus.py FOLDER [PLIMSOLL]

With the program, plans are among them. Needs Python's standard library alone.
"""
import base64
import io
import json
import math
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


# 16 x 16 pixels in color, written by Pillow with optimised tables.
JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/2wBDARwe"
    "HigjKE4rK06kbl1upKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKT/wAARCAAQABADASIAAhEBAxEB/8QAFQABAQAAAAAA"
    "AAAAAAAAAAAABAX/xAAXEAADAQAAAAAAAAAAAAAAAAAAAwRh/8QAFQEBAQAAAAAAAAAAAAAAAAAAAQT/xAAYEQACAwAAAAAAAAAAAAAAAAAABAECEv/aAAwDAQAC"
    "EQMRAD8AkKmwYqXBaZsHplwmi2hWZP/Z")
PROGRESSIVE_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQc1tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/2wBDARwe"
    "HigjKE4rK06kbl1upKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKT/wgARCAAQABADASIAAhEBAxEB/8QAFQABAQAAAAAA"
    "AAAAAAAAAAAAAwT/xAAVAQEBAAAAAAAAAAAAAAAAAAAAA//aAAwDAQACEAMQAAABjZnk/8QAFhAAAwAAAAAAAAAAAAAAAAAAAAEC/9oACAEBAAEFAlIpFIpP/8QA"
    "FREBAQAAAAAAAAAAAAAAAAAAAwD/2gAIAQMBAT8BNL//xAAVEQEBAAAAAAAAAAAAAAAAAAARAP/aAAgBAgEBPwFb/8QAFBABAAAAAAAAAAAAAAAAAAAAIP/aAAgB"
    "AQAGPwIf/8QAFBABAAAAAAAAAAAAAAAAAAAAIP/aAAgBAQABPyEDf//aAAwDAQACAAMAAAAQ3//EABQRAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQMBAT8Qf//EABUR"
    "AQEAAAAAAAAAAAAAAAAAAAAB/9oACAECAQE/EIP/xAAVEAEBAAAAAAAAAAAAAAAAAAAAYf/aAAgBAQABPxCaSKD/2Q==")


def safetensors(tensors=(("x", "F32", [2, 2]),), metadata=None):
    width = {"F32": 4, "F16": 2, "U8": 1, "I64": 8}
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, dtype, shape in tensors:
        size = math.prod(shape) * width[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(at)


def archive(method, y="y"):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as members:
        members.writestr("x.npy", npy("<f4", "(4,)", bytes(16)))
        members.writestr(y + ".npy", npy("<i8", "(2, 1)" if y == "y" else "(2,)", struct.pack("<2q", 1, 3)))
    return out.getvalue()


def shard(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def data():
    yield b"\0" + safetensors()
    yield b"\1" + npy("<f4", "(4,)", bytes(16))
    yield b"\1" + archive(zipfile.ZIP_STORED)
    yield b"\1" + archive(zipfile.ZIP_DEFLATED)
    yield b"\2" + struct.pack("<100H", *range(100))
    yield b"\3" + shard((name, b"abc") for name in ("a.jpg", "a.cls", "long/" * 30 + "b.json"))
    rows = zlib.compress(b"\0\x10\x20\x30")
    chunks = ((b"IHDR", struct.pack(">2I5B", 1, 1, 8, 2, 0, 0, 0)), (b"IDAT", rows), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
                                           for kind, body in chunks)
    for image in (png, JPEG, PROGRESSIVE_JPEG):
        yield b"\4" + image
    yield b"\5" + shard((("a.jpg", JPEG), ("a.json", b'{"label": 3}'), ("b.png", png), ("b.cls", b"1")))
    for rows in ("x.lengths", "lengths"):
        yield b"\6" + safetensors((("x", "F32", [4]), (rows, "I64", [2])))
    yield b"\6" + safetensors((("x", "F32", [4]), ("x.offsets", "I64", [3])))
    yield b"\7" + archive(zipfile.ZIP_STORED, "x.lengths")
    yield b"\x08file,label\na.png,cat\n\"c.jpg\",\"dog\"\n"
    yield b'\t{"a.png": 1, "c.jpg": "dog"}'


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
    yield b"module:(h{3}){2,}=bf16"
    yield b"# rules\nop:exp = bf16\nmodule:h\\.(0|1)\\..* = fp32\n"
    yield b"data=2,tensor=2"
    yield b"23.5GiB"


def run():
    files = [{"name": name + ".safetensors", "bytes": 10, "xxh64": "0" * 16} for name in ("weights", "states")]
    record = {"format_version": 1, "step": 123, "sequence": 4, "time": "2026-11-22T17:23:05Z", "model": "gpt.onnx", "weights_hash": "1f",
              "seed": 1, "reader": {"batches": 246, "samples_per_batch": 8}, "plan": {"precision": "fp16"}, "schedule": {},
              "metrics": {"loss": 0.5}, "files": files, "checksum": "0" * 16}
    for kind in (b"\0", b"\1"):
        yield kind + json.dumps(record).encode()
    yield b'\2{"step":4,"loss":0.5}\n{"step":6,"loss":0.25}\n'
    yield b"\3step,loss,evaluation_accuracy\n4,0.5,\n6,0.25,1\n"
    yield b"\5\x09\x00\x00\x00\x00\x00\x00\xf0\x3f\x10\x04\x2a\x0d\x12\x0b\x0a\x04loss\x15\x00\x00\x00\x3f\n"


def weights():
    pair = (("fc.lora_A.weight", "F32", [2, 3]), ("fc.lora_B.weight", "F16", [4, 2]))
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "alpha_pattern": {"fc": 8}, "use_rslora": True}
    no_place = b"\0\0"
    state = b'{"nested_offset": 0.5, "blocksize": 64}'
    plain = safetensors((("fc.weight", "F16", [2, 3]), ("fc.weight.absmax", "F32", [1]),
                         ("fc.weight.quant_state.bitsandbytes__nf4", "U8", [len(state)])))
    yield b"\0" + no_place + plain[:-len(state)] + state
    yield b"\1" + no_place + onnx.linear()
    yield b"\2" + no_place + safetensors([("unet." + name, *rest) for name, *rest in pair],
                                        {"lora_adapter_metadata": json.dumps({"unet." + key: value for key, value in config.items()})})
    yield b"\3" + no_place + safetensors((("lora_unet_blocks_0_proj.lora_down.weight", "F32", [2, 3]),
                                         ("lora_unet_blocks_0_proj.lora_up.weight", "F32", [4, 2]),
                                         ("lora_unet_blocks_0_proj.alpha", "F32", [])))
    peft = safetensors([("base_model.model." + name, *rest) for name, *rest in pair])
    yield b"\4" + struct.pack("<H", len(peft)) + peft + json.dumps(config).encode()


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
    corpora = {"data": data(), "machine": machine(), "config": config(), "run": run(), "weights": weights(), "ir_text": ir_text(),
               "onnx": models(), "plan": plans(sys.argv[2]) if len(sys.argv) > 2 else []}
    for name, inputs in corpora.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i, content in enumerate(inputs):
            (folder / name / f"seed{i}").write_bytes(content)


if __name__ == "__main__":
    main()
