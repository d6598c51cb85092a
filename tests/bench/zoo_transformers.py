"""Models of transformers of families that zoo_models.py, zoo_untuned.py and zoo_kinds.py lack, in the settings people train or fine-tune them in. This is a module.

TRANSFORMERS is {name: Case}; zoo_untuned.py takes its cases over. PyTorch 2.15 exports neither Longformer nor EnCodec nor Autoformer, whose code reads values of
tensors, nor the products of groups that the experts of OLMoE and Mixtral are, and ends with a fault at Gemma 3n. Mamba, RWKV and RecurrentGemma loop over the
tokens of a row: thousands of them make a million nodes. BigBird fails under autocast, and Informer's masks do not fit what it distils.
"""
import torch
import torch.nn.functional as F

from export_zoo import Loss, classified_text, randint, randn
from zoo_models import GROUPED, NARROW, UNDRAWN, Case, from_config, language_model, padding_mask, with_tokens

TRANSFORMERS: dict[str, Case] = {}


def case(key, title, family, head, settings, small, loss, batch, attention="sdpa", note=""):
    def build(is_small):
        import transformers as T

        return Loss(from_config(f"{family}{head}", getattr(T, f"{family}Config")(**{**settings, **(small if is_small else {})}), attention), loss)

    TRANSFORMERS[key] = Case(title, build, batch, note=note)


# -- text -------------------------------------------------------------------------------------------------------------

def texts(vocabulary, batch, rows):
    """The exporter refuses to take whole numbers from 1.0, as several families do with their masks; hence the cast."""
    def make(small):
        size = (2, 32) if small else (batch, rows)
        return {"input_ids": randint(512 if small else vocabulary, *size), "attention_mask": padding_mask(*size).float(), "labels": randint(2, size[0])}

    return make


def text_classifier(key, family, title, batch, rows, settings, small):
    case(key, f"{title}, {batch} x {rows}", family, "ForSequenceClassification", settings, small, classified_text, texts(settings["vocab_size"], batch, rows), "eager")


def landmark_text(model, input_ids, attention_mask, labels):
    """With a mask of keys alone: transformers makes one for each pair of tokens, which does not fit the landmarks."""
    return F.cross_entropy(model(input_ids=input_ids, attention_mask=(attention_mask[:, None, None] - 1) * 10000.0).logits, labels)


text_classifier("xlnet", "XLNet", "XLNet base", 32, 512, dict(vocab_size=32000, d_model=768, n_layer=12, n_head=12, d_inner=3072), dict(vocab_size=512, d_model=64,
     n_layer=2, n_head=4, d_inner=96))
text_classifier("funnel", "Funnel", "Funnel small", 32, 512, dict(vocab_size=30522), dict(vocab_size=512, block_sizes=(1, 1, 1), d_model=64, n_head=4, d_head=16,
     d_inner=96))
case("nystromformer", "Nystromformer base, 8 x 4096", "Nystromformer", "ForSequenceClassification", dict(max_position_embeddings=4096, segment_means_seq_len=4096),
     dict(NARROW, num_landmarks=8, segment_means_seq_len=32, conv_kernel_size=5), landmark_text, texts(30000, 8, 4096), "eager")
text_classifier("convbert", "ConvBert", "ConvBERT base", 64, 512, dict(vocab_size=30522), dict(NARROW, embedding_size=64))


def guessed(model, input_ids, labels):
    return F.cross_entropy(model(input_ids=input_ids).logits.flatten(0, 1), labels.flatten())


def masked_tokens(vocabulary, batch, rows):
    def make(small):
        size = (2, 32) if small else (batch, rows)
        ids = randint(512 if small else vocabulary, *size)
        return {"input_ids": ids, "labels": torch.where(randint(100, *size, seed=3) < 15, ids, -100)}

    return make


case("fnet", "FNet base, 64 x 512", "FNet", "ForMaskedLM", dict(vocab_size=32000), {k: v for k, v in NARROW.items() if k != "num_attention_heads"}, guessed,
     masked_tokens(32000, 64, 512), "eager")


