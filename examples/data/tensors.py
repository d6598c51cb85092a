"""Writes NumPy arrays as a safetensors file: a header in JSON, then the bytes."""
import json
import os
import pathlib
import struct

NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16",
         "int8": "I8", "uint8": "U8", "bool": "BOOL"}


def write_safetensors(path, arrays):
    """arrays: name -> array. The file appears under its name only once it is complete."""
    header, at = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = pathlib.Path(f"{path}.part")
    with open(part, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            out.write(array.tobytes())
    os.replace(part, path)
