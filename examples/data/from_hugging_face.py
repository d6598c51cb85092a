#!/usr/bin/env python3
"""Turns a Hugging Face data set of texts with labels into shards for a model such as BERT.

Usage: from_hugging_face.py DATASET OUT_FOLDER --tokenizer NAME [--subset NAME] [--split train] [--text COLUMN]
       [--pair COLUMN] [--label COLUMN] [--length 128] [--shard 65536] [--no-padding]

DATASET and the tokenizer's NAME are names on the hub or folders on this machine. Writes input_ids, attention_mask, for
tokenizers that have them token_type_ids, and labels; texts are cut or padded to --length tokens. With --no-padding they are
only cut: each file has the tokens of all its texts one behind the other with their offsets, no attention_mask, and Plimsoll
pads them to the length of the plan.
"""
import argparse
import pathlib

import numpy
from datasets import load_dataset
from transformers import AutoTokenizer

from tensors import write_safetensors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--subset")
    parser.add_argument("--split", default="train")
    parser.add_argument("--text", default="text")
    parser.add_argument("--pair", help="column of a second text, behind the first")
    parser.add_argument("--label", default="label")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--shard", type=int, default=65536, help="samples per file")
    parser.add_argument("--no-padding", action="store_true")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    data = load_dataset(args.dataset, args.subset, split=args.split)
    args.out.mkdir(parents=True, exist_ok=True)
    for number, first in enumerate(range(0, len(data), args.shard)):
        rows = data[first:first + args.shard]
        encoded = tokenizer(rows[args.text], rows[args.pair] if args.pair else None, truncation=True, max_length=args.length,
                            padding=False if args.no_padding else "max_length")
        if args.no_padding:
            del encoded["attention_mask"]
            arrays = {name: numpy.concatenate(values).astype(numpy.int64) for name, values in encoded.items()}
            arrays["offsets"] = numpy.cumsum([0] + [len(ids) for ids in encoded["input_ids"]]).astype(numpy.int64)
        else:
            arrays = {name: numpy.array(values, numpy.int64) for name, values in encoded.items()}
        arrays["labels"] = numpy.array(rows[args.label], numpy.int64)
        write_safetensors(args.out / f"{number:05}.safetensors", arrays)
    print(f"{args.out}: {len(data)} samples of {'up to ' if args.no_padding else ''}{args.length} tokens: {', '.join(arrays)}")


if __name__ == "__main__":
    main()