def text(key, family, title, batch, rows, settings, small, **more):
    language_model(key, family, title, batch, rows, settings, small, zoo=TRANSFORMERS, **more)


text("lfm2", "Lfm2", "LFM2 1.2B", 2, 4096, dict(vocab_size=65536, hidden_size=2048, intermediate_size=12288, num_hidden_layers=16, full_attn_idxs=[2, 5, 8, 10, 12, 14]),
     dict(GROUPED, full_attn_idxs=[1], block_multiple_of=16))
text("smollm3", "SmolLM3", "SmolLM3 3B, 8 layers", 2, 4096, dict(num_hidden_layers=8, max_position_embeddings=4096), dict(GROUPED, no_rope_layers=[1, 0]),
     note="8 of 36 layers")
text("cohere2", "Cohere2", "Command R7B, 4 layers", 1, 8192, dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=4, num_attention_heads=32,
     num_key_value_heads=8, sliding_window=4096, logit_scale=0.25), dict(GROUPED, sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
     note="4 of 32 layers")
text("glm4", "Glm4", "GLM-4 9B, 4 layers", 1, 8192, dict(num_hidden_layers=4), dict(GROUPED, head_dim=16), note="4 of 40 layers")
text("deepseek", "DeepseekV3", "attention of DeepSeek-V2-Lite, 8 layers", 2, 4096, dict(vocab_size=102400, hidden_size=2048, intermediate_size=10944, num_hidden_layers=8,
     num_attention_heads=16, num_key_value_heads=16, q_lora_rank=None, first_k_dense_replace=8), dict(NARROW, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=16,
     qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, first_k_dense_replace=2), note="8 of 27 layers, all with dense products for their experts")
text("diffllama", "DiffLlama", "Differential transformer of 8 layers", 4, 2048, dict(num_hidden_layers=8, num_key_value_heads=16), GROUPED)
text("qwen35", "Qwen3_5Text", "Qwen3.5 2B, 4 layers", 2, 2048, dict(vocab_size=248320, hidden_size=2048, intermediate_size=6144, num_hidden_layers=4,
     num_attention_heads=8, num_key_value_heads=2, linear_num_value_heads=16, tie_word_embeddings=True), dict(GROUPED, head_dim=16, linear_key_head_dim=16,
     linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, max_position_embeddings=128, layer_types=["linear_attention", "full_attention"]),
     model_class="Qwen3_5ForCausalLM", note="4 of 24 layers")


# -- from one sequence to another -------------------------------------------------------------------------------------

def smoothed(model, labels, **inputs):
    logits = model(**inputs, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)


def summarised(model, input_ids, attention_mask, decoder_input_ids, labels):
    return smoothed(model, labels, input_ids=input_ids, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids)


