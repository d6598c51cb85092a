#!/usr/bin/env python3
"""One training step of some models of zoo_models.py in JAX, by hand: bf16 with f32 weights, optax's AdamW, one jitted function.

Usage: zoo_jax.py NAME [--steps 20] [--small]

Prints one JSON line: step_ms (median), p10, p90, loss, process (NVML's bytes), seconds of compiling. Attention is jax.nn.dot_product_attention, by cuDNN
where that takes it; it has no dropout, which the other sides of the table draw. Needs jax and optax.
"""
import argparse
import functools
import importlib.util
import json
import math
import os
import statistics
import time
import warnings

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import optax

WARM_UP = 10
HALF = jnp.bfloat16


# -- layers: parameters are dictionaries of f32 arrays ----------------------------------------------------------------

class Draw:
    """Draws first values one after the other."""

    def __init__(self):
        self.key = jax.random.key(0)

    def normal(self, *shape):
        self.key, own = jax.random.split(self.key)
        return 0.02 * jax.random.normal(own, shape, jnp.float32)

    def dense(self, inputs, outputs, bias=True):
        return {"w": self.normal(inputs, outputs), **({"b": jnp.zeros(outputs)} if bias else {})}

    @staticmethod
    def norm(width, bias=True):
        return {"scale": jnp.ones(width), **({"bias": jnp.zeros(width)} if bias else {})}


def dense(p, x):
    y = x @ p["w"].astype(HALF)
    return y + p["b"].astype(HALF) if "b" in p else y


def layer_norm(p, x, eps=1e-5):
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    return ((wide - mean) * jax.lax.rsqrt(wide.var(-1, keepdims=True) + eps) * p["scale"] + p["bias"]).astype(HALF)


def rms_norm(p, x, eps=1e-5):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + eps) * p["scale"]).astype(HALF)


def dropout(x, rate, key):
    return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0).astype(x.dtype)


def drop_path(x, rate, key):
    kept = jax.random.bernoulli(key, 1 - rate, (x.shape[0],) + (1,) * (x.ndim - 1))
    return (x * kept / (1 - rate)).astype(x.dtype) if rate > 0 else x


def attention(q, k, v, causal):
    by_cudnn = jax.default_backend() == "gpu" and q.shape[1] % 64 == 0  # it takes no odd numbers of rows
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="cudnn" if by_cudnn else "xla")


def heads_of(x, heads):
    return x.reshape(*x.shape[:2], heads, -1)


def cross_entropy(scores, labels, smoothing=0.0):
    logs = jax.nn.log_softmax(scores.astype(jnp.float32))
    own = jnp.take_along_axis(logs, labels[..., None], -1)[..., 0]
    return -((1 - smoothing) * own + smoothing * logs.mean(-1)).mean()


def mlp(p, x, activation):
    return dense(p["down"], activation(dense(p["up"], x)))


def draw_mlp(draw, width, inner):
    return {"up": draw.dense(width, inner), "down": draw.dense(inner, width)}


# -- models: (draw, small) to parameters and settings, and the loss of a batch ----------------------------------------

def gpt2(draw, small):
    width, depth, heads, rows, vocabulary, batch = (64, 2, 4, 64, 512, 2) if small else (768, 12, 12, 1024, 50257, 16)
    params = {"words": draw.normal(vocabulary, width), "places": draw.normal(rows, width), "norm": draw.norm(width),
              "blocks": [{"norm1": draw.norm(width), "qkv": draw.dense(width, 3 * width), "out": draw.dense(width, width), "norm2": draw.norm(width),
                          "mlp": draw_mlp(draw, width, 4 * width)} for _ in range(depth)]}

    def loss(params, batch, key):
        keys = iter(jax.random.split(key, 2 * depth + 1))
        x = dropout((params["words"][batch["ids"]] + params["places"]).astype(HALF), 0.1, next(keys))
        for p in params["blocks"]:
            q, k, v = (heads_of(part, heads) for part in jnp.split(dense(p["qkv"], layer_norm(p["norm1"], x)), 3, -1))
            x = x + dropout(dense(p["out"], attention(q, k, v, True).reshape(x.shape)), 0.1, next(keys))
            x = x + dropout(mlp(p["mlp"], layer_norm(p["norm2"], x), functools.partial(jax.nn.gelu, approximate=True)), 0.1, next(keys))
        return cross_entropy(layer_norm(params["norm"], x) @ params["words"].astype(HALF).T, batch["labels"])

    return params, tokens(vocabulary, batch, rows), loss


