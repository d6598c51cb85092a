"""Models, batches, exports and PyTorch's training step for the comparisons with PyTorch. This is a module, not a program.

A step is forward, backward and AdamW in bf16 with fp32 weights, on one random batch; dropout is off but in the cases named after it. Needs torch, torchvision,
transformers, onnxscript and safetensors.
"""
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import time

WARM_UP = 10
SETTINGS = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
# name: (family, batch, rows of a sequence or of an image)
CASES = {
    "gpt2_b16": ("gpt2", 16, 1024),
    "gpt2_b64": ("gpt2", 64, 1024),
    "gpt2_xl_b8": ("gpt2_xl", 8, 1024),
    "resnet50_b256": ("resnet50", 256, 224),
    "bert_base_b64": ("bert", 64, 512),
    "vit_l16_b64": ("vit", 64, 224),
    "vit_l16_b256": ("vit", 256, 224),
    "deeplabv3_b48": ("deeplabv3", 48, 512),
    "gpt2_dropout_b16": ("gpt2_dropout", 16, 1024),  # as released
    "bert_dropout_b64": ("bert_dropout", 64, 512),  # as released, with a padding mask
    "tiny_gpt2": ("tiny_gpt2", 4, 64),  # tests the scripts on a machine without a GPU
}
GPT2_SIZES = {"gpt2": {}, "gpt2_dropout": {}, "tiny_gpt2": {"n_layer": 2, "n_embd": 64, "n_head": 2}, "gpt2_xl": {"n_layer": 48, "n_embd": 1600, "n_head": 25}}
BLOCKS = {"GPT2Block", "EncoderBlock", "Bottleneck", "BertLayer"}  # modules with activation checkpoints around them


