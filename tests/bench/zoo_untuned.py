"""Models of zoo_gpu.py on which no kernel was tuned and to which no price was fitted: what they show, a user's model will show. This is a module.

UNTUNED is {name: Case}, as ZOO in zoo_models.py, with those of zoo_kinds.py, zoo_transformers.py and zoo_recent.py behind its own; zoo_gpu.py takes them where --only or --untuned names them.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

from export_zoo import Loss, classified_text, randint, randn
from zoo_kinds import KINDS
from zoo_models import GROUPED, NARROW, UNDRAWN, Case, from_config, image_model, language_model, padding_mask
from zoo_recent import RECENT
from zoo_transformers import TRANSFORMERS

UNTUNED: dict[str, Case] = {}


def images(key, name, title, batch, settings, small, **more):
    image_model(key, name, title, batch, settings, small, zoo=UNTUNED, **more)


images("efficientnetv2", "tf_efficientnetv2_s", "EfficientNetV2-S", 64, dict(drop_rate=0.2, drop_path_rate=0.2), {}, channels_last=True)
images("resnext", "resnext50_32x4d", "ResNeXt-50 32x4d", 128, {}, {}, channels_last=True)
images("convnextv2", "convnextv2_tiny", "ConvNeXt V2-T", 128, dict(drop_path_rate=0.1), dict(depths=(1, 1, 2, 1), dims=(16, 32, 48, 64)), channels_last=True)
images("resnetv2", "resnetv2_50x1_bit", "BiT ResNet-50", 128, {}, {}, channels_last=True)
images("hrnet", "hrnet_w18", "HRNet-W18", 64, {}, {}, channels_last=True)
images("pvt", "pvt_v2_b2", "PVT v2-B2", 128, dict(drop_path_rate=0.1), dict(depths=(1, 1, 1, 1)))
images("xcit", "xcit_small_12_p16_224", "XCiT-S12", 128, dict(drop_path_rate=0.05), dict(img_size=64, depth=2, embed_dim=48, num_heads=4))
images("vgg", "vgg16_bn", "VGG-16", 64, dict(drop_rate=0.5), dict(mlp_ratio=1 / 64), rows=224, small_size=224, channels_last=True)
images("nfnet", "eca_nfnet_l0", "ECA-NFNet-L0", 128, dict(drop_rate=0.2, drop_path_rate=0.25), {}, channels_last=True)
images("vit-huge", "vit_huge_patch14_224", "ViT-H/14", 32, dict(drop_path_rate=0.3), dict(img_size=56, depth=2, embed_dim=96, num_heads=4, num_classes=1000), small_size=56)
images("coatnet", "coatnet_0_rw_224", "CoAtNet-0", 128, dict(drop_path_rate=0.2), dict(img_size=64, embed_dim=(32, 32, 64, 64), depths=(1, 1, 1, 1), stem_width=16), channels_last=True)
images("mobilevit", "mobilevit_s", "MobileViT-S", 128, dict(drop_rate=0.1), {}, rows=256, channels_last=True)
images("inception", "inception_v3", "Inception v3", 128, dict(drop_rate=0.2), {}, rows=299, small_size=96, channels_last=True)
images("ghostnet", "ghostnetv2_100", "GhostNetV2", 256, dict(drop_rate=0.2), {}, channels_last=True)
images("res2net", "res2net50_26w_4s", "Res2Net-50 26w 4s", 128, {}, {}, channels_last=True)
images("swinv2", "swinv2_tiny_window8_256", "Swin V2-T", 64, dict(drop_path_rate=0.2), dict(img_size=64, depths=(2, 2), num_heads=(2, 4), embed_dim=32), rows=256)
images("focalnet", "focalnet_tiny_srf", "FocalNet-T", 128, dict(drop_path_rate=0.2), {}, channels_last=True)
images("caformer", "caformer_s18", "CAFormer-S18", 128, dict(drop_path_rate=0.15), {}, channels_last=True)
images("inception-next", "inception_next_tiny", "InceptionNeXt-T", 128, dict(drop_path_rate=0.1), dict(depths=(1, 1, 1, 1), dims=(32, 48, 64, 96)), channels_last=True)
images("mobilenetv4", "mobilenetv4_conv_medium", "MobileNetV4-M", 256, dict(drop_rate=0.2, drop_path_rate=0.075), {}, channels_last=True)
images("convmixer", "convmixer_768_32", "ConvMixer-768/32", 64, {}, {}, channels_last=True)
images("cait", "cait_xxs24_224", "CaiT-XXS24", 128, dict(drop_path_rate=0.05), dict(img_size=64, depth=2, embed_dim=48, num_heads=4))
images("convit", "convit_tiny", "ConViT-Ti", 256, dict(drop_path_rate=0.1), dict(img_size=64, depth=3, embed_dim=12, local_up_to_layer=2))
images("crossvit", "crossvit_tiny_240", "CrossViT-Ti", 256, dict(drop_path_rate=0.1), {}, rows=240, small_size=240)
images("davit", "davit_tiny", "DaViT-T", 128, dict(drop_path_rate=0.1), dict(depths=(1, 1, 1, 1), embed_dims=(32, 32, 64, 64), num_heads=(2, 2, 4, 4)), channels_last=True)
images("dpn", "dpn68", "DPN-68", 128, {}, {}, channels_last=True)
images("edgenext", "edgenext_xx_small", "EdgeNeXt-XXS", 256, dict(drop_path_rate=0.1), {}, rows=256, channels_last=True)
images("efficientformer", "efficientformer_l1", "EfficientFormer-L1", 256, {}, {}, small_size=224, channels_last=True)
images("efficientvit", "efficientvit_b0", "EfficientViT-B0", 256, {}, {}, channels_last=True)
images("fastvit", "fastvit_t8", "FastViT-T8", 128, dict(drop_path_rate=0.05), {}, rows=256, channels_last=True)
images("gcvit", "gcvit_xxtiny", "GCViT-XXT", 128, dict(drop_path_rate=0.2), dict(img_size=224), small_size=224, channels_last=True)
images("halonet", "halonet26t", "HaloNet-26", 128, {}, {}, rows=256, small_size=256, channels_last=True)
images("lambda", "lambda_resnet26t", "Lambda-ResNet-26", 128, {}, {}, rows=256, small_size=256, note="PyTorch with channels last fails: its volumes have another rank")
images("levit", "levit_128s", "LeViT-128S", 256, {}, {}, small_size=224)
images("mambaout", "mambaout_femto", "MambaOut-Femto", 256, dict(drop_path_rate=0.05), dict(depths=(1, 1, 1, 1), dims=(16, 32, 48, 64)), channels_last=True)
images("mvit", "mvitv2_tiny", "MViTv2-T", 128, dict(drop_path_rate=0.1), {}, small_size=224)
images("pit", "pit_ti_224", "PiT-Ti", 256, dict(drop_path_rate=0.1), dict(img_size=64, depth=(1, 1, 1), base_dims=(16, 16, 16)))
images("poolformer", "poolformer_s12", "PoolFormer-S12", 128, dict(drop_path_rate=0.1), {}, channels_last=True)
images("rdnet", "rdnet_tiny", "RDNet-T", 128, dict(drop_path_rate=0.15), {}, channels_last=True)
images("repvit", "repvit_m0_9", "RepViT-M0.9", 256, {}, {}, channels_last=True)
images("resnest", "resnest14d", "ResNeSt-14", 128, {}, {}, channels_last=True)
images("selecsls", "selecsls42b", "SelecSLS-42", 256, {}, {}, channels_last=True)
images("sequencer", "sequencer2d_s", "Sequencer2D-S", 64, dict(drop_path_rate=0.1), dict(img_size=56, layers=(1, 1, 1, 1), embed_dims=(16, 32, 32, 32), hidden_sizes=(4, 8, 8, 8)), small_size=56)
images("sknet", "skresnet18", "SK-ResNet-18", 256, {}, {}, channels_last=True)
images("starnet", "starnet_s1", "StarNet-S1", 256, {}, {}, channels_last=True)
images("twins", "twins_pcpvt_small", "Twins-PCPVT-S", 128, dict(drop_path_rate=0.2), dict(img_size=64, depths=(1, 1, 1, 1)))
images("visformer", "visformer_tiny", "Visformer-Ti", 256, dict(drop_path_rate=0.03), {}, small_size=224, channels_last=True)
images("volo", "volo_d1_224", "VOLO-D1", 64, dict(drop_path_rate=0.1), {}, small_size=224)
images("xception", "xception41", "Xception-41", 64, {}, {}, rows=299, small_size=96, channels_last=True)
images("tnt", "tnt_s_patch16_224", "TNT-S", 128, dict(drop_path_rate=0.1), dict(img_size=64, depth=2))
images("mixnet", "mixnet_s", "MixNet-S", 256, dict(drop_rate=0.2, drop_path_rate=0.2), {}, channels_last=True)
images("rexnet", "rexnet_100", "ReXNet-1.0", 256, dict(drop_rate=0.2), {}, channels_last=True)
images("darknet", "cspdarknet53", "CSPDarkNet-53", 64, {}, {}, rows=256, channels_last=True)
images("botnet", "botnet26t_256", "BoTNet-26", 128, {}, {}, rows=256, small_size=256, channels_last=True)
images("tinyvit", "tiny_vit_5m_224", "TinyViT-5M", 256, dict(drop_path_rate=0.1), {}, small_size=224)
images("fasternet", "fasternet_t0", "FasterNet-T0", 256, {}, {}, channels_last=True)
images("nextvit", "nextvit_small", "Next-ViT-S", 64, dict(drop_path_rate=0.1), {}, small_size=224, channels_last=True)
images("mobileone", "mobileone_s0", "MobileOne-S0", 128, {}, {}, channels_last=True)
images("gmlp", "gmlp_s16_224", "gMLP-S", 128, dict(drop_path_rate=0.1), dict(img_size=64))
images("eva", "eva02_tiny_patch14_224", "EVA-02-Ti", 128, dict(drop_path_rate=0.1, num_classes=1000), dict(depth=2), small_size=224)
images("vovnet", "ese_vovnet39b", "VoVNet-39", 128, {}, {}, channels_last=True)
images("dla", "dla34", "DLA-34", 128, {}, {}, channels_last=True)
images("swiftformer", "swiftformer_xs", "SwiftFormer-XS", 256, dict(drop_path_rate=0.05), {}, channels_last=True)
images("inception-resnet", "inception_resnet_v2", "Inception-ResNet v2", 64, dict(drop_rate=0.2), {}, rows=299, small_size=96, channels_last=True)


class VolumeUNet(nn.Module):
    """The network of nnU-Net (Isensee et al. 2021): instance norms, leaky slopes, strides instead of pools, and a loss at every depth but the last two."""

    def __init__(self, widths, classes=4):
        super().__init__()
        def block(i, o, stride):
            layers = [layer for c, step in ((i, stride), (o, 1))
                      for layer in (nn.Conv3d(c, o, 3, step, 1), nn.InstanceNorm3d(o, affine=True), nn.LeakyReLU(0.01, inplace=True))]
            return nn.Sequential(*layers)
        self.down = nn.ModuleList([block(i, o, 2 if level else 1) for level, (i, o) in enumerate(zip([1, *widths], widths))])
        self.grow = nn.ModuleList([nn.ConvTranspose3d(o, i, 2, 2) for i, o in zip(widths, widths[1:])])
        self.up = nn.ModuleList([block(2 * o, o, 1) for o in widths[:-1]])
        self.heads = nn.ModuleList([nn.Conv3d(o, classes, 1) for o in widths[:-2]])

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
        scores = []
        for level in reversed(range(len(self.grow))):
            x = self.up[level](torch.cat([self.grow[level](x), skips[level]], 1))
            if level < len(self.heads):
                scores.append(self.heads[level](x))
        return scores[::-1]


def dice_and_entropy(model, x, labels):
    loss, weight = 0.0, 1.0
    for depth, scores in enumerate(model(x)):
        part = labels[:, ::2**depth, ::2**depth, ::2**depth]
        shares, hits = scores.float().softmax(1), F.one_hot(part, scores.shape[1]).movedim(-1, 1).float()
        dice = 2 * (shares * hits).sum((0, 2, 3, 4)) / ((shares + hits).sum((0, 2, 3, 4)) + 1e-5)
        loss, weight = loss + weight * (F.cross_entropy(scores, part) - dice[1:].mean()), weight / 2
    return loss


def volumes(small):
    batch, size = (2, 16) if small else (2, 128)
    return {"x": randn(batch, 1, size, size, size), "labels": randint(4, batch, size, size, size)}


UNTUNED["nnunet"] = Case("nnU-Net, 2 x 128^3", lambda small: Loss(VolumeUNet((8, 16, 16) if small else (32, 64, 128, 256, 320, 320)), dice_and_entropy), volumes)


class DiffusionBlock(nn.Module):
    """A block of DiT: norms without weights, whose scales, shifts and gates come from the time and the class."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(width, 1e-6, False), nn.LayerNorm(width, 1e-6, False)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink, self.modulation = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Linear(width, 6 * width)

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(F.silu(c))[:, None].chunk(6, -1)
        batch, rows, width = x.shape
        q, k, v = self.qkv(self.norm1(x) * (1 + scale1) + shift1).view(batch, rows, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + gate1 * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, rows, width))
        return x + gate2 * self.shrink(F.gelu(self.grow(self.norm2(x) * (1 + scale2) + shift2), approximate="tanh"))


