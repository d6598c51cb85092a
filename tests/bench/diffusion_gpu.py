#!/usr/bin/env python3
"""Adapters of Stable Diffusion 1.5's UNet on one GPU: images per second and memory, Plimsoll beside PyTorch with diffusers and PEFT, in one run and under the same cap.

Usage: diffusion_gpu.py PLIMSOLL DIR [ROW ...] [--export] [--compile] [--time] [--device h200] [--cap 18] [--steps 8] [--json FILE] [--small]

--export writes DIR/unet.onnx without weights; --compile writes DIR/ROW.plan for rows of Plimsoll. Both need no GPU and may run on another machine: of DIR, --time needs the plans alone,
and makes what is missing. Without any of the three all are done. A ROW is a name or the beginning of names; without any, all rows run. --list prints them.
Weights, latents, texts and noise are drawn, since neither time nor memory depends on them. Plimsoll's rows are held to their own budgets, PyTorch's to --cap GiB of the process.
A row of PyTorch is a process that tries its batch sizes from the smallest on until one does not fit; --batches replaces them.
--device cpu with --small tries the script without a GPU.

The job is diffusers' train_text_to_image_lora.py behind its frozen encoders: adapters of rank 4 on the attention's layers, or on all linear layers, the mean squared error of the predicted noise,
and AdamW (fused). PyTorch's frozen weights are bf16, its adapters f32 under autocast as in that script, or bf16 without autocast ("plain"). "checkpoint" recomputes each block as diffusers does,
and "last" has images channels-last; torch.compile chooses the layout itself.
Needs torch, diffusers and peft for --export and for PyTorch's rows, onnxscript besides for --export. Wheels on PYTHONPATH are enough for those in Python alone:
diffusers, requests, urllib3, idna, certifi, charset_normalizer, importlib_metadata and zipp.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import types
import typing

from gpu_training import cap_memory, time_batches

WARM_UP = 3
RANK = 4
ATTENTION = ["to_q", "to_k", "to_v", "to_out.0"]
# name: (batch, modules, further options of compile)
OURS = {
    "ours-b1": (1, ATTENTION, []),
    "ours-b4": (4, ATTENTION, []),
    "ours-b8": (8, ATTENTION, []),
    "ours-b16": (16, ATTENTION, []),
    "ours-b24": (24, ATTENTION, []),
    "ours-b32": (32, ATTENTION, []),
    "ours-b64": (64, ATTENTION, []),
    "ours-linear-b16": (16, ["all-linear"], []),
}


class Run(typing.NamedTuple):
    """A row of PyTorch."""
    batches: list[int]
    compiled: bool = False
    checkpointed: bool = False
    channels_last: bool = False
    dtype: str = "f32"  # of the adapters
    modules: str | list[str] = ATTENTION


PYTORCH = {
    "torch-eager": Run([1, 4, 8, 12, 16]),
    "torch-eager-last": Run([1, 4, 8, 12, 16], channels_last=True),
    "torch-eager-plain": Run([1, 4, 8, 12, 16], dtype="bf16"),
    "torch-eager-plain-last": Run([1, 4, 8, 12, 16], dtype="bf16", channels_last=True),
    "torch-eager-checkpoint": Run([8, 16, 32, 48, 64], checkpointed=True),
    "torch-eager-checkpoint-last": Run([8, 16, 32, 48, 64], checkpointed=True, channels_last=True),
    "torch-compile": Run([8, 16], compiled=True),
    "torch-compile-plain": Run([8, 16], compiled=True, dtype="bf16"),
    "torch-compile-checkpoint": Run([32], compiled=True, checkpointed=True),
    "torch-compile-linear": Run([8], compiled=True, modules="all-linear"),
}


# -- the job ----------------------------------------------------------------------------------------------------------

def settings(small):
    """Those of Stable Diffusion 1.5; diffusers has the others as defaults."""
    if small:
        return dict(sample_size=16, block_out_channels=(32, 64), norm_num_groups=8, cross_attention_dim=24, attention_head_dim=4,
                    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))
    return dict(sample_size=64, block_out_channels=(320, 640, 1280, 1280), layers_per_block=2, cross_attention_dim=768, attention_head_dim=8)


def build_unet(small):
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(**settings(small))


def make_batch(small, batch, device="cpu"):
    import torch

    size, generator = settings(small), torch.Generator(device).manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, device=device, generator=generator)

    latents, noise = (normal(batch, 4, size["sample_size"], size["sample_size"]) for _ in range(2))
    return {"latents": latents, "timestep": torch.randint(0, 1000, (batch,), device=device, generator=generator),
            "encoder_hidden_states": normal(batch, 77, size["cross_attention_dim"]), "noise": noise}


def with_loss(unet):
    import torch

    class NoiseLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.unet = unet

        def forward(self, latents, timestep, encoder_hidden_states, noise):
            predicted = self.unet(latents, timestep, encoder_hidden_states, return_dict=False)[0]
            return torch.nn.functional.mse_loss(predicted.float(), noise)

    return NoiseLoss()


# -- Plimsoll ---------------------------------------------------------------------------------------------------------

def export(args):
    """Writes the model without weights, for any batch."""
    model = args.folder / "unet.onnx"
    if model.exists():
        return model
    import torch
    import zoo_gpu

    begin = time.perf_counter()
    case = types.SimpleNamespace(build=lambda small: with_loss(build_unet(small)))
    unet, batch = zoo_gpu.build(case, args.small), make_batch(args.small, 2)
    counted = torch.export.Dim("batch", min=1, max=4096)
    program = torch.onnx.export(unet, tuple(batch.values()), dynamo=True, optimize=False, opset_version=20, input_names=list(batch), output_names=["loss"], verbose=False,
                                dynamic_shapes={name: {0: counted} for name in batch})
    zoo_gpu.write_without_weights(program, unet, model)
    print(f"exported in {time.perf_counter() - begin:.0f} s", flush=True)
    return model


def compile_row(args, name):
    """Compiles a row unless there is a plan; returns the plan's path."""
    plan = args.folder / f"{name}{'-tuned' if args.tune else ''}.plan"
    if plan.exists():
        return plan
    model = export(args)
    batch, modules, options = OURS[name]
    begin = time.perf_counter()
    budget = [] if args.device == "cpu" else ["--budget", f"{args.cap:g}GiB"]
    targets = [word for module in modules for word in ("--lora-targets", module)]
    done = subprocess.run([args.program, "compile", model, "-o", plan, "--device", args.device, "--dim", f"batch={batch}", "--precision", "bf16", "--lora-rank", str(RANK), "--lora-alpha", str(RANK),
                           *targets, *options, *budget, *(["--tune", args.tune] if args.tune else [])], capture_output=True, text=True)
    if done.returncode != 0:
        plan.unlink(missing_ok=True)
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    print(f"{name:28} compiled in {time.perf_counter() - begin:.0f} s: {done.stdout.strip() or done.stderr.strip().splitlines()[-1]}", flush=True)
    return plan


