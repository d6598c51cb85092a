"""The models of zoo_gpu.py in the settings people train them in, each with its loss inside. This is a module, not a program.

ZOO is {name: Case}. A case builds its module and its batch in full size, or small: the same layers, few and narrow, for tests on a CPU. Nothing is
downloaded; weights are random. Settings are the released ones (dropout, drop path, windows, soft caps, tied weights) unless `note` says otherwise.
Needs torch, transformers and timm.
"""
import dataclasses
import math
from collections.abc import Callable

import torch
import torch.nn as nn
import torch.nn.functional as F

from export_zoo import Loss, classified_text, next_token, randint, randn, translated


@dataclasses.dataclass
class Case:
    title: str
    build: Callable[[bool], nn.Module]  # small
    batch: Callable[[bool], dict[str, torch.Tensor]]  # small
    channels_last: bool = False  # PyTorch's side is faster so
    note: str = ""  # what differs from the released settings


ZOO: dict[str, Case] = {}


def padding_mask(batch, rows):
    """Samples are from a quarter of a row to a whole row long."""
    return (torch.arange(rows)[None] < rows // 4 + randint(rows - rows // 4 + 1, batch, 1)).long()


# -- images -----------------------------------------------------------------------------------------------------------

def smoothed(model, x, labels):
    return F.cross_entropy(model(x), labels, label_smoothing=0.1)


def image_model(key, name, title, batch, settings, small, small_size=64, rows=224, channels_last=False, note="", zoo=ZOO):
    def build(is_small):
        import timm

        arguments = dict(model_name=name, pretrained=False, **settings)
        return Loss(timm.create_model(**{**arguments, **(small if is_small else {})}), smoothed)

    def make_batch(is_small):
        count, size = (2, small_size) if is_small else (batch, rows)
        return {"x": randn(count, 3, size, size), "labels": randint(1000, count)}

    zoo[key] = Case(f"{title}, {batch} x {rows}", build, make_batch, channels_last, note)


image_model("convnext", "convnext_tiny", "ConvNeXt-T", 128, dict(drop_path_rate=0.1), dict(depths=(1, 1, 2, 1), dims=(16, 32, 48, 64)), channels_last=True)
image_model("efficientnet", "efficientnet_b0", "EfficientNet-B0", 128, dict(drop_rate=0.2, drop_path_rate=0.2), {}, channels_last=True)
image_model("mobilenetv3", "mobilenetv3_large_100", "MobileNetV3-L", 256, dict(drop_rate=0.2, drop_path_rate=0.2), {}, channels_last=True)
image_model("regnet", "regnety_032", "RegNetY-3.2GF", 128, dict(drop_path_rate=0.1), {}, channels_last=True)
image_model("densenet", "densenet121", "DenseNet-121", 128, {}, dict(block_config=(2, 2, 2, 2)), channels_last=True)
image_model("swin", "swin_tiny_patch4_window7_224", "Swin-T", 128, dict(drop_path_rate=0.2), dict(img_size=56, depths=(2, 2), num_heads=(2, 4), embed_dim=16), small_size=56)
image_model("deit", "deit_small_patch16_224", "DeiT-S", 256, dict(drop_path_rate=0.1), dict(img_size=64, depth=2, embed_dim=96, num_heads=3))
image_model("mixer", "mixer_b16_224", "Mixer-B/16", 128, dict(drop_path_rate=0.1), dict(model_name="mixer_s32_224", img_size=64))
image_model("maxvit", "maxvit_tiny_tf_224", "MaxViT-T", 64, dict(drop_path_rate=0.2), dict(img_size=64, embed_dim=(32, 32, 64, 64), depths=(1, 1, 1, 1), stem_width=16), channels_last=True)


def vit_mae(is_small):
    import transformers as T

    size = dict(image_size=64, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, decoder_hidden_size=32,
                decoder_num_hidden_layers=1, decoder_num_attention_heads=4, decoder_intermediate_size=64) if is_small else {}
    model = T.ViTMAEForPreTraining._from_config(T.ViTMAEConfig(**size), attn_implementation="sdpa")
    return Loss(model, lambda model, x: model(pixel_values=x).loss)


ZOO["vit-mae"] = Case("ViT-MAE base, 128 x 224", vit_mae, lambda small: {"x": randn(2, 3, 64, 64) if small else randn(128, 3, 224, 224)})


class UNet(nn.Module):
    """Ronneberger et al. 2015, with batch norms and padded convolutions."""

    def __init__(self, width, levels, classes=21):
        super().__init__()
        def block(i, o):
            layers = [layer for c in (i, o) for layer in (nn.Conv2d(c, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))]
            return nn.Sequential(*layers)
        widths = [width * 2**level for level in range(levels)]
        self.down = nn.ModuleList([block(i, o) for i, o in zip([3, *widths], widths)])
        self.grow = nn.ModuleList([nn.ConvTranspose2d(2 * o, o, 2, 2) for o in widths[:-1]])
        self.up = nn.ModuleList([block(2 * o, o) for o in widths[:-1]])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        skips = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            skips.append(x)
        for skip, grow, block in reversed(list(zip(skips[:-1], self.grow, self.up))):
            x = block(torch.cat([skip, grow(x)], 1))
        return self.head(x)


def per_pixel(small):
    batch, size = (2, 32) if small else (8, 512)
    return {"x": randn(batch, 3, size, size), "labels": randint(21, batch, size, size)}


ZOO["unet"] = Case("U-Net, 8 x 512", lambda small: Loss(UNet(*((8, 3) if small else (64, 5))), lambda model, x, labels: F.cross_entropy(model(x), labels)),
                   per_pixel, channels_last=True)


class DiffusionBlock(nn.Module):
    def __init__(self, i, o, time):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(math.gcd(32, i), i), nn.Conv2d(i, o, 3, padding=1)
        self.time = nn.Linear(time, o)
        self.norm2, self.dropout, self.conv2 = nn.GroupNorm(math.gcd(32, o), o), nn.Dropout(0.1), nn.Conv2d(o, o, 3, padding=1)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, time):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(self.dropout(F.silu(self.norm2(h))))


class DiffusionAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = nn.GroupNorm(math.gcd(32, width), width), nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x):
        batch, width, rows, columns = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, 3, 1, width, rows * columns).transpose(3, 4).unbind(1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(2, 3).reshape(batch, width, rows, columns))


class DiffusionUNet(nn.Module):
    """The network of Ho et al. 2020 for CIFAR-10: attention at half the size."""

    def __init__(self, width, multiples, blocks):
        super().__init__()
        time, self.width = 4 * width, width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.up, channels, current = nn.ModuleList(), nn.ModuleList(), [width], width
        def stage(i, o, level):
            return nn.ModuleList([DiffusionBlock(i, o, time), DiffusionAttention(o) if level == 1 else nn.Identity()])
        for level, multiple in enumerate(multiples):
            for _ in range(blocks):
                self.down.append(stage(current, width * multiple, level))
                current = width * multiple
                channels.append(current)
            if level + 1 < len(multiples):
                self.down.append(nn.Conv2d(current, current, 3, 2, 1))
                channels.append(current)
        self.middle = nn.ModuleList([DiffusionBlock(current, current, time), DiffusionAttention(current), DiffusionBlock(current, current, time)])
        for level, multiple in reversed(list(enumerate(multiples))):
            for _ in range(blocks + 1):
                self.up.append(stage(current + channels.pop(), width * multiple, level))
                current = width * multiple
            if level:
                self.up.append(nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(current, current, 3, padding=1)))
        self.last = nn.Sequential(nn.GroupNorm(math.gcd(32, current), current), nn.SiLU(), nn.Conv2d(current, 3, 3, padding=1))

    def forward(self, x, step):
        rates = torch.exp(torch.arange(self.width // 2, device=x.device, dtype=x.dtype) * (-math.log(10000) / (self.width // 2)))
        angle = step[:, None].to(x.dtype) * rates
        time = self.time(torch.cat([angle.sin(), angle.cos()], 1))
        x = self.first(x)
        skips = [x]
        for part in self.down:
            x = part[1](part[0](x, time)) if isinstance(part, nn.ModuleList) else part(x)
            skips.append(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, time)), time)
        for part in self.up:
            x = part[1](part[0](torch.cat([x, skips.pop()], 1), time)) if isinstance(part, nn.ModuleList) else part(x)
        return self.last(x)