def sentences(vocabulary, batch, rows, target_rows):
    def make(small):
        count, long, short = (2, 32, 16) if small else (batch, rows, target_rows)
        ids = 3 + randint((512 if small else vocabulary) - 3, count, short + 1, seed=3)
        return {"input_ids": 3 + randint((512 if small else vocabulary) - 3, count, long), "attention_mask": padding_mask(count, long).float(),
                "decoder_input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}

    return make


TRANSLATOR = dict(vocab_size=512, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96)
case("m2m100", "M2M-100 418M, 32 x 128 + 128", "M2M100", "ForConditionalGeneration", dict(encoder_layerdrop=0.0, decoder_layerdrop=0.0), TRANSLATOR, summarised,
     sentences(128112, 32, 128, 128), note=UNDRAWN)
case("prophetnet", "ProphetNet large, 8 x 512 + 128", "ProphetNet", "ForConditionalGeneration", {}, dict(vocab_size=512, hidden_size=64, num_encoder_layers=2,
     num_decoder_layers=2, num_encoder_attention_heads=4, num_decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96), summarised, sentences(30522, 8, 512,
     128), "eager")
case("longt5", "LongT5 base, 2 x 4096 + 512", "LongT5", "ForConditionalGeneration", dict(d_model=768, num_layers=12, num_heads=12, feed_forward_proj="gated-gelu",
     encoder_attention_type="transient-global", tie_word_embeddings=False), dict(vocab_size=512, d_model=64, d_ff=96, d_kv=16, num_layers=2, num_heads=4, local_radius=7,
     global_block_size=4), summarised, sentences(32128, 2, 4096, 512), "eager")


def transcribed(model, features, attention_mask, decoder_input_ids, labels):
    return smoothed(model, labels, input_features=features, attention_mask=attention_mask, decoder_input_ids=decoder_input_ids)


def spectra(small):
    batch, frames, rows, vocabulary = (2, 64, 16, 512) if small else (96, 1024, 128, 10000)
    ids = 3 + randint(vocabulary - 3, batch, rows + 1)
    return {"features": randn(batch, frames, 80), "attention_mask": padding_mask(batch, frames), "decoder_input_ids": ids[:, :-1].contiguous(), "labels": ids[:,
         1:].contiguous()}


case("speech2text", "Speech2Text small, 96 x 1024 + 128", "Speech2Text", "ForConditionalGeneration", {}, dict(TRANSLATOR, conv_channels=32), transcribed, spectra, "eager")


# -- sound ------------------------------------------------------------------------------------------------------------

case("wavlm", "WavLM base, 8 x 160000", "WavLM", "ForSequenceClassification", dict(layerdrop=0.0, apply_spec_augment=False), dict(hidden_size=64, intermediate_size=96,
     num_hidden_layers=2, num_attention_heads=4, conv_dim=(16, 16, 16), conv_kernel=(10, 3, 3), conv_stride=(5, 2, 2), num_conv_pos_embeddings=16,
     num_conv_pos_embedding_groups=4, classifier_proj_size=32), lambda model, x, labels: F.cross_entropy(model(input_values=x).logits, labels),
     lambda small: {"x": randn(*((2, 800) if small else (8, 160000))), "labels": randint(2, 2 if small else 8)}, "eager", note=UNDRAWN)


def sounds(batch, samples, small_samples):
    return lambda small: {"x": randn(*((2, 1, small_samples) if small else (batch, 1, samples)))}


def coded(model, x):
    result = model(x)
    heard = result.audio_values
    return 15 * F.l1_loss(heard, x[:, 0, : heard.shape[1]]) + result.loss.mean()


case("dac", "DAC 16 kHz, 48 x 16000", "Dac", "Model", {}, dict(encoder_hidden_size=8, downsampling_ratios=(2, 4), decoder_hidden_size=32, n_codebooks=2, codebook_size=32,
     codebook_dim=4), coded, sounds(48, 16000, 128), "eager")


# -- images -----------------------------------------------------------------------------------------------------------

VISION = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=64)


def pictures(batch, size, classes=1000):
    return lambda small: {"x": randn(*((2, 3, 64, 64) if small else (batch, 3, size, size))), "labels": randint(classes, 2 if small else batch)}


def classified(model, x, labels):
    return F.cross_entropy(model(pixel_values=x).logits, labels, label_smoothing=0.1)


def segmented(model, x, labels):
    return F.cross_entropy(F.interpolate(model(pixel_values=x).logits, size=labels.shape[1:], mode="bilinear"), labels)


def scenes(batch, size):
    return lambda small: {"x": randn(*((2, 3, 64, 64) if small else (batch, 3, size, size))), "labels": randint(150, *((2, 64, 64) if small else (batch, size, size)))}


case("dinov2", "DINOv2 B/14, 64 x 224", "Dinov2", "ForImageClassification", dict(image_size=224, num_labels=1000, drop_path_rate=0.1), dict(VISION, image_size=56,
     patch_size=14), classified, lambda small: {"x": randn(*((2, 3, 56, 56) if small else (64, 3, 224, 224))), "labels": randint(1000, 2 if small else 64)})
case("dpt", "DPT base, 16 x 384", "DPT", "ForSemanticSegmentation", dict(num_labels=150), dict(VISION, num_hidden_layers=4, intermediate_size=96, backbone_out_indices=(0,
     1, 2, 3), neck_hidden_sizes=(8, 16, 24, 32), fusion_hidden_size=16), segmented, scenes(16, 384))


