#!/usr/bin/env python3
"""What `run --save` writes beside the trained numbers: the model's graph and names, whatever the first values are from.

Usage: saving_test.py PLIMSOLL [TEST ...]

Needs Python's standard library alone; with bitsandbytes installed, it reads a quantised base as well.
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cli_test
import onnx_writer as onnx
from cli_test import LABELS, MODEL, MODELS, USAGE, X, compile_linear, expect, read_safetensors, refuse, run_linear, succeed, write_safetensors


def test_a_plan_without_its_weights_saves_the_model(folder):
    plan = compile_linear(folder)
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    saved, weights = folder / "after.onnx", folder / "after.safetensors"
    job = ["run", plan, "--data", data, "--steps", "2", "--save", saved]
    refuse(USAGE, ["--save", "after.onnx", "--model MODEL.onnx"], *job, "--init", "1")
    succeed(*job, "--init", "1", "--save", weights, "--model", MODELS / "linear.onnx")
    expect("can be trained" in succeed("check", saved), "the saved model is no model")
    compare = folder / "again.safetensors"
    succeed("run", plan, "--data", data, "--steps", "0", "--weights", saved, "--save", compare)
    expect(weights.read_bytes() == compare.read_bytes(), "the saved model has other weights than were trained")
    succeed(*job, "--weights", weights, "--model", MODELS / "linear.onnx")
    refuse(USAGE, ["linear.onnx", "input"], *job, "--init", "1", "--model", MODELS / "linear.onnx", "--save", MODELS / "linear.onnx")


def test_another_model_is_refused_before_the_first_step(folder):
    plan = compile_linear(folder)
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    other = folder / "other.onnx"
    other.write_bytes(onnx.model(
        [onnx.node("MatMul", "x kernel", "logits"), onnx.node("SoftmaxCrossEntropyLoss", "logits labels", "loss")],
        [onnx.value("x", onnx.FLOAT, 4, 3), onnx.value("labels", onnx.INT64, 4)], [onnx.value("loss", onnx.FLOAT)],
        [onnx.tensor("kernel", [3, 2], [0.1] * 6)]))
    for model, word in ((MODELS / "linear_wider.onnx", "has it as f32[3,7]"), (other, "has no such weight")):
        refuse(MODEL, ["the plan trains 'weight' (f32[3,2])", model.name, word, "as --model"], "run", plan, "--data", data, "--init", "1",
               "--save", folder / "after.onnx", "--model", model)


def test_quantised_weights_need_their_file(folder):
    """Their numbers are saved from the file that they are read from, so that without one nothing can be saved."""
    model, plan = folder / "model.onnx", folder / "quantised.plan"
    weights = [onnx.tensor("first", [64, 64], [0.01 * (i % 7) for i in range(4096)]), onnx.tensor("second", [64, 2], [0.1] * 128)]
    model.write_bytes(onnx.model(
        [onnx.node("MatMul", "x first", "h"), onnx.node("MatMul", "h second", "logits"), onnx.node("SoftmaxCrossEntropyLoss", "logits labels", "loss")],
        [onnx.value("x", onnx.FLOAT, 4, 64), onnx.value("labels", onnx.INT64, 4)], [onnx.value("loss", onnx.FLOAT)], weights))
    data = write_safetensors(folder / "batch.safetensors", {"x": ("F32", [4, 64], "f", [0.1] * 256), "labels": LABELS})
    succeed("compile", model, "-o", plan, "--device", "cpu", "--freeze", "first", "--quantize", "nf4")
    for saved in (folder / "after.onnx", folder / "after.safetensors"):
        job = ["run", plan, "--model", model, "--data", data, "--steps", "1", "--save", saved]
        refuse(USAGE, ["--save", saved.name, "'first' quantised", "--weights"], *job, "--init", "1")
        succeed(*job, "--weights", model)


def load_in_bitsandbytes(saved, numbers):
    """What bitsandbytes reads of the file, and codes that it makes of the numbers itself; none where it is not installed."""
    try:
        import bitsandbytes
        import safetensors.torch
        import torch
    except ImportError:
        return None
    tensors = safetensors.torch.load_file(saved)
    settings = {name: value for name, value in tensors.items() if name.startswith("first.")}
    state = bitsandbytes.functional.QuantState.from_dict(settings, device=torch.device("cpu"))
    own, own_state = bitsandbytes.functional.quantize_4bit(torch.tensor(numbers).reshape(64, 64).T.contiguous(), blocksize=64, quant_type="nf4", compress_statistics=True)
    read = bitsandbytes.functional.dequantize_4bit(tensors["first"], state)
    return read, bitsandbytes.functional.dequantize_4bit(own, own_state), tensors["first"].flatten().tolist() == own.flatten().tolist()


def test_a_quantised_base_is_saved_as_bitsandbytes_has_it(folder):
    """The file is a base that another run starts from as from the model, and that bitsandbytes reads."""
    model, plan, saved = folder / "model.onnx", folder / "quantised.plan", folder / "base.safetensors"
    numbers = [0.01 * (i % 97) - 0.4 for i in range(4096)]
    weights = [onnx.tensor("first", [64, 64], numbers), onnx.tensor("second", [64, 2], [0.001 * i for i in range(128)])]
    model.write_bytes(onnx.model(
        [onnx.node("MatMul", "x first", "h"), onnx.node("MatMul", "h second", "logits"), onnx.node("SoftmaxCrossEntropyLoss", "logits labels", "loss")],
        [onnx.value("x", onnx.FLOAT, 4, 64), onnx.value("labels", onnx.INT64, 4)], [onnx.value("loss", onnx.FLOAT)], weights))
    data = write_safetensors(folder / "batch.safetensors", {"x": ("F32", [4, 64], "f", [0.01 * (i % 13) for i in range(256)]), "labels": LABELS})
    job = ["compile", model, "-o", plan, "--device", "cpu", "--freeze", "first"]
    for form, nested in (("nf4", True), ("nf4-single", False)):
        succeed(*job, "--quantize", form)
        losses = []
        for source in (model, saved):
            metrics = folder / "losses.jsonl"
            metrics.unlink(missing_ok=True)
            succeed("run", plan, "--weights", source, "--data", data, "--steps", "0", "--save-quantized", saved if source == model else folder / "again.safetensors")
            succeed("run", plan, "--weights", source, "--data", data, "--steps", "3", "--metrics", metrics)
            losses.append([json.loads(line).get("loss") for line in metrics.read_text().splitlines()])
        expect(losses[0] == losses[1], f"losses from the model and from the saved base: {losses}")
        expect(saved.read_bytes() == (folder / "again.safetensors").read_bytes(), "codes go through unchanged")
        tensors = read_safetensors(saved)
        expect(tensors["first"] == ("U8", [2048, 1]) and tensors["second"] == ("F32", [64, 2]), f"{tensors}")
        expect(("first.nested_absmax" in tensors) == nested and "first.quant_map" in tensors and "first.nested_offset" not in tensors, f"{list(tensors)}")
        if nested and (read := load_in_bitsandbytes(saved, numbers)):
            expect(read[2] and (read[0] - read[1]).abs().max() < 1e-6, "bitsandbytes reads what it would have made")
    for form in ("int4", "int8"):
        succeed(*job, "--quantize", form)
        refuse(USAGE, ["--save-quantized", "'first' is in " + form, "nf4"], "run", plan, "--weights", model, "--data", data, "--save-quantized", saved)
    succeed(*job)
    refuse(USAGE, ["--save-quantized", "no quantised weights"], "run", plan, "--weights", model, "--data", data, "--save-quantized", saved)


def test_weights_that_are_not_beside_the_model(folder):
    """The plan has the weights that it trains; a file without the values of others is refused, before the first step."""
    absent = {"location": "nowhere.data", "offset": 0, "length": 24}
    weight = onnx.tensor("weight", [3, 2], external=absent)
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    saved = folder / "after.onnx"
    for name, extra in (("model", []), ("unread", [onnx.tensor("unread", [3, 2], external=absent)])):
        model, plan = folder / f"{name}.onnx", folder / f"{name}.plan"
        model.write_bytes(onnx.model(
            [onnx.node("MatMul", "x weight", "logits"), onnx.node("SoftmaxCrossEntropyLoss", "logits labels", "loss")],
            [onnx.value("x", onnx.FLOAT, 4, 3), onnx.value("labels", onnx.INT64, 4)], [onnx.value("loss", onnx.FLOAT)], [weight, *extra]))
        succeed("compile", model, "-o", plan, "--device", "cpu")
        job = ["run", plan, "--model", model, "--init", "1", "--data", data, "--steps", "2", "--save"]
        if extra:
            refuse(MODEL, ["after.onnx", "lacks the file with the values of 'unread'", "save as .safetensors"], *job, saved)
            succeed(*job, folder / "after.safetensors")
        else:
            succeed(*job, saved)
            succeed("run", plan, "--weights", saved, "--data", data, "--steps", "1")


def test_frozen_layers_without_first_values_are_saved_as_they_were_drawn(folder):
    """A frozen layer that a bf16 plan has in 16 bits has 32 in the model's file, and no file has its other digits."""
    weights = [onnx.tensor("first", [3, 3], [0.1 * i for i in range(9)]), onnx.tensor("second", [3, 2], [0.1 * i for i in range(6)])]
    model, plan = folder / "model.onnx", folder / "frozen.plan"
    model.write_bytes(onnx.model(
        [onnx.node("MatMul", "x first", "h"), onnx.node("MatMul", "h second", "logits"), onnx.node("SoftmaxCrossEntropyLoss", "logits labels", "loss")],
        [onnx.value("x", onnx.FLOAT, 4, 3), onnx.value("labels", onnx.INT64, 4)], [onnx.value("loss", onnx.FLOAT)], weights))
    data = write_safetensors(folder / "batch.safetensors", {"x": X, "labels": LABELS})
    succeed("compile", model, "-o", plan, "--device", "cpu", "--precision", "bf16", "--freeze", "first")
    files = [folder / "after.onnx", folder / "after.safetensors"]
    succeed("run", plan, "--model", model, "--init", "1", "--data", data, "--steps", "2", "--save", files[0], "--save", files[1])
    expect(read_safetensors(files[1])["first"] == ("F32", [3, 3]), f"{read_safetensors(files[1])}")
    succeed("run", plan, "--weights", files[0], "--data", data, "--steps", "0", "--save", folder / "again.safetensors")
    expect((folder / "again.safetensors").read_bytes() == files[1].read_bytes(), "both files have the same weights")


def main():
    cli_test.PROGRAM, *wanted = sys.argv[1:]
    cli_test.run_tests(globals(), wanted)


if __name__ == "__main__":
    main()