def build(family, rows):
    import torch

    class WithLoss(torch.nn.Module):
        def __init__(self, model, logits):
            super().__init__()
            self.model, self.logits = model, logits

        def forward(self, x, labels, mask=None):
            logits = self.logits(self.model, x) if mask is None else self.logits(self.model, x, mask)
            if logits.dim() == 4:  # a class for each pixel
                return torch.nn.functional.cross_entropy(logits, labels)
            return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

    torch.manual_seed(0)
    dropout = 0.1 if family.endswith("_dropout") else 0.0
    if family in GPT2_SIZES:
        import transformers
        size = GPT2_SIZES[family]
        config = transformers.GPT2Config(attn_implementation="sdpa", resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, **size)
        return WithLoss(transformers.GPT2LMHeadModel(config), lambda m, x: m(input_ids=x, use_cache=False).logits)
    if family in ("bert", "bert_dropout"):
        import transformers
        config = transformers.BertConfig(attn_implementation="sdpa", hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        return WithLoss(transformers.BertForSequenceClassification(config), lambda m, x, mask=None: m(input_ids=x, attention_mask=mask).logits)
    import torchvision
    if family == "deeplabv3":
        model = torchvision.models.segmentation.deeplabv3_resnet101(weights=None, weights_backbone=None)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return WithLoss(model, lambda m, x: m(x)["out"])
    model = torchvision.models.vit_l_16() if family == "vit" else torchvision.models.resnet50()
    return WithLoss(model, lambda m, x: m(x))


def make_batch(family, batch, rows):
    import torch

    generator = torch.Generator().manual_seed(1)
    def whole(high, *shape):
        return torch.randint(0, high, shape, generator=generator)
    if family in GPT2_SIZES:
        return {"x": whole(50257, batch, rows), "labels": whole(50257, batch, rows)}
    if family in ("bert", "bert_dropout"):
        inputs = {"x": whole(30522, batch, rows), "labels": whole(2, batch)}
        if family == "bert_dropout":  # from a quarter to all of a row
            inputs["mask"] = (torch.arange(rows)[None] < rows // 4 + whole(3 * rows // 4 + 1, batch, 1)).long()
        return inputs
    images = torch.randn(batch, 3, rows, rows, generator=generator)
    return {"x": images, "labels": whole(21, batch, rows, rows) if family == "deeplabv3" else whole(1000, batch)}


def export(case, folder, batch=None):
    """Writes model.onnx, and batch.safetensors with the case's batch or the given one."""
    import safetensors.torch

    family, whole_batch, rows = CASES[case]
    inputs = make_batch(family, batch or whole_batch, rows)
    export_program(build(family, rows), inputs).save(folder / "model.onnx", external_data=True)
    safetensors.torch.save_file(inputs, folder / "batch.safetensors")


def export_program(model, inputs):
    """The ONNX program of a training step's loss."""
    import torch

    return torch.onnx.export(model.train(), tuple(inputs.values()), dynamo=True, optimize=False, opset_version=20, input_names=list(inputs), output_names=["loss"], verbose=False)


def export_apart(case, folder, batch=None):
    """Exports in its own process, so that nothing stays on the device."""
    call = f"import gpu_training, pathlib; gpu_training.export({case!r}, pathlib.Path({str(folder)!r}), {batch!r})"
    subprocess.run([sys.executable, "-c", call], check=True, cwd=pathlib.Path(__file__).parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def compile_options():
    return [part for key, value in SETTINGS.items() for part in ("--" + key.replace("_", "-"), str(value))] + ["--precision", "bf16", "--optimizer", "adamw"]


def process_bytes():
    """Bytes that the driver counts for this process; None if it cannot say."""
    try:
        import pynvml

        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):  # CUDA_VISIBLE_DEVICES may have chosen any of them
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(index)):
                if process.pid == os.getpid():
                    return process.usedGpuMemory
    except Exception:  # no driver, no package, or a container that hides processes
        pass
    return None


def cap_memory(cap_bytes):
    """Limits this process to `cap_bytes`: PyTorch's allocator gets the bytes that its context leaves."""
    import torch

    torch.zeros(1, device="cuda")
    context = (process_bytes() or 600 * 2**20) - torch.cuda.memory_reserved()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(max(cap_bytes - context, 1) / total)


def checkpoint_blocks(model):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

    apply_activation_checkpointing(model, check_fn=lambda module: type(module).__name__ in BLOCKS)


@contextlib.contextmanager
def timed(device, times):
    """Adds the milliseconds of its body."""
    import torch

    if device != "cuda":
        begin = time.perf_counter()
        yield
        times.append(1e3 * (time.perf_counter() - begin))
        return
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    yield
    end.record()
    end.synchronize()
    times.append(start.elapsed_time(end))


def time_batches(batches, steps, warm_up, device, optimizer, loss_for, say):
    """Says a result for each batch size, from the first on until one does not fit. loss_for(batch) makes the inputs and returns what computes the loss of them."""
    import torch

    on_gpu = device != "cpu"
    for batch in batches:
        begin, times = time.perf_counter(), []
        loss_of_inputs = loss_for(batch)
        try:
            for _ in range(warm_up + steps):
                with timed(device, times):
                    optimizer.zero_grad(set_to_none=True)
                    loss = loss_of_inputs()
                    loss.backward()
                    optimizer.step()
        except torch.OutOfMemoryError:
            break
        say({"batch": batch, "step_ms": statistics.median(times[warm_up:]), "loss": loss.item(), "bytes": process_bytes() or (torch.cuda.max_memory_reserved() if on_gpu else None),
             "seconds": time.perf_counter() - begin})
        del loss, loss_of_inputs
        if on_gpu:
            torch.cuda.empty_cache()


def train(case, steps, compile_mode=None, micro_batches=1, checkpoints=False, saved_share=None, cap_bytes=None, device="cuda", warm_up=WARM_UP):
    """Trains a case with PyTorch. compile_mode: None is eager. saved_share: torch.compile's activation_memory_budget."""
    import torch

    if cap_bytes and device == "cuda":
        cap_memory(cap_bytes)
    family, batch, rows = CASES[case]
    model = build(family, rows).to(device)
    if checkpoints:
        checkpoint_blocks(model)
    if saved_share is not None:
        import torch._functorch.config
        torch._functorch.config.activation_memory_budget = saved_share
    inputs = {name: tensor.to(device) for name, tensor in make_batch(family, batch, rows).items()}
    return train_model(model, inputs, steps, compile_mode, micro_batches, family in ("resnet50", "deeplabv3"), warm_up)


def train_model(model, inputs, steps, compile_mode=None, micro_batches=1, channels_last=False, warm_up=WARM_UP, alone=contextlib.nullcontext, rounds=1):
    """Trains a model with its loss inside on one batch; both lie on the same device. All but the first step, which compiles, run within alone(). Of several rounds of steps the one with the
    least median counts."""
    import torch

    device = next(iter(inputs.values())).device.type
    model = model.train()
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        inputs = {name: tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor for name, tensor in inputs.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=SETTINGS["lr"], betas=(SETTINGS["beta1"], SETTINGS["beta2"]),
                                  eps=SETTINGS["eps"], weight_decay=SETTINGS["weight_decay"], fused=True)
    run = torch.compile(model, mode=compile_mode) if compile_mode else model
    parts = [tuple(part) for part in zip(*(tensor.chunk(micro_batches) for tensor in inputs.values()))]
    begin, times = time.perf_counter(), []

    def step():
        with timed(device, times):
            optimizer.zero_grad(set_to_none=True)
            for part in parts:
                with torch.autocast(device, dtype=torch.bfloat16):
                    loss = run(*part)
                (loss / len(parts)).backward()
            optimizer.step()
        return loss.item()

    loss, first_ms = step(), 1e3 * (time.perf_counter() - begin)
    with alone():
        for _ in range(warm_up + rounds * steps - 1):
            loss = step()
    on_gpu = device == "cuda"
    step_ms = min((times[first:first + steps] for first in range(warm_up, len(times), steps)), key=statistics.median)
    return {"step_ms": step_ms, "loss": loss, "compile_ms": first_ms,
            "allocated": torch.cuda.max_memory_allocated() if on_gpu else None,
            "reserved": torch.cuda.max_memory_reserved() if on_gpu else None, "process": process_bytes()}
