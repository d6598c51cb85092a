"""Models of zoo_gpu.py on which no kernel was tuned and to which no price was fitted: what they show, a user's model will show. This is a module.

UNTUNED is {name: Case}, as ZOO in zoo_models.py; zoo_gpu.py takes them where --only or --untuned names them.
"""
import torch.nn.functional as F

from export_zoo import Loss, randint, randn
from zoo_models import GROUPED, NARROW, Case, from_config, image_model, language_model

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