def noised(small):
    batch, size = (2, 16) if small else (128, 32)
    return {"x": randn(batch, 3, size, size), "step": randint(1000, batch), "noise": randn(batch, 3, size, size, seed=3)}


ZOO["ddpm"] = Case("diffusion U-Net of DDPM, 128 x 32", lambda small: Loss(DiffusionUNet(*((16, (1, 2), 1) if small else (128, (1, 2, 2, 2), 2))),
                   lambda model, x, step, noise: F.mse_loss(model(x, step), noise)), noised, channels_last=True)


# -- text -------------------------------------------------------------------------------------------------------------

def from_config(model_class, config, attention):
    import transformers as T

    return getattr(T, model_class)._from_config(config, attn_implementation=attention)


def with_tokens(settings):
    """Token numbers that every vocabulary has."""
    return {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, **settings}


def language_model(key, family, title, batch, rows, settings, small, model_class=None, attention="sdpa", note="", zoo=ZOO):
    """A decoder that predicts the next token of whole rows."""
    def config(is_small):
        import transformers as T

        return getattr(T, f"{family}Config")(**with_tokens({**settings, **(small if is_small else {})}))

    def make_batch(is_small):
        ids = randint(config(is_small).vocab_size, *((2, 33) if is_small else (batch, rows + 1)))
        return {"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}

    zoo[key] = Case(f"{title}, {batch} x {rows}",
        lambda small: Loss(from_config(model_class or f"{family}ForCausalLM", config(small), attention), next_token), make_batch, note=note)


NARROW = dict(vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64)
GROUPED = dict(NARROW, num_key_value_heads=2)
WINDOWS = dict(GROUPED, head_dim=16, sliding_window=8, layer_types=["sliding_attention", "full_attention"])
language_model("gpt2", "GPT2", "GPT-2 124M", 16, 1024, {}, dict(vocab_size=512, n_embd=64, n_layer=2, n_head=4, n_positions=64), "GPT2LMHeadModel")
language_model("llama", "Llama", "Llama-3.2-1B", 4, 2048, dict(vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
               num_key_value_heads=8, head_dim=64, max_position_embeddings=8192, rope_theta=500000.0, tie_word_embeddings=True, rms_norm_eps=1e-5), dict(GROUPED, head_dim=16))
language_model("qwen3", "Qwen3", "Qwen3-0.6B", 4, 2048, dict(vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
               num_key_value_heads=8, head_dim=128, tie_word_embeddings=True), dict(GROUPED, head_dim=32, layer_types=None))
language_model("gemma2", "Gemma2", "Gemma-2 2B, 8 layers", 1, 4096, dict(vocab_size=256000, hidden_size=2304, intermediate_size=9216, num_hidden_layers=8, num_attention_heads=8,
               num_key_value_heads=4, head_dim=256), dict(WINDOWS, query_pre_attn_scalar=16), attention="eager", note="8 of 26 layers; PyTorch has the soft cap in eager attention alone")
language_model("gemma3", "Gemma3Text", "Gemma-3 1B", 2, 2048, dict(vocab_size=262144, hidden_size=1152, intermediate_size=6912, num_hidden_layers=26, num_attention_heads=4,
               num_key_value_heads=1, head_dim=256, sliding_window=512), dict(WINDOWS, query_pre_attn_scalar=16), "Gemma3ForCausalLM")
language_model("phi", "Phi", "Phi-1.5", 4, 2048, dict(vocab_size=51200, hidden_size=2048, intermediate_size=8192, num_hidden_layers=24, num_attention_heads=32), NARROW)
language_model("mistral", "Mistral", "Mistral-7B, 4 layers", 1, 8192, dict(num_hidden_layers=4, max_position_embeddings=8192), dict(GROUPED, head_dim=16, sliding_window=8), note="4 of 32 layers")


def text_classifier(key, family, title, batch, rows, settings, small, attention="sdpa"):
    """An encoder that classifies rows of different lengths."""
    def config(is_small):
        import transformers as T

        return getattr(T, f"{family}Config")(**{**settings, **(small if is_small else {})})

    def make_batch(is_small):
        size = (2, 32) if is_small else (batch, rows)
        return {"input_ids": randint(config(is_small).vocab_size, *size), "attention_mask": padding_mask(*size), "labels": randint(2, size[0])}

    ZOO[key] = Case(f"{title}, {batch} x {rows}", lambda small: Loss(from_config(f"{family}ForSequenceClassification", config(small), attention),
                                         classified_text), make_batch)


text_classifier("bert", "Bert", "BERT base", 64, 512, {}, NARROW)
text_classifier("roberta", "Roberta", "RoBERTa base", 64, 512, dict(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1), NARROW)
text_classifier("distilbert", "DistilBert", "DistilBERT", 64, 512, {}, dict(vocab_size=512, dim=64, hidden_dim=96, n_layers=2, n_heads=4, max_position_embeddings=64))
text_classifier("deberta", "DebertaV2", "DeBERTa-v3 base", 16, 512, dict(vocab_size=128100, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, type_vocab_size=0,
                relative_attention=True, position_buckets=256, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"], position_biased_input=False,
                max_relative_positions=-1, layer_norm_eps=1e-7), dict(NARROW, position_buckets=8), attention="eager")
text_classifier("albert", "Albert", "ALBERT base", 64, 512, dict(hidden_size=768, num_attention_heads=12, intermediate_size=3072, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
                dict(NARROW, embedding_size=32))


def masked_text(model, input_ids, attention_mask, labels):
    logits = model(input_ids=input_ids, attention_mask=attention_mask).logits
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def modern_bert(small):
    import transformers as T

    size = dict(NARROW, local_attention=8, global_attn_every_n_layers=2) if small else {}
    return Loss(from_config("ModernBertForMaskedLM", T.ModernBertConfig(**with_tokens({"cls_token_id": 0, "sep_token_id": 0, **size})), "sdpa"), masked_text)


def masked_tokens(small):
    size, vocabulary = ((2, 32), 512) if small else ((8, 2048), 50368)
    ids, mask = randint(vocabulary, *size), padding_mask(*size)
    guessed = (randint(10, *size, seed=3) < 3) & (mask == 1)  # 30 % of the tokens, as released
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.where(guessed, ids, -100)}


ZOO["modernbert"] = Case("ModernBERT base, 8 x 2048", modern_bert, masked_tokens)


def t5(small):
    import transformers as T

    size = dict(vocab_size=512, d_model=64, d_ff=96, d_kv=16, num_layers=2, num_heads=4) if small else dict(d_model=768, d_ff=2048, num_layers=12, num_heads=12)
    settings = dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=0)
    return Loss(from_config("T5ForConditionalGeneration", T.T5Config(**settings, **size), "eager"), translated)