def rotate(x, base):
    rows, size = x.shape[1], x.shape[-1]
    angles = jnp.arange(rows)[:, None] * base ** (-jnp.arange(0, size, 2) / size)
    sin, cos = (f(jnp.concatenate([angles, angles], -1))[None, :, None].astype(HALF) for f in (jnp.sin, jnp.cos))
    low, high = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-high, low], -1) * sin


def llama(draw, small):
    width, inner, depth, heads, kv_heads, rows, vocabulary, batch = (64, 96, 2, 4, 2, 64, 512, 2) if small else (2048, 8192, 16, 32, 8, 2048, 128256, 4)
    size = width // heads
    params = {"words": draw.normal(vocabulary, width), "norm": draw.norm(width, bias=False),
              "blocks": [{"norm1": draw.norm(width, bias=False), "norm2": draw.norm(width, bias=False),
                          **{name: draw.dense(i, o, bias=False) for name, i, o in (("q", width, width), ("k", width, kv_heads * size), ("v", width, kv_heads * size), ("o", width, width),
                             ("gate", width, inner), ("up", width, inner), ("down", inner, width))}} for _ in range(depth)]}

    def loss(params, batch, key):
        x = params["words"][batch["ids"]].astype(HALF)
        for p in params["blocks"]:
            h = rms_norm(p["norm1"], x)
            q, k = (rotate(heads_of(dense(p[name], h), count), 500000.0) for name, count in (("q", heads), ("k", kv_heads)))
            x = x + dense(p["o"], attention(q, k, heads_of(dense(p["v"], h), kv_heads), True).reshape(x.shape))
            h = rms_norm(p["norm2"], x)
            x = x + dense(p["down"], jax.nn.silu(dense(p["gate"], h)) * dense(p["up"], h))
        return cross_entropy(rms_norm(params["norm"], x) @ params["words"].astype(HALF).T, batch["labels"])

    return params, tokens(vocabulary, batch, rows), loss


