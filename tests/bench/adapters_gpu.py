#!/usr/bin/env python3
"""Adapters on one GPU: tokens per second and memory of a Mistral 7B, Plimsoll beside PyTorch with PEFT, in one run and under the same cap.

Usage: adapters_gpu.py PLIMSOLL DIR [ROW ...] [--compile] [--time] [--device h200] [--cap 24] [--steps 8] [--json FILE]
                       [--layers 32] [--hidden 4096] [--gated 14336] [--heads 32] [--kv-heads 8] [--vocabulary 32000] [--sequence 512]

--compile writes DIR/ROW.plan for rows of Plimsoll and needs neither a GPU nor weights; --time runs rows, whose plans it compiles where they are missing. Without either both
are done. A ROW is a name or the beginning of names; without any, all rows run. --list prints them. Weights are drawn, since neither time nor memory depends on them, and
tokens are random. Plimsoll's rows are held to their own budgets, PyTorch's to --cap GiB of the process. A row of PyTorch is a process that tries its batch sizes from the
smallest on until one does not fit, and shows the fastest; --batches replaces them. --device cpu with small sizes tries the script without a GPU.

PyTorch trains with AdamW (fused), adapters of PEFT on all linear layers of the blocks, in 16 bits (no autocast) or in f32 under autocast. "layers" compiles each block by itself,
which takes seconds where "compile", the whole model, takes minutes; "checkpoint" recomputes each block, "budgetN" is torch.compile's activation_memory_budget of N %.
Needs torch, transformers and peft for PyTorch's rows; "unsloth" rows need unsloth as well, and read a model that the first of them writes to --scratch (14 GiB). They train
under autocast as Unsloth's trainer does, with its kernels, its loss and, with "checkpoint", its own checkpoints; "qlora" has a base in NF4.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import time

from gpu_training import cap_memory, time_batches
import write_llama

SIZES = {"layers": 32, "hidden": 4096, "gated": 14336, "heads": 32, "kv-heads": 8, "vocabulary": 32000, "sequence": 512}
WARM_UP = 3
LORA = ["--precision", "bf16", "--lora-rank", "8", "--lora-alpha", "16"]
# name: (batch, GiB of the budget or None for --cap, options of compile)
OURS = {
    "ours-r8-b8": (8, None, LORA),
    "ours-r8-b16": (16, None, LORA),
    "ours-r8-b20": (20, None, LORA),
    "ours-r32-b16": (16, None, ["--precision", "bf16", "--lora-rank", "32", "--lora-alpha", "64"]),
    "ours-dropout-b16": (16, None, [*LORA, "--lora-dropout", "0.05"]),
    "ours-qlora-b16": (16, None, [*LORA, "--quantize", "nf4"]),
    "ours-qlora-b6-14": (6, 14, [*LORA, "--quantize", "nf4"]),
    "ours-qlora-b6-12": (6, 12, [*LORA, "--quantize", "nf4"]),
    "ours-fp8-b8": (8, None, ["--precision", "fp8", "--lora-rank", "8", "--lora-alpha", "16", "--quantize", "fp8"]),
    "ours-fp8-b8-32": (8, 32, ["--precision", "fp8", "--lora-rank", "8", "--lora-alpha", "16", "--quantize", "fp8"]),
    "ours-fp8-b16": (16, None, ["--precision", "fp8", "--lora-rank", "8", "--lora-alpha", "16", "--quantize", "fp8"]),
    "ours-int8-b16": (16, None, [*LORA, "--quantize", "int8"]),
    "ours-dora-b16": (16, None, [*LORA, "--dora"]),
    "ours-qdora-b6-14": (6, 14, [*LORA, "--dora", "--quantize", "nf4"]),
}
# name: (what is compiled, what saves memory, dtype of the adapters, rank, dropout, batches)
PYTORCH = {
    "torch-eager": ("", "", "bf16", 8, 0, [1, 2, 3, 4]),
    "torch-eager-autocast": ("", "", "f32", 8, 0, [1, 2, 3]),
    "torch-eager-checkpoint": ("", "checkpoint", "bf16", 8, 0, [4, 8, 16, 24]),
    "torch-layers": ("layers", "", "bf16", 8, 0, [1, 2, 3, 4, 5]),
    "torch-layers-autocast": ("layers", "", "f32", 8, 0, [1, 2, 3, 4]),
    "torch-layers-checkpoint": ("layers", "checkpoint", "bf16", 8, 0, [4, 8, 16, 24]),
    "torch-layers-budget50": ("layers", "budget50", "bf16", 8, 0, [2, 4, 6, 8]),
    "torch-compile": ("compile", "", "bf16", 8, 0, [4]),
    "torch-compile-autocast": ("compile", "", "f32", 8, 0, [4]),
    "torch-compile-checkpoint": ("compile", "checkpoint", "bf16", 8, 0, [16]),
    "torch-compile-budget50": ("compile", "budget50", "bf16", 8, 0, [8]),
    "torch-compile-budget20": ("compile", "budget20", "bf16", 8, 0, [16]),
    "torch-layers-r32": ("layers", "", "bf16", 32, 0, [2, 3, 4]),
    "torch-layers-dropout": ("layers", "", "bf16", 8, 0.05, [2, 3, 4]),
}
# name: (base in NF4, checkpoints, batches)
UNSLOTH = {
    "unsloth": (False, False, [1, 2, 3, 4, 5]),
    "unsloth-checkpoint": (False, True, [4, 8, 16, 24, 32]),
    "unsloth-qlora": (True, False, [2, 4, 6]),
    "unsloth-qlora-checkpoint": (True, True, [6, 16, 32]),
}


# -- Plimsoll ---------------------------------------------------------------------------------------------------------

def sizes_of(args, batch):
    return argparse.Namespace(batch=batch, **{name.replace("-", "_"): getattr(args, name.replace("-", "_")) for name in SIZES})


def compile_row(args, name):
    """Writes the model without weights and compiles it, unless there is a plan; returns the plan's path."""
    plan = args.folder / f"{name}{'-tuned' if args.tune else ''}.plan"
    if plan.exists():
        return plan
    batch, gib, options = OURS[name]
    model = args.folder / f"{name}.onnx"
    model.write_bytes(write_llama.Writer(sizes_of(args, batch)).write())
    begin = time.perf_counter()
    budget = [] if args.device == "cpu" else ["--budget", f"{gib or args.cap}GiB"]
    done = subprocess.run([args.program, "compile", model, "-o", plan, "--device", args.device, *options, *budget, *(["--tune", args.tune] if args.tune else [])], capture_output=True, text=True)
    model.unlink()
    if done.returncode != 0:
        plan.unlink(missing_ok=True)
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    print(f"{name:24} compiled in {time.perf_counter() - begin:.0f} s: {done.stdout.strip() or done.stderr.strip().splitlines()[-1]}", flush=True)
    return plan


