#!/usr/bin/env python3
"""Let the plimsoll program choose batches: of open dimensions, for huge updates, and for the least time per sample.

Usage: batch_test.py PLIMSOLL [TEST ...]

Needs Python's standard library alone.
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import cli_test
import onnx_writer as onnx
from cli_test import MODEL, MODELS, QUICKSTART, USAGE, compile_batch, expect, refuse, run, soon, succeed


def compile_huge_global_batches(folder):
    for samples in (1 << 40, 1000000000039):  # of many divisors, and of none
        training = compile_batch(folder, "--global-batch", samples)["training"]
        expect(training["batch"] * training["accumulate"] == samples, f"{training}")
    for samples in (0, 1 << 60):
        done = run("compile", MODELS / "linear.onnx", "-o", folder / "p.plan", "--global-batch", samples)
        expect(done.returncode == USAGE and len(done.stderr) < 200, f"{samples}: {done.returncode} {done.stderr[:300]}")


def test_huge_global_batches_end_soon(folder):
    soon(60, lambda: compile_huge_global_batches(folder))


def test_best_batch_takes_least_time_per_sample(folder):
    def per_sample(report):
        return report["time"]["predicted_step_us"] / report["training"]["batch"]
    plan = folder / "batch.plan"
    job = ["compile", QUICKSTART / "small_gpt.onnx", "--device", "cpu", "--budget", "108MiB", "-o", plan]
    reports = {}
    for option in ("--max-batch", "--best-batch"):
        succeed(*job, option)
        reports[option] = json.loads(succeed("inspect", plan, "--json"))
    largest, best = reports["--max-batch"], reports["--best-batch"]
    expect(per_sample(best) <= per_sample(largest) and best["training"]["batch"] <= largest["training"]["batch"],
           f"{per_sample(best)} us per sample of {best['training']['batch']}, {per_sample(largest)} of {largest['training']['batch']}")
    expect(any(each["pass"] == "best-batch" for each in best["decisions"]), "no decision says what was tried")


def test_batch_of_an_open_dimension_is_chosen(folder):
    """With and without an op that a batch cannot be followed through: zeros of the batch's shape are a constant."""
    constant = onnx.model(
        [onnx.node("Shape", "x", "shape"), onnx.node("ConstantOfShape", "shape", "zeros"), onnx.node("Cos", "zeros", "ones"),
         onnx.node("Mul", "x ones", "h"), onnx.node("MatMul", "h weight", "logits"),
         onnx.node("SoftmaxCrossEntropyLoss", "logits labels", "loss")],
        [onnx.value("x", onnx.FLOAT, "batch", 3), onnx.value("labels", onnx.INT64, "batch")], [onnx.value("loss", onnx.FLOAT)],
        [onnx.tensor("weight", [3, 2], [0.1 * i for i in range(6)])])
    (folder / "constant.onnx").write_bytes(constant)
    plan = folder / "open.plan"
    for model in (MODELS / "symbolic_batch.onnx", folder / "constant.onnx"):
        for options, samples in ((["--max-batch", "--budget", "65MiB"], None), (["--best-batch", "--budget", "65MiB"], None),
                                 (["--global-batch", 24], 24)):
            succeed("compile", model, "-o", plan, "--device", "cpu", *options)
            training = json.loads(succeed("inspect", plan, "--json"))["training"]
            chosen = training["batch"] * training["accumulate"]
            expect(chosen == samples if samples else chosen > 1000, f"{model.name} {options}: {training}")
            expect(training["dims"]["batch"] == training["batch"], f"{training}")


def test_input_with_too_many_elements_is_named(folder):
    (folder / "huge.onnx").write_bytes(onnx.linear(rows=1 << 30))
    refuse(MODEL, ["x has more than 2147483648 elements"], "compile", folder / "huge.onnx", "-o", folder / "p.plan")


def main():
    cli_test.PROGRAM, *wanted = sys.argv[1:]
    cli_test.run_tests(globals(), wanted)


if __name__ == "__main__":
    main()
