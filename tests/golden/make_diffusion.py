#!/usr/bin/env python3
"""Write the golden case of a diffusion model: adapters of PEFT beside a small UNet2DConditionModel of diffusers.

Usage: make_diffusion.py OUT_DIR

Needs torch, onnx, safetensors, diffusers and peft. Everything runs on the CPU in float32. Also packs the case into diffusion.tar.xz:
model.onnx, batch.safetensors, and the files that make_adapters.py describes. The model has the layers of Stable Diffusion 1.5's,
few and narrow; adapters are on its attention, on a feed-forward layer, and on convolutions of each kind.
"""
import json
import pathlib
import sys
import tarfile

import diffusers
import torch
from diffusers import UNet2DConditionModel
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file

from make_adapters import train_adapter
from make_golden import settle

ATTENTION = ["to_q", "to_k", "to_v", "to_out.0"]
# A stride of 2, a kernel of 1 x 1, one behind a resize, and a layer whose result two others divide.
OTHERS = r".*\.(downsamplers\.0\.conv|conv_shortcut|upsamplers\.0\.conv|ff\.net\.0\.proj)|conv_in"
SETTINGS = dict(r=2, lora_alpha=3, target_modules=rf".*\.({'|'.join(name.replace('.', chr(92) + '.') for name in ATTENTION)})|{OTHERS}")
OPTIONS = ["--lora-rank", "2", "--lora-alpha", "3", *(word for name in [*ATTENTION, OTHERS] for word in ("--lora-targets", name))]


def unet():
    return UNet2DConditionModel(sample_size=8, block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, cross_attention_dim=12, attention_head_dim=2,
                                down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))


class NoiseLoss(torch.nn.Module):
    def __init__(self, unet):
        super().__init__()
        self.unet = unet

    def forward(self, latents, timestep, encoder_hidden_states, noise):
        return torch.nn.functional.mse_loss(self.unet(latents, timestep, encoder_hidden_states).sample, noise)


def main():
    out = pathlib.Path(sys.argv[1])
    folder = out / "diffusion"
    folder.mkdir(parents=True)
    torch.manual_seed(3)
    model = NoiseLoss(unet()).train()
    batch = {"latents": torch.randn(2, 4, 8, 8), "timestep": torch.tensor([20, 731]), "encoder_hidden_states": torch.randn(2, 5, 12), "noise": torch.randn(2, 4, 8, 8)}
    torch.onnx.export(model, tuple(batch.values()), folder / "model.onnx", dynamo=True, optimize=False, opset_version=20, external_data=False,
                      input_names=list(batch), output_names=["loss"], verbose=False)
    settle(folder / "model.onnx", {}, (torch, diffusers))
    save_file(batch, folder / "batch.safetensors")
    expected = train_adapter(get_peft_model(model.unet, LoraConfig(**SETTINGS)), NoiseLoss, batch, folder)
    (folder / "expected.json").write_text(json.dumps({**expected, "options": OPTIONS, "root": "unet."}, indent=1))
    with tarfile.open(pathlib.Path(__file__).parent / "diffusion.tar.xz", "w:xz", preset=9) as archive:
        archive.add(folder, arcname="diffusion")


if __name__ == "__main__":
    main()