def write_tokens(args):
    path = args.folder / "tokens.bin"
    if not path.exists():
        draw = random.Random(1)
        count = 64 * (args.sequence + 1) * 8
        path.write_bytes(struct.pack(f"<{count}H", *(draw.randrange(args.vocabulary) for _ in range(count))))
    return path


def run_ours(args, name):
    plan, metrics = compile_row(args, name), args.folder / f"{name}.jsonl"
    time_of = json.loads(subprocess.check_output([args.program, "inspect", plan, "--json"]))["time"]
    metrics.unlink(missing_ok=True)
    done = subprocess.run([args.program, "run", plan, "--init", "1", "--init-std", "0.02", "--data", write_tokens(args), "--lr", "2e-4",
                           "--steps", str(WARM_UP + args.steps), "--metrics", metrics], capture_output=True, text=True)
    rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    rows = [row for row in rows if "step_ms" in row]
    if done.returncode != 0 or len(rows) <= WARM_UP:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return [{"batch": OURS[name][0], "step_ms": statistics.median(row["step_ms"] for row in rows[WARM_UP:]),
             "predicted_ms": time_of["predicted_step_us"] / 1e3, "bytes": rows[-1].get("device_bytes"), "loss": rows[-1]["loss"]}]


# -- PyTorch ----------------------------------------------------------------------------------------------------------