def write_batch(args, batch):
    path = args.folder / f"batch{batch}.safetensors"
    if not path.exists():
        import safetensors.torch

        safetensors.torch.save_file(make_batch(args.small, batch), path)
    return path


def run_ours(args, name):
    plan, metrics = compile_row(args, name), args.folder / f"{name}.jsonl"
    time_of = json.loads(subprocess.check_output([args.program, "inspect", plan, "--json"]))["time"]
    metrics.unlink(missing_ok=True)
    done = subprocess.run([args.program, "run", plan, "--init", "1", "--init-std", "0.02", "--data", write_batch(args, OURS[name][0]), "--lr", "1e-4",
                           "--steps", str(WARM_UP + args.steps), "--metrics", metrics], capture_output=True, text=True)
    rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    rows = [row for row in rows if "step_ms" in row]
    if done.returncode != 0 or len(rows) <= WARM_UP:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return [{"batch": OURS[name][0], "step_ms": statistics.median(row["step_ms"] for row in rows[WARM_UP:]),
             "predicted_ms": time_of["predicted_step_us"] / 1e3, "bytes": rows[-1].get("device_bytes"), "loss": rows[-1]["loss"]}]


# -- PyTorch ----------------------------------------------------------------------------------------------------------

def build_adapted(args, name, device):
    import peft
    import torch

    row = PYTORCH[name]
    torch.manual_seed(0)
    with torch.device(device):
        unet = build_unet(args.small).to(torch.bfloat16)
    unet.requires_grad_(False)
    unet.add_adapter(peft.LoraConfig(r=RANK, lora_alpha=RANK, init_lora_weights="gaussian", target_modules=row.modules))
    if row.dtype == "f32":
        for parameter in unet.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.float()
    if row.checkpointed:
        unet.enable_gradient_checkpointing()
    if row.channels_last:
        unet.to(memory_format=torch.channels_last)
    return unet.train()


