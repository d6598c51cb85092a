#!/usr/bin/env python3
"""Turns a Hugging Face data set of texts with labels into shards for a model such as BERT.

Usage: from_hugging_face.py DATASET OUT_FOLDER --tokenizer NAME [--subset NAME] [--split train] [--text COLUMN]
       [--pair COLUMN] [--label COLUMN] [--length 128] [--shard 65536]

DATASET and the tokenizer's NAME are names on the hub or folders on this machine. Writes input_ids, attention_mask, for
tokenizers that have them token_type_ids, and labels; texts are cut or padded to --length tokens.
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
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    data = load_dataset(args.dataset, args.subset, split=args.split)
    args.out.mkdir(parents=True, exist_ok=True)
    for number, first in enumerate(range(0, len(data), args.shard)):
        rows = data[first:first + args.shard]
        encoded = tokenizer(rows[args.text], rows[args.pair] if args.pair else None, truncation=True, padding="max_length",
                            max_length=args.length, return_tensors="np")
        arrays = {name: array.astype(numpy.int64) for name, array in encoded.items()}
        arrays["labels"] = numpy.array(rows[args.label], numpy.int64)
        write_safetensors(args.out / f"{number:05}.safetensors", arrays)
    print(f"{args.out}: {len(data)} samples of {args.length} tokens: {', '.join(arrays)}")


if __name__ == "__main__":
    main()