def sentences(small):
    size, vocabulary = ((2, 16), 512) if small else ((16, 512), 32128)
    return {"input_ids": randint(vocabulary, *size), "decoder_input_ids": randint(vocabulary, *size, seed=3), "labels": randint(vocabulary, *size, seed=4)}


ZOO["t5"] = Case("T5 v1.1 base, 16 x 512 + 512", t5, sentences)


class LanguageLstm(nn.Module):
    """The medium network of Zaremba et al. 2014."""

    def __init__(self, vocabulary, width):
        super().__init__()
        self.table, self.head, self.dropout = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary), nn.Dropout(0.5)
        self.layers = nn.ModuleList([nn.LSTM(width, width, batch_first=True) for _ in range(2)])

    def forward(self, input_ids):
        x = self.dropout(self.table(input_ids))
        for layer in self.layers:
            x = self.dropout(layer(x)[0])
        return self.head(x)


def lstm_tokens(small):
    ids = randint(*((512, 2, 9) if small else (10000, 64, 129)))
    return {"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


def lstm_loss(model, input_ids, labels):
    return F.cross_entropy(model(input_ids).flatten(0, 1), labels.flatten())


ZOO["lstm"] = Case("LSTM 2 x 650, 64 x 128", lambda small: Loss(LanguageLstm(*((512, 32) if small else (10000, 650))), lstm_loss), lstm_tokens)


# -- several kinds of input -------------------------------------------------------------------------------------------

def clip(small):
    import transformers as T

    text = dict(vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=16, eos_token_id=511) if small else {}
    vision = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, image_size=64) if small else {}
    config = T.CLIPConfig(text_config=text, vision_config=vision)
    return Loss(from_config("CLIPModel", config, "sdpa"), lambda model, input_ids, attention_mask, x:
                model(input_ids=input_ids, attention_mask=attention_mask, pixel_values=x, return_loss=True).loss)