def train_pytorch(args, name, say):
    """Says a result for each batch size that fits."""
    import torch

    row = PYTORCH[name]
    on_gpu = args.device != "cpu"
    device = "cuda" if on_gpu else "cpu"
    if on_gpu:
        cap_memory(int(args.cap * 2**30))
    unet = build_adapted(args, name, device)
    trained = [parameter for parameter in unet.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    model = with_loss(torch.compile(unet, dynamic=False) if row.compiled else unet)

    def loss_for(batch):
        inputs = make_batch(args.small, batch, device)
        if row.dtype == "bf16":
            inputs = {key: tensor.bfloat16() if tensor.is_floating_point() and key != "noise" else tensor for key, tensor in inputs.items()}
        if row.channels_last:
            inputs = {key: tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor for key, tensor in inputs.items()}

        def loss():
            with torch.autocast(device, dtype=torch.bfloat16, enabled=row.dtype == "f32"):
                return model(**inputs)

        return loss

    time_batches(args.batches or row.batches, args.steps, WARM_UP, device, optimizer, loss_for, say)


def run_pytorch(args, name):
    command = [sys.executable, os.path.abspath(__file__), args.program, args.folder, name, "--part", "--device", args.device, "--cap", str(args.cap), "--steps", str(args.steps)]
    command += ["--small"] * args.small
    if args.batches:
        command += ["--batches", *map(str, args.batches)]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(args.folder.resolve() / "inductor")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit, env=environment)
        text, why = done.stdout, (done.stderr.strip().splitlines() or ["no message"])[-1]
    except subprocess.TimeoutExpired as late:
        text, why = (late.stdout or b"").decode(), f"takes longer than {args.limit:.0f} s"
    results = [json.loads(line) for line in text.splitlines() if line.startswith('{"batch"')]
    if not results:
        raise RuntimeError(why)
    return results


# -- the table --------------------------------------------------------------------------------------------------------

def row_text(name, result, seconds):
    gib = f"{result['bytes'] / 2**30:6.2f}" if result.get("bytes") else "     -"
    predicted = f"{result['predicted_ms']:9.1f}" if "predicted_ms" in result else "        -"
    return f"{name:28} {result['batch']:5d} {result['batch'] / result['step_ms'] * 1e3:9.1f} {result['step_ms']:9.1f} {predicted} {gib}  {result['loss']:.4f} {seconds:7.0f}"


def rows_named(args, parser):
    every = [*OURS, *PYTORCH]
    for row in args.rows:
        if not any(name.startswith(row) for name in every):
            parser.error(f"no row {row}; --list prints them")
    return [name for name in every if not args.rows or any(name == row if row in every else name.startswith(row) for row in args.rows)]


def time_rows(args, rows):
    print(f"{'row':28} batch  images/s   ms/step predicted    GiB    loss seconds", flush=True)
    found = {}
    for name in rows:
        begin = time.perf_counter()
        try:
            found[name] = run_ours(args, name) if name in OURS else run_pytorch(args, name)
        except RuntimeError as error:
            print(f"{name:28} {error}", flush=True)
            continue
        for result in found[name]:
            print(row_text(name, result, result.get("seconds", time.perf_counter() - begin)), flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR")
    parser.add_argument("rows", nargs="*", metavar="ROW")
    for phase in ("--export", "--compile", "--time", "--list", "--small"):
        parser.add_argument(phase, action="store_true")
    parser.add_argument("--tune", type=pathlib.Path, metavar="FILE", help="choose kernels by times that are measured on this GPU and kept in FILE; rows' plans are others then")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--cap", type=float, default=18, help="GiB")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batches", type=int, nargs="+", help="of PyTorch's rows")
    parser.add_argument("--limit", type=float, default=300, help="seconds of a row of PyTorch")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    rows = rows_named(args, parser)
    if args.part:
        train_pytorch(args, args.rows[0], lambda result: print(json.dumps(result), flush=True))
        return
    if args.list:
        print("\n".join(rows))
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    every_phase = not (args.export or args.compile or args.time)
    if args.export or every_phase:
        export(args)
    if args.compile or every_phase:
        for name in rows:
            if name in OURS:
                compile_row(args, name)
    if args.time or every_phase:
        time_rows(args, rows)


if __name__ == "__main__":
    main()