def build_base(args, device):
    import torch
    import transformers

    config = transformers.MistralConfig(vocab_size=args.vocabulary, hidden_size=args.hidden, intermediate_size=args.gated, num_hidden_layers=args.layers, num_attention_heads=args.heads,
                                        num_key_value_heads=args.kv_heads, sliding_window=None, attn_implementation="sdpa", use_cache=False)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = transformers.MistralForCausalLM(config)
    torch.set_default_dtype(before)
    return model


def build_peft(args, dtype, rank, dropout, device):
    import peft

    model = build_base(args, device)
    lora = peft.LoraConfig(r=rank, lora_alpha=2 * rank, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM")
    return peft.get_peft_model(model, lora, autocast_adapter_dtype=dtype == "f32").to(device).train()


def layers_of(model):
    return next(module for name, module in model.named_modules() if name.endswith("model.layers"))


def time_tokens(args, batches, device, optimizer, loss_of, say):
    import torch

    def loss_for(batch):
        ids = torch.randint(0, args.vocabulary, (batch, args.sequence + 1), device=device, generator=torch.Generator(device).manual_seed(1))
        return lambda: loss_of(ids)

    time_batches(args.batches or batches, args.steps, WARM_UP, device, optimizer, loss_for, say)


def train_peft(args, name, say):
    import torch

    compiled, saving, dtype, rank, dropout, batches = PYTORCH[name]
    on_gpu = args.device != "cpu"
    device = "cuda" if on_gpu else "cpu"
    if on_gpu:
        cap_memory(int(args.cap * 2**30))
    torch._dynamo.config.cache_size_limit = 64
    model = build_peft(args, dtype, rank, dropout, device)
    if saving.startswith("budget"):
        import torch._functorch.config
        torch._functorch.config.activation_memory_budget = int(saving[len("budget"):]) / 100
    if saving == "checkpoint":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
        apply_activation_checkpointing(model, check_fn=lambda module: type(module).__name__ == "MistralDecoderLayer")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=on_gpu)
    if compiled == "layers":
        for layer in layers_of(model):
            layer.compile(dynamic=False)

    def loss_of(ids):
        logits = model(input_ids=ids[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    run = torch.compile(loss_of, dynamic=False) if compiled == "compile" else loss_of

    def autocast_loss_of(ids):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == "f32"):
            return run(ids)

    time_tokens(args, batches, device, optimizer, autocast_loss_of, say)


def base_folder(args):
    return args.scratch / f"mistral-{args.layers}-{args.hidden}"


def write_base(args):
    """A model of drawn weights as from_pretrained reads it, with a tokenizer of numbers, without which Unsloth loads none."""
    import tokenizers
    import transformers

    folder = base_folder(args)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({f"w{word}": word for word in range(args.vocabulary)}, unk_token="w0"))
    special = {"unk_token": "w0", "bos_token": "w1", "eos_token": "w2", "pad_token": "w3"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(folder)
    build_base(args, "cpu" if args.device == "cpu" else "cuda").save_pretrained(folder)


def train_unsloth(args, name, say):
    os.environ["HF_HUB_OFFLINE"] = "1"
    quantised, checkpoint, batches = UNSLOTH[name]
    import unsloth  # ahead of what it changes
    import torch

    cap_memory(int(args.cap * 2**30))
    saving = "unsloth" if checkpoint else False
    model, _ = unsloth.FastLanguageModel.from_pretrained(str(base_folder(args)), max_seq_length=args.sequence, dtype=torch.bfloat16, load_in_4bit=quantised, local_files_only=True,
                                                         use_gradient_checkpointing=saving)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = unsloth.FastLanguageModel.get_peft_model(model, r=8, lora_alpha=16, lora_dropout=0, bias="none", target_modules=targets, use_gradient_checkpointing=saving).train()
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=2e-4, fused=True)

    def loss_of(ids):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(input_ids=ids[:, :-1].contiguous(), labels=ids[:, :-1].contiguous()).loss

    time_tokens(args, batches, "cuda", optimizer, loss_of, say)