def upernet(small):
    import transformers as T

    size = dict(image_size=64, embed_dim=16, depths=[1, 1, 1, 1], num_heads=[1, 2, 2, 4]) if small else dict(image_size=512)
    backbone = T.SwinConfig(**size, window_size=4 if small else 7, drop_path_rate=0.3, out_features=["stage1", "stage2", "stage3", "stage4"])
    config = T.UperNetConfig(backbone_config=backbone, num_labels=150, **(dict(hidden_size=32, auxiliary_channels=16) if small else {}))
    return Loss(from_config("UperNetForSemanticSegmentation", config, "eager"), segmented)


TRANSFORMERS["upernet"] = Case("UperNet on Swin-T, 16 x 512", upernet, scenes(16, 512))


def sam(small):
    import transformers as T

    vision = dict(VISION, patch_size=8, output_channels=32, window_size=3, global_attn_indexes=(1,), num_pos_feats=16) if small else {}
    prompts = dict(hidden_size=32, image_size=64, patch_size=8, mask_input_channels=8) if small else {}
    decoder = dict(hidden_size=32, mlp_dim=64, num_attention_heads=4, iou_head_hidden_dim=32) if small else {}
    config = T.SamConfig(vision_config=vision, prompt_encoder_config=prompts, mask_decoder_config=decoder)
    return Loss(from_config("SamModel", config, "eager"), boxed_masks)


def boxed_masks(model, x, boxes, masks):
    """Dice and cross-entropy of one mask for each box, as people fine-tune it."""
    found = model(pixel_values=x, input_boxes=boxes, multimask_output=False).pred_masks[:, :, 0].float()
    shares = found.sigmoid()
    dice = 1 - (2 * (shares * masks).sum((2, 3)) + 1) / (shares.sum((2, 3)) + masks.sum((2, 3)) + 1)
    return dice.mean() + F.binary_cross_entropy_with_logits(found, masks)