class DiffusionTransformer(nn.Module):
    """DiT (Peebles and Xie 2023) on latent images of 4 x 32 x 32 by patches of 2 x 2."""

    def __init__(self, width, depth, heads, rows=256, classes=1000):
        super().__init__()
        self.patches, self.positions = nn.Conv2d(4, width, 2, 2), nn.Parameter(torch.randn(1, rows, width) * 0.02)
        self.time, self.classes = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width)), nn.Embedding(classes + 1, width)
        self.blocks = nn.ModuleList([DiffusionBlock(width, heads) for _ in range(depth)])
        self.norm, self.modulation, self.head = nn.LayerNorm(width, 1e-6, False), nn.Linear(width, 2 * width), nn.Linear(width, 4 * 4)

    def forward(self, x, step, label):
        angle = step[:, None].to(x.dtype) * torch.exp(torch.arange(128, device=x.device, dtype=x.dtype) * (-9.21034037 / 128))
        c = self.time(torch.cat([angle.cos(), angle.sin()], 1)) + self.classes(label)
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.modulation(F.silu(c))[:, None].chunk(2, -1)
        return self.head(self.norm(x) * (1 + scale) + shift)


def latents(small):
    batch = 2 if small else 64
    return {"x": randn(batch, 4, 32, 32), "step": randint(1000, batch), "label": randint(1000, batch), "noise": randn(batch, 256, 16, seed=3)}