def run_pytorch(args, name):
    base = [sys.executable, os.path.abspath(__file__), args.program, args.folder]
    options = ["--part", "--device", args.device, "--cap", str(args.cap), "--steps", str(args.steps), "--scratch", args.scratch]
    for size in SIZES:
        options += ["--" + size, str(getattr(args, size.replace("-", "_")))]
    if name in UNSLOTH and not (base_folder(args) / "config.json").exists():
        done = subprocess.run([*base, "base", *options], capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    command = [*base, name, *options]
    if args.batches:
        command += ["--batches", *map(str, args.batches)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit)
        text, why = done.stdout, (done.stderr.strip().splitlines() or ["no message"])[-1]
    except subprocess.TimeoutExpired as late:
        text, why = (late.stdout or b"").decode(), f"takes longer than {args.limit} s"
    results = [json.loads(line) for line in text.splitlines() if line.startswith('{"batch"')]
    if not results:
        raise RuntimeError(why)
    return results


# -- the table --------------------------------------------------------------------------------------------------------

def row_text(args, name, result, seconds):
    rate = result["batch"] * args.sequence / result["step_ms"] * 1e3
    gib = f"{result['bytes'] / 2**30:6.2f}" if result.get("bytes") else "     -"
    predicted = f"{result['predicted_ms']:8.1f}" if "predicted_ms" in result else "       -"
    return f"{name:26} {result['batch']:5d} {rate:9,.0f} {result['step_ms']:9.1f} {predicted} {gib}  {result['loss']:.4f} {seconds:6.0f}"


def rows_named(args, parser):
    every = [*OURS, *PYTORCH, *UNSLOTH]
    chosen = [name for name in every if not args.rows or any(name == row if row in every else name.startswith(row) for row in args.rows)]
    for row in args.rows:
        if not any(name.startswith(row) for name in every):
            parser.error(f"no row {row}; --list prints them")
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path, metavar="DIR")
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--time", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--tune", type=pathlib.Path, metavar="FILE", help="choose kernels by times that are measured on this GPU and kept in FILE; rows' plans are others then")
    parser.add_argument("--device", default="h200")
    parser.add_argument("--cap", type=float, default=24, help="GiB")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batches", type=int, nargs="+", help="of PyTorch's rows")
    parser.add_argument("--limit", type=float, default=300, help="seconds of a row of PyTorch")
    parser.add_argument("--scratch", type=pathlib.Path, default="/tmp", help="folder of the model that Unsloth reads")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    args = parser.parse_args()
    if args.part:
        name = args.rows[0]
        if name == "base":
            write_base(args)
        else:
            train = train_unsloth if name in UNSLOTH else train_peft
            train(args, name, lambda result: print(json.dumps(result), flush=True))
        return
    rows = rows_named(args, parser)
    if args.list:
        print("\n".join(rows))
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.compile or not args.time:
        for name in rows:
            if name in OURS:
                compile_row(args, name)
    if args.compile and not args.time:
        return
    print(f"{'row':26} batch  tokens/s   ms/step  predicted   GiB    loss seconds", flush=True)
    found = {}
    for name in rows:
        begin = time.perf_counter()
        try:
            results = run_ours(args, name) if name in OURS else run_pytorch(args, name)
        except RuntimeError as error:
            print(f"{name:26} {error}", flush=True)
            continue
        found[name] = results
        best = max(results, key=lambda result: result["batch"] / result["step_ms"])
        print(row_text(args, name, best, time.perf_counter() - begin), flush=True)
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