def patches(x, size):
    batch, channels, rows, columns = x.shape
    cut = x.reshape(batch, channels, rows // size, size, columns // size, size)
    return cut.transpose(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * size * size).astype(HALF)


def deit(draw, small):
    width, depth, heads, image, batch = (96, 2, 3, 64, 2) if small else (384, 12, 6, 224, 256)
    rows = (image // 16) ** 2 + 1
    params = {"patches": draw.dense(768, width), "first": draw.normal(1, 1, width), "places": draw.normal(rows, width), "norm": draw.norm(width), "head": draw.dense(width, 1000),
              "blocks": [{"norm1": draw.norm(width), "qkv": draw.dense(width, 3 * width), "out": draw.dense(width, width), "norm2": draw.norm(width),
                          "mlp": draw_mlp(draw, width, 4 * width)} for _ in range(depth)]}

    def loss(params, batch, key):
        keys = iter(jax.random.split(key, 2 * depth))
        x = dense(params["patches"], patches(batch["x"], 16))
        x = jnp.concatenate([jnp.broadcast_to(params["first"], (x.shape[0], 1, width)).astype(HALF), x], 1) + params["places"].astype(HALF)
        for i, p in enumerate(params["blocks"]):
            rate = 0.1 * i / (depth - 1)
            q, k, v = (heads_of(part, heads) for part in jnp.split(dense(p["qkv"], layer_norm(p["norm1"], x, 1e-6)), 3, -1))
            x = x + drop_path(dense(p["out"], attention(q, k, v, False).reshape(x.shape)), rate, next(keys))
            x = x + drop_path(mlp(p["mlp"], layer_norm(p["norm2"], x, 1e-6), functools.partial(jax.nn.gelu, approximate=False)), rate, next(keys))
        return cross_entropy(dense(params["head"], layer_norm(params["norm"], x, 1e-6)[:, 0]), batch["labels"], 0.1)

    return params, images(batch, image), loss


def mixer(draw, small):
    width, depth, image, batch = (96, 2, 64, 2) if small else (768, 12, 224, 128)
    rows = (image // 16) ** 2
    params = {"patches": draw.dense(768, width), "norm": draw.norm(width), "head": draw.dense(width, 1000),
              "blocks": [{"norm1": draw.norm(width), "tokens": draw_mlp(draw, rows, width // 2), "norm2": draw.norm(width), "channels": draw_mlp(draw, width, 4 * width)} for _ in range(depth)]}

    def loss(params, batch, key):
        keys = iter(jax.random.split(key, 2 * depth))
        gelu = functools.partial(jax.nn.gelu, approximate=False)
        x = dense(params["patches"], patches(batch["x"], 16))
        for p in params["blocks"]:
            mixed = mlp(p["tokens"], layer_norm(p["norm1"], x, 1e-6).transpose(0, 2, 1), gelu).transpose(0, 2, 1)
            x = x + drop_path(mixed, 0.1, next(keys))
            x = x + drop_path(mlp(p["channels"], layer_norm(p["norm2"], x, 1e-6), gelu), 0.1, next(keys))
        return cross_entropy(dense(params["head"], layer_norm(params["norm"], x, 1e-6).mean(1)), batch["labels"], 0.1)

    return params, images(batch, image), loss


def lstm(draw, small):
    width, rows, vocabulary, batch = (32, 8, 512, 2) if small else (650, 128, 10000, 64)
    params = {"words": draw.normal(vocabulary, width), "head": draw.dense(width, vocabulary),
              "layers": [{"x": draw.dense(width, 4 * width), "h": draw.dense(width, 4 * width)} for _ in range(2)]}

    def loss(params, batch, key):
        keys = jax.random.split(key, 3)
        x = dropout(params["words"][batch["ids"]].astype(HALF), 0.5, keys[0])
        for p, own in zip(params["layers"], keys[1:]):
            def step(state, gates_of_x):
                h, c = state
                i, f, g, o = jnp.split(gates_of_x + dense(p["h"], h), 4, -1)
                c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
                h = jax.nn.sigmoid(o) * jnp.tanh(c)
                return (h, c), h

            zeros = jnp.zeros((x.shape[0], width), HALF)
            x = dropout(jax.lax.scan(step, (zeros, zeros), dense(p["x"], x).swapaxes(0, 1))[1].swapaxes(0, 1), 0.5, own)
        return cross_entropy(dense(params["head"], x), batch["labels"])

    return params, tokens(vocabulary, batch, rows), loss


def tokens(vocabulary, batch, rows):
    ids = jax.random.randint(jax.random.key(1), (batch, rows + 1), 0, vocabulary)
    return {"ids": ids[:, :-1], "labels": ids[:, 1:]}


def images(batch, size):
    return {"x": jax.random.normal(jax.random.key(1), (batch, 3, size, size)), "labels": jax.random.randint(jax.random.key(2), (batch,), 0, 1000)}


MODELS = {"gpt2": gpt2, "llama": llama, "deit": deit, "mixer": mixer, "lstm": lstm}


def held_bytes():
    if importlib.util.find_spec("pynvml") is None or jax.default_backend() != "gpu":
        return None
    import pynvml

    pynvml.nvmlInit()
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    return max((process.usedGpuMemory or 0 for process in processes), default=None)  # it is alone on the GPU


def main():
    warnings.filterwarnings("ignore")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    if jax.default_backend() == "gpu":
        jax.config.update("jax_default_prng_impl", "rbg")  # draws as fast as memory takes them
    params, batch, loss = MODELS[args.name](Draw(), args.small)
    optimizer = optax.adamw(1e-4)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, batch, key):
        value, gradients = jax.value_and_grad(loss)(params, batch, key)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    state, times, begin = optimizer.init(params), [], time.perf_counter()
    for i in range(WARM_UP + args.steps + 1):
        start = time.perf_counter()
        params, state, value = step(params, state, batch, jax.random.key(i))
        value.block_until_ready()
        times.append(1e3 * (time.perf_counter() - start))
    compiled_s, times = times[0] / 1e3, sorted(times[1 + WARM_UP:])
    assert math.isfinite(float(value)), "the loss is not finite"
    print(json.dumps({"side": "jax", "step_ms": statistics.median(times), "p10": times[len(times) // 10], "p90": times[len(times) * 9 // 10], "loss": float(value),
                      "process": held_bytes(), "compile_s": compiled_s, "seconds": time.perf_counter() - begin}))


if __name__ == "__main__":
    main()