UNTUNED["dit"] = Case("DiT-L/2, 64 x 256", lambda small: Loss(DiffusionTransformer(*((64, 2, 4) if small else (1024, 24, 16))),
                      lambda model, x, step, label, noise: F.mse_loss(model(x, step, label), noise)), latents)


class Recommender(nn.Module):
    """DLRM (Naumov et al. 2019): a table for each of 26 properties, and the products of all pairs of what they hold."""

    def __init__(self, rows, width, below, above):
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for _ in range(26)])
        def layers(sizes):
            return [layer for i, o in zip(sizes, sizes[1:]) for layer in (nn.Linear(i, o), nn.ReLU())]
        self.below, self.above = nn.Sequential(*layers([13, *below, width])), nn.Sequential(*layers([width + 27 * 26 // 2, *above, 1])[:-1])
        self.register_buffer("pairs", torch.tensor([i * 27 + j for i in range(27) for j in range(i)]), persistent=False)

    def forward(self, numbers, properties):
        x = self.below(numbers)
        vectors = torch.stack([x, *[table(properties[:, i]) for i, table in enumerate(self.tables)]], 1)
        products = (vectors @ vectors.transpose(1, 2)).flatten(1)
        return self.above(torch.cat([x, products.index_select(1, self.pairs)], 1)).squeeze(1)


def clicks(small):
    batch, rows = (4, 50) if small else (16384, 100000)
    return {"numbers": randn(batch, 13), "properties": randint(rows, batch, 26), "clicked": randint(2, batch).float()}


UNTUNED["dlrm"] = Case("DLRM of 26 tables of 100,000 x 128, 16384", lambda small: Loss(Recommender(*((50, 16, (32,), (32,)) if small else (100000, 128, (512, 256), (1024, 1024, 512, 256)))),
                       lambda model, numbers, properties, clicked: F.binary_cross_entropy_with_logits(model(numbers, properties), clicked)), clicks)


def conformer(small):
    import transformers as T

    size = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, conv_dim=(16, 16, 16), conv_kernel=(10, 3, 3), conv_stride=(5, 2, 2),
                num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, classifier_proj_size=32) if small else dict(hidden_size=512, num_attention_heads=8, intermediate_size=2048)
    config = T.Wav2Vec2ConformerConfig(**size, position_embeddings_type="relative", layerdrop=0.0, apply_spec_augment=False)
    return Loss(from_config("Wav2Vec2ConformerForSequenceClassification", config, "eager"), lambda model, x, labels: F.cross_entropy(model(input_values=x).logits, labels))


UNTUNED["conformer"] = Case("Wav2Vec2 Conformer of 12 layers of 512, 8 x 160000", conformer,
                            lambda small: {"x": randn(*((2, 800) if small else (8, 160000))), "labels": randint(2, 2 if small else 8)}, note=UNDRAWN)


def electra(small):
    import transformers as T

    size = dict(NARROW, embedding_size=32) if small else dict(embedding_size=128, hidden_size=256, intermediate_size=1024, num_attention_heads=4)
    return Loss(from_config("ElectraForSequenceClassification", T.ElectraConfig(**size), "sdpa"), classified_text)


def short_texts(small):
    (batch, rows), vocabulary = ((2, 32), 512) if small else ((256, 128), 30522)
    return {"input_ids": randint(vocabulary, batch, rows), "attention_mask": padding_mask(batch, rows), "labels": randint(2, batch)}


UNTUNED["electra"] = Case("ELECTRA small, 256 x 128", electra, short_texts)


def segformer(small):
    import transformers as T

    size = dict(hidden_sizes=[16, 32, 40, 64], depths=[1, 1, 1, 1], decoder_hidden_size=32) if small else \
           dict(hidden_sizes=[64, 128, 320, 512], depths=[3, 4, 6, 3], decoder_hidden_size=768)
    config = T.SegformerConfig(num_labels=150, **size)
    return Loss(from_config("SegformerForSemanticSegmentation", config, "eager"), lambda model, x, labels: F.cross_entropy(model(pixel_values=x).logits, labels))


def scenes(small):
    batch, size = (2, 64) if small else (16, 512)
    return {"x": randn(batch, 3, size, size), "labels": randint(150, batch, size // 4, size // 4)}


UNTUNED["segformer"] = Case("SegFormer-B2, 16 x 512", segformer, scenes)


def text(key, family, title, batch, rows, settings, small, **more):
    language_model(key, family, title, batch, rows, settings, small, zoo=UNTUNED, **more)


text("pythia", "GPTNeoX", "Pythia 410M", 8, 2048, dict(vocab_size=50304, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096), NARROW)
text("bloom", "Bloom", "BLOOM 560M", 4, 2048, dict(vocab_size=250880, hidden_size=1024, n_layer=24, n_head=16), dict(vocab_size=512, hidden_size=64, n_layer=2, n_head=4), attention="eager")
text("olmo2", "Olmo2", "OLMo 2 1B", 2, 4096, dict(vocab_size=100352, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=16, max_position_embeddings=4096), GROUPED)
text("smollm2", "Llama", "SmolLM2 1.7B", 2, 4096, dict(vocab_size=49152, hidden_size=2048, intermediate_size=8192, num_hidden_layers=24, num_attention_heads=32, num_key_value_heads=32,
     max_position_embeddings=8192, rope_theta=130000.0, tie_word_embeddings=True, rms_norm_eps=1e-5), dict(NARROW, num_key_value_heads=4))
text("stablelm", "StableLm", "StableLM 2 1.6B", 4, 2048, dict(vocab_size=100352, hidden_size=2048, intermediate_size=5632, num_hidden_layers=24, num_attention_heads=32,
     num_key_value_heads=32, use_qkv_bias=True, max_position_embeddings=4096), dict(NARROW, num_key_value_heads=4))
text("granite", "Granite", "Granite 3.0 2B, 12 layers", 2, 4096, dict(vocab_size=49155, hidden_size=2048, intermediate_size=8192, num_hidden_layers=12, num_attention_heads=32,
     num_key_value_heads=8, max_position_embeddings=4096, tie_word_embeddings=True, rms_norm_eps=1e-5, attention_dropout=0.1, embedding_multiplier=12.0,
     residual_multiplier=0.22, attention_multiplier=0.015625, logits_scaling=8.0), dict(GROUPED, vocab_size=515), note="12 of 40 layers")
text("starcoder2", "Starcoder2", "StarCoder2 3B, 6 layers", 1, 8192, dict(vocab_size=49152, hidden_size=3072, intermediate_size=12288, num_hidden_layers=6, num_attention_heads=24,
     num_key_value_heads=2, sliding_window=4096, max_position_embeddings=16384, rope_theta=999999.4420358813, attention_dropout=0.1, residual_dropout=0.1,
     embedding_dropout=0.1), dict(GROUPED, sliding_window=8), note="6 of 30 layers")
text("falcon", "Falcon", "Falcon RW 1B, 12 layers", 4, 2048, dict(vocab_size=50304, hidden_size=2048, num_hidden_layers=12, num_attention_heads=32, alibi=True, multi_query=False,
     parallel_attn=False, bias=True, new_decoder_architecture=False), dict(vocab_size=512, hidden_size=64, num_hidden_layers=2, num_attention_heads=4), note="12 of 24 layers")
text("phi3", "Phi3", "Phi-3 mini, 8 layers", 2, 4096, dict(num_hidden_layers=8, sliding_window=2047, max_position_embeddings=4096), dict(GROUPED, sliding_window=8), note="8 of 32 layers")
text("gptj", "GPTJ", "GPT-J 6B, 4 layers", 2, 2048, dict(n_layer=4), dict(vocab_size=512, n_embd=64, n_layer=2, n_head=4, n_positions=64, rotary_dim=8), attention="eager", note="4 of 28 layers")

text("opt", "OPT", "OPT 350M", 8, 2048, dict(vocab_size=50272, hidden_size=1024, word_embed_proj_dim=512, ffn_dim=4096, num_hidden_layers=24, num_attention_heads=16, do_layer_norm_before=False),
     dict(vocab_size=512, hidden_size=64, word_embed_proj_dim=32, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64))
text("xglm", "XGLM", "XGLM 564M", 4, 2048, dict(attention_heads=16, num_layers=24, ffn_dim=4096, d_model=1024), dict(vocab_size=512, d_model=64, ffn_dim=96, num_layers=2, attention_heads=4,
     max_position_embeddings=64), attention="eager")


def bart(small):
    import transformers as T

    size = dict(vocab_size=512, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
                max_position_embeddings=64) if small else dict(encoder_layers=6, decoder_layers=6, d_model=768, encoder_attention_heads=12, decoder_attention_heads=12,
                                                               encoder_ffn_dim=3072, decoder_ffn_dim=3072)
    return Loss(from_config("BartForConditionalGeneration", T.BartConfig(**size), "sdpa"), summarised)


def summarised(model, input_ids, decoder_input_ids, labels):
    logits = model(input_ids=input_ids, decoder_input_ids=decoder_input_ids, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def articles(small):
    (batch, rows, summary), vocabulary = ((2, 32, 16), 512) if small else ((16, 1024, 128), 50265)
    return {"input_ids": randint(vocabulary, batch, rows), "decoder_input_ids": randint(vocabulary, batch, summary, seed=3), "labels": randint(vocabulary, batch, summary, seed=4)}


UNTUNED["bart"] = Case("BART base, 16 x 1024 + 128", bart, articles)

UNTUNED.update(KINDS)
UNTUNED.update(TRANSFORMERS)
UNTUNED.update(RECENT)
