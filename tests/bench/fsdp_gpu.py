#!/usr/bin/env python3
"""Times PyTorch's FSDP2 with compiled layers on the GPUs of one machine: all weights of a Llama, in bf16 with f32 masters and AdamW.

Usage: fsdp_gpu.py [--shape 7b] [--rows 4] [--tokens 2048] [--ranks 2] [--steps 10] [--checkpoint] [--sums float32]

It is what plans of `--zero 3` are compared with: each layer's parameters are divided over the cards, gathered in bf16 where the layer is computed, and
gathered again in its backward pass. --checkpoint keeps nothing of a layer but its input. Prints the median milliseconds per step, tokens per second
and card, and the largest GiB that PyTorch reserved on the first card.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from start_ranks import start_ranks  # noqa: E402

SHAPES = {  # hidden size, of the gated layer, layers, heads
    "7b": (4096, 11008, 32, 32),
    "13b": (5120, 13824, 40, 40),
    "tiny": (64, 128, 2, 4),
}
WARM_UP = 4


def train(args):
    import torch
    import transformers
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    hidden, gated, layers, heads = SHAPES[args.shape]
    config = transformers.LlamaConfig(hidden_size=hidden, intermediate_size=gated, num_hidden_layers=layers, num_attention_heads=heads,
                                      attn_implementation="sdpa", use_cache=False)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, args.sums))
    for i, layer in enumerate(model.model.layers):
        if args.checkpoint:
            layer = model.model.layers[i] = checkpoint_wrapper(layer)
        layer.compile()
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().normal_(std=0.02) if parameter.dim() > 1 else parameter.to_local().fill_(1)
    positions = torch.arange(0, hidden // heads, 2, device="cuda").float() / (hidden // heads)
    model.model.rotary_emb.inv_freq = 1.0 / 10000 ** positions  # a buffer, which to_empty left without values
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens = torch.randint(0, 32000, (args.rows, args.tokens), device="cuda", generator=torch.Generator("cuda").manual_seed(rank))
    times = []
    for _ in range(WARM_UP + args.steps):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        logits = model(input_ids=tokens).logits
        torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens.reshape(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    print(json.dumps({"step_ms": times[WARM_UP:], "reserved": torch.cuda.max_memory_reserved()}))
    torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="7b")
    parser.add_argument("--rows", type=int, default=4, help="sequences a card and step")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--sums", choices=("float32", "bfloat16"), default="float32", help="type in which gradients are summed over the cards")
    parser.add_argument("--timeout", type=int, default=300)
    args = parser.parse_args()
    if "RANK" in os.environ:
        return train(args)
    done = json.loads(start_ranks([sys.executable, __file__, *sys.argv[1:]], args.ranks, args.timeout).strip().splitlines()[-1])
    ms = statistics.median(done["step_ms"])
    print(f"FSDP2, Llama {args.shape}, {args.rows} x {args.tokens} a card{', checkpoints' if args.checkpoint else ''}: {ms:.1f} ms, "
          f"{args.rows * args.tokens / ms * 1e3:,.0f} tokens/s a card, {done['reserved'] / 2**30:.1f} GiB reserved")


if __name__ == "__main__":
    main()