def boxes(small):
    batch, size, count, rows = (2, 64, 3, 32) if small else (2, 1024, 8, 256)
    corner = randint(size // 2, batch, count, 2, seed=3)
    return {"x": randn(batch, 3, size, size), "boxes": torch.cat([corner, corner + size // 4], -1).float(), "masks": (randint(4, batch, count, rows, rows) == 0).float()}


TRANSFORMERS["sam"] = Case("SAM ViT-B, 2 x 1024 with 8 boxes", sam, boxes)
case("swin2sr", "Swin2SR x2, 8 x 64", "Swin2SR", "ForImageSuperResolution", {}, dict(image_size=16, embed_dim=24, depths=(2, 2), num_heads=(2, 2), window_size=4),
     lambda model, x, wanted: F.l1_loss(model(pixel_values=x).reconstruction, wanted), lambda small: {"x": randn(*((2, 3, 16, 16) if small else (8, 3, 64, 64))),
     "wanted": randn(*((2, 3, 32, 32) if small else (8, 3, 128, 128)), seed=3)}, "eager")


def films(batch, frames, size):
    return lambda small: {"x": randn(*((2, 4, 3, 32, 32) if small else (batch, frames, 3, size, size))), "labels": randint(400, 2 if small else batch)}


case("videomae", "VideoMAE base, 8 x 16 x 224", "VideoMAE", "ForVideoClassification", dict(num_labels=400), dict(VISION, image_size=32, num_frames=4,
     intermediate_size=96), classified, films(8, 16, 224))
case("timesformer", "TimeSformer base, 8 x 8 x 224", "Timesformer", "ForVideoClassification", dict(num_labels=400), dict(VISION, image_size=32, num_frames=4,
     intermediate_size=96), classified, films(8, 8, 224), "eager")


# -- several kinds of input -------------------------------------------------------------------------------------------

def captioned(batch, rows, vocabulary, size):
    def make(small):
        count, length, words, pixels = (2, 16, 512, 64) if small else (batch, rows, vocabulary, size)
        return {"input_ids": randint(words, count, length), "attention_mask": padding_mask(count, length), "x": randn(count, 3, pixels, pixels)}

    return make


def siglip(small):
    import transformers as T

    text = dict(NARROW, max_position_embeddings=16) if small else {}
    return Loss(from_config("SiglipModel", T.SiglipConfig(text_config=text, vision_config=dict(VISION, intermediate_size=96) if small else {}), "sdpa"),
                lambda model, input_ids, attention_mask, x: model(input_ids=input_ids, pixel_values=x, return_loss=True).loss)


TRANSFORMERS["siglip"] = Case("SigLIP base, 256", siglip, captioned(256, 64, 32000, 224))


def blip(small):
    import transformers as T

    text = dict(NARROW, encoder_hidden_size=64) if small else {}
    config = T.BlipConfig(text_config=with_tokens(text), vision_config=dict(VISION, intermediate_size=96) if small else {})
    def spoken(model, input_ids, attention_mask, x):
        logits = model(input_ids=input_ids, attention_mask=attention_mask, pixel_values=x).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), torch.where(attention_mask == 1, input_ids, -100)[:, 1:].flatten(), label_smoothing=0.1)
    return Loss(from_config("BlipForConditionalGeneration", config, "eager"), spoken)


TRANSFORMERS["blip"] = Case("BLIP base captions, 32 x 384 + 40", blip, captioned(32, 40, 30524, 384))


def documents(small):
    batch, rows, size, vocabulary = (2, 32, 64, 512) if small else (16, 512, 224, 50265)
    corner = randint(500, batch, rows, 2, seed=3)
    return {"input_ids": randint(vocabulary, batch, rows), "attention_mask": padding_mask(batch, rows), "bbox": torch.cat([corner, corner + randint(500, batch, rows, 2,
         seed=4)], -1),
            "x": randn(batch, 3, size, size), "labels": randint(7, batch, rows)}


def fields(model, input_ids, attention_mask, bbox, x, labels):
    logits = model(input_ids=input_ids, attention_mask=attention_mask, bbox=bbox, pixel_values=x).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


case("layoutlmv3", "LayoutLMv3 base, 16 x 512 + 197", "LayoutLMv3", "ForTokenClassification", dict(num_labels=7, max_position_embeddings=514), dict(NARROW, input_size=64, coordinate_size=12,
     shape_size=8), fields, documents, "eager")


# -- series -----------------------------------------------------------------------------------------------------------

def series(small):
    batch, past, future, features = (4, 24 + 7, 8, 2) if small else (4096, 168 + 7, 48, 5)
    return {"past_values": randn(batch, past).exp(), "past_time_features": randn(batch, past, features), "past_observed_mask": (randint(10, batch, past) > 0).float(),
            "future_values": randn(batch, future, seed=3).exp(), "future_time_features": randn(batch, future, features, seed=4)}


def forecast(model, past_values, past_time_features, past_observed_mask, future_values, future_time_features):
    torch.distributions.Distribution.set_default_validate_args(False)  # what validates is not exported
    return model(past_values=past_values, past_time_features=past_time_features, past_observed_mask=past_observed_mask, future_values=future_values,
                 future_time_features=future_time_features).loss


HOURS = dict(distribution_output="normal", prediction_length=48, context_length=168, num_time_features=5, encoder_layers=4, decoder_layers=4, d_model=64,
     encoder_ffn_dim=256, decoder_ffn_dim=256, encoder_layerdrop=0.0, decoder_layerdrop=0.0)
FEW = dict(prediction_length=8, context_length=24, num_time_features=2, encoder_layers=2, decoder_layers=2, d_model=16, encoder_ffn_dim=32, decoder_ffn_dim=32)
case("time-series", "Time series transformer of 4 + 4 layers of 64, 4096 x 168 + 48", "TimeSeriesTransformer", "ForPrediction", HOURS, FEW, forecast, series, "eager",
     note=UNDRAWN + "; with a normal distribution: lgamma is not exported")