def captions(small):
    batch, rows, size, vocabulary = (2, 16, 64, 512) if small else (256, 77, 224, 49408)
    return {"input_ids": randint(vocabulary, batch, rows), "attention_mask": padding_mask(batch, rows), "x": randn(batch, 3, size, size)}


ZOO["clip"] = Case("CLIP ViT-B/32, 256", clip, captions)


def whisper(small):
    import transformers as T

    size = dict(vocab_size=512, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
                max_source_positions=32, max_target_positions=16, num_mel_bins=16) if small else \
           dict(vocab_size=51865, d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072)
    return Loss(from_config("WhisperForConditionalGeneration", T.WhisperConfig(**with_tokens({"decoder_start_token_id": 0, **size})), "sdpa"), transcribed)


def transcribed(model, features, decoder_input_ids, labels):
    logits = model(input_features=features, decoder_input_ids=decoder_input_ids, use_cache=False).logits
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def speech(small):
    batch, bands, frames, rows, vocabulary = (2, 16, 64, 16, 512) if small else (8, 80, 3000, 448, 51865)
    ids = randint(vocabulary, batch, rows + 1)
    return {"features": randn(batch, bands, frames), "decoder_input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


ZOO["whisper"] = Case("Whisper small, 8 x 3000 + 448", whisper, speech)


def wav2vec2(model_class, loss):
    def build(small):
        import transformers as T

        size = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, conv_dim=(16, 16, 16), conv_kernel=(10, 3, 3), conv_stride=(5, 2, 2),
                    num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, classifier_proj_size=32) if small else {}
        return Loss(from_config(model_class, T.Wav2Vec2Config(**size, layerdrop=0.0, apply_spec_augment=False), "sdpa"), loss)

    return build


UNDRAWN = "without layer drop and SpecAugment, which Python draws"
ZOO["wav2vec2"] = Case("Wav2Vec2 base, 8 x 160000", wav2vec2("Wav2Vec2ForSequenceClassification", lambda model, x, labels: F.cross_entropy(model(input_values=x).logits, labels)),
                       lambda small: {"x": randn(*((2, 800) if small else (8, 160000))), "labels": randint(2, 2 if small else 8)}, note=UNDRAWN)


def aligned(model, x, labels):
    """CTC over labels of equal length."""
    scores = F.log_softmax(model(input_values=x).logits.float(), -1).transpose(0, 1)
    count, rows, frames = labels.shape[0], labels.shape[1], scores.shape[0]
    return F.ctc_loss(scores, labels, torch.full((count,), frames), torch.full((count,), rows))


ZOO["wav2vec2-ctc"] = Case("Wav2Vec2 base with CTC, 8 x 160000", wav2vec2("Wav2Vec2ForCTC", aligned),
                           lambda small: {"x": randn(*((2, 800) if small else (8, 160000))), "labels": 1 + randint(31, *((2, 4) if small else (8, 100)))}, note=UNDRAWN)
