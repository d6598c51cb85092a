"""Models that people train or fine-tune today and that zoo_models.py, zoo_untuned.py, zoo_kinds.py and zoo_transformers.py lack. This is a module.

RECENT is {name: Case}; zoo_untuned.py takes its cases over. Those of diffusers need that package besides.
"""
import os

import torch
import torch.nn as nn
import torch.nn.functional as F

from export_zoo import Loss, randint, randn
from zoo_kinds import corners, overlap, uniform
from zoo_models import GROUPED, NARROW, Case, from_config, image_model, language_model, padding_mask
from zoo_transformers import VISION, classified, films, guessed, masked_tokens, pictures, smoothed

os.environ.setdefault("TRANSFORMERS_DISABLE_TORCH_CHECK", "1")  # that the numbers of places and of image features are equal, which is not exported

RECENT: dict[str, Case] = {}


# -- text -------------------------------------------------------------------------------------------------------------

def case(key, title, family, head, settings, small, loss, batch, attention="sdpa", note=""):
    def build(is_small):
        import transformers as T

        return Loss(from_config(f"{family}{head}", getattr(T, f"{family}Config")(**{**settings, **(small if is_small else {})}), attention), loss)

    RECENT[key] = Case(title, build, batch, note=note)


language_model("falcon-h1", "FalconH1", "Falcon-H1 0.5B, 12 layers", 4, 2048, dict(vocab_size=32784, hidden_size=1024, intermediate_size=2048, num_hidden_layers=12,
               num_attention_heads=8, num_key_value_heads=2, mamba_d_ssm=1536, mamba_n_heads=24, mamba_d_head=64, mamba_d_state=128, mamba_chunk_size=128),
               dict(GROUPED, mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=16, mamba_chunk_size=16), zoo=RECENT, note="12 of 36 layers")


def classified_rows(model, input_ids, attention_mask, labels):
    return F.cross_entropy(model(input_ids=input_ids, attention_mask=attention_mask).logits, labels)


def rows_of(vocabulary, batch, rows, small_rows=32):
    def make(small):
        size = (2, small_rows) if small else (batch, rows)
        return {"input_ids": randint(512 if small else vocabulary, *size), "attention_mask": padding_mask(*size).float(), "labels": randint(2, size[0])}

    return make


case("mpnet", "MPNet base, 64 x 512", "MPNet", "ForSequenceClassification", dict(max_position_embeddings=514), NARROW, classified_rows, rows_of(30527, 64, 512), "eager")
case("perceiver", "Perceiver over bytes, 16 x 2048", "Perceiver", "ForMaskedLM", {}, dict(num_latents=16, d_latents=64, d_model=32, num_self_attends_per_block=2,
     num_self_attention_heads=4, num_cross_attention_heads=4, max_position_embeddings=32, vocab_size=512, qk_channels=32, v_channels=64),
     lambda model, input_ids, labels: F.cross_entropy(model(inputs=input_ids).logits.flatten(0, 1), labels.flatten()), masked_tokens(262, 16, 2048), "eager")
case("esmc", "ESM C 300M, 16 x 512", "Esmc", "ForMaskedLM", dict(vocab_size=64, hidden_size=960, intermediate_size=2560, num_hidden_layers=30, num_attention_heads=15), NARROW, guessed, masked_tokens(64, 16, 512))


# -- images and text --------------------------------------------------------------------------------------------------

def spoken(batch, images, words, vocabulary, size, small_images, small_size, token):
    """Rows that begin with the places of an image."""
    def make(small):
        count, places, rest, tokens, pixels = (2, small_images, 8, 500, small_size) if small else (batch, images, words, vocabulary, size)
        ids = torch.cat([torch.full((count, places), 511 if small else token), randint(tokens, count, rest)], 1)
        labels = torch.cat([torch.full((count, places), -100), randint(tokens, count, rest, seed=3)], 1)
        return {"input_ids": ids, "x": randn(count, 3, pixels, pixels), "labels": labels}

    return make


def answered(model, input_ids, x, labels):
    logits = model(input_ids=input_ids, pixel_values=x, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def llava(small):
    import transformers as T

    vision = T.CLIPVisionConfig(**(dict(VISION, intermediate_size=96, patch_size=16, projection_dim=64) if small else dict(hidden_size=1024, intermediate_size=4096,
                                num_hidden_layers=24, num_attention_heads=16, image_size=336, patch_size=14)))
    words = T.LlamaConfig(**(dict(GROUPED) if small else dict(vocab_size=32064, num_hidden_layers=4, max_position_embeddings=4096)))
    config = T.LlavaConfig(vision_config=vision, text_config=words, image_token_index=511 if small else 32000)
    return Loss(from_config("LlavaForConditionalGeneration", config, "sdpa"), answered)


RECENT["llava"] = Case("LLaVA 1.5, 24 and 4 layers, 4 x (576 + 448)", llava, spoken(4, 576, 448, 32000, 336, 16, 64, 32000), note="4 of 32 layers of text")


def paligemma(small):
    import transformers as T

    vision = T.SiglipVisionConfig(**(dict(VISION, intermediate_size=96, patch_size=16, projection_dim=64) if small else dict(hidden_size=1152, intermediate_size=4304,
                                  num_hidden_layers=27, num_attention_heads=16, image_size=224, patch_size=14)), vision_use_head=False)
    words = T.GemmaConfig(**(dict(GROUPED, head_dim=16) if small else dict(vocab_size=257216, hidden_size=2048, intermediate_size=16384, num_hidden_layers=4,
                          num_attention_heads=8, num_key_value_heads=1, head_dim=256)), tie_word_embeddings=True)
    size = dict(projection_dim=64, hidden_size=64, image_token_index=511) if small else dict(image_token_index=257152)
    def prefixed(model, input_ids, x, kinds, labels):
        logits = model(input_ids=input_ids, pixel_values=x, token_type_ids=kinds, attention_mask=torch.ones_like(input_ids), use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    return Loss(from_config("PaliGemmaForConditionalGeneration", T.PaliGemmaConfig(vision_config=vision, text_config=words, **size), "sdpa"), prefixed)


def prefixes(small):
    batch = spoken(4, 256, 256, 257000, 224, 16, 64, 257152)(small)
    rows = batch["input_ids"].shape[1]
    kinds = (torch.arange(rows) >= rows - (4 if small else 128)).long().expand(batch["input_ids"].shape).contiguous()
    return {"input_ids": batch["input_ids"], "x": batch["x"], "kinds": kinds, "labels": torch.where(kinds == 1, batch["labels"], -100)}


RECENT["paligemma"] = Case("PaliGemma 3B, 27 and 4 layers, 4 x (256 + 256)", paligemma, prefixes, note="4 of 18 layers of text")


def florence(small):
    import transformers as T

    vision = dict(depths=(1, 1, 1, 1), embed_dim=(16, 16, 32, 32), num_heads=(2, 2, 4, 4), num_groups=(2, 2, 4, 4), window_size=4, projection_dim=64) if small else \
             dict(embed_dim=(128, 256, 512, 1024), projection_dim=768)
    words = dict(vocab_size=512, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96,
                 max_position_embeddings=64) if small else dict(vocab_size=51289, d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12,
                 decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072)
    config = T.Florence2Config(vision_config=dict(vision, model_type="florence_vision"), text_config=dict(words, model_type="bart"), image_token_id=511 if small else 51289 - 1)
    return Loss(from_config("Florence2ForConditionalGeneration", config, "sdpa"), read)


def read(model, input_ids, x, decoder_input_ids, labels):
    return smoothed(model, labels, input_ids=input_ids, pixel_values=x, decoder_input_ids=decoder_input_ids)


def read_pages(batch, places, words, vocabulary, size, target, small_places, small_size, token):
    def make(small):
        made = spoken(batch, places, words, vocabulary, size, small_places, small_size, token)(small)
        count, rows = made["input_ids"].shape[0], 16 if small else target
        ids = 3 + randint(500 - 3 if small else vocabulary - 3, count, rows + 1, seed=4)
        return {"input_ids": made["input_ids"], "x": made["x"], "decoder_input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}

    return make


RECENT["florence2"] = Case("Florence-2 base, 8 x 768 to 128", florence, read_pages(8, 577, 16, 51200, 768, 128, 5, 64, 51288))


def trocr(small):
    import transformers as T

    vision = T.ViTConfig(**(dict(VISION, intermediate_size=96, patch_size=16) if small else dict(image_size=384)), qkv_bias=False)
    words = T.TrOCRConfig(**(dict(vocab_size=512, d_model=64, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=96, max_position_embeddings=64, cross_attention_hidden_size=64)
                             if small else dict(cross_attention_hidden_size=768)), is_decoder=True, add_cross_attention=True)
    config = T.VisionEncoderDecoderConfig(encoder=vision.to_dict(), decoder=words.to_dict())
    return Loss(from_config("VisionEncoderDecoderModel", config, "eager"), lambda model, x, decoder_input_ids, labels:
                smoothed(model, labels, pixel_values=x, decoder_input_ids=decoder_input_ids))


def lines(small):
    batch, size, rows, vocabulary = (2, 64, 16, 512) if small else (32, 384, 64, 50265)
    ids = 3 + randint(vocabulary - 3, batch, rows + 1)
    return {"x": randn(batch, 3, size, size), "decoder_input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


RECENT["trocr"] = Case("TrOCR base, 32 x 384 to 64", trocr, lines)


# -- objects ----------------------------------------------------------------------------------------------------------

def focal_matched(logits, boxes, found, labels, wanted):
    """Sigmoid focal loss and boxes of the queries found[image, object] that the matching gave to objects."""
    logits, boxes = logits.float(), boxes.float()
    count = labels.numel()
    hot = torch.zeros_like(logits).scatter(1, found[..., None].expand(-1, -1, logits.shape[-1]), F.one_hot(labels, logits.shape[-1]).to(logits.dtype))
    shares, apart = logits.sigmoid(), F.binary_cross_entropy_with_logits(logits, hot, reduction="none")
    missed = torch.where(hot > 0, 1 - shares, shares)
    focal = (torch.where(hot > 0, 0.25, 0.75) * missed**2 * apart).sum() / count
    guessed = boxes.gather(1, found[..., None].expand(-1, -1, 4))
    return focal + 5 * (guessed - wanted).abs().sum() / count + 2 * (1 - overlap(corners(guessed), corners(wanted))).sum() / count


def with_matches(batch, size, queries, objects, classes, small_queries, small_size=64):
    def make(small):
        count, pixels, asked, things = (2, small_size, small_queries, 3) if small else (batch, size, queries, objects)
        found = torch.stack([torch.randperm(asked, generator=torch.Generator().manual_seed(i))[:things] for i in range(count)])
        return {"x": randn(count, 3, pixels, pixels), "found": found, "labels": randint(classes, count, things), "boxes": 0.2 + 0.6 * uniform(count, things, 4)}

    return make


def rt_detr(small):
    import transformers as T

    backbone = dict(model_type="rt_detr_resnet", out_features=["stage2", "stage3", "stage4"], **(dict(embedding_size=16, hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1], layer_type="basic")
                    if small else dict(depths=[3, 4, 6, 3])))
    size = dict(encoder_in_channels=[16, 32, 32], encoder_hidden_dim=32, encoder_ffn_dim=48, encoder_attention_heads=4, d_model=32, num_queries=8, decoder_in_channels=[32, 32, 32],
                decoder_ffn_dim=48, decoder_layers=2, decoder_attention_heads=4) if small else {}
    config = T.RTDetrV2Config(backbone_config=backbone, num_labels=80, num_denoising=0, **size)
    def every_layer(model, x, found, labels, boxes):
        for part in model.model.encoder.modules():
            part.training = isinstance(part, nn.BatchNorm2d)  # else a layer asks whether its values are finite, which is not exported
        said = model.model(pixel_values=x)
        loss = focal_matched(said.enc_topk_logits, said.enc_topk_bboxes, found, labels, boxes)
        for layer in range(said.intermediate_logits.shape[1]):
            loss = loss + focal_matched(said.intermediate_logits[:, layer], said.intermediate_reference_points[:, layer], found, labels, boxes)
        return loss
    return Loss(from_config("RTDetrV2ForObjectDetection", config, "eager"), every_layer)


RECENT["rt-detr"] = Case("RT-DETRv2 on ResNet-50, 16 x 640", rt_detr, with_matches(16, 640, 300, 20, 80, 8), channels_last=True, note="without denoising queries")


def rf_detr(small):
    import transformers as T

    backbone = dict(hidden_size=48, num_hidden_layers=4, num_attention_heads=4, image_size=56, patch_size=14, num_windows=2, out_features=["stage2", "stage4"], model_type="rf_detr_dinov2") if small else \
               dict(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=518, patch_size=14, num_windows=4, out_features=["stage2", "stage5", "stage8", "stage11"],
                    model_type="rf_detr_dinov2")
    size = dict(d_model=32, decoder_ffn_dim=48, decoder_layers=2, decoder_self_attention_heads=4, decoder_cross_attention_heads=4, num_queries=8, group_detr=2, c2f_num_blocks=1) if small else {}
    config = T.RfDetrConfig(backbone_config=backbone, num_labels=91, dropout=0.0, **size)
    def grouped(model, x, found, labels, boxes):
        said = model(pixel_values=x)
        return focal_matched(said.logits, said.pred_boxes, found, labels, boxes)
    return Loss(from_config("RfDetrForObjectDetection", config, "sdpa"), grouped)


RECENT["rf-detr"] = Case("RF-DETR base, 8 x 560", rf_detr, with_matches(8, 560, 3900, 20, 91, 16, 56))


def owl(small):
    import transformers as T

    words = dict(NARROW, max_position_embeddings=16, eos_token_id=511) if small else {}
    vision = dict(VISION, intermediate_size=96, patch_size=16) if small else {}
    config = T.Owlv2Config(text_config=words, vision_config=vision, **(dict(projection_dim=64) if small else {}))
    def named(model, x, found, labels, boxes, input_ids):
        said = model(pixel_values=x, input_ids=input_ids, attention_mask=(input_ids > 0).long())
        return focal_matched(said.logits, said.pred_boxes, found, labels, boxes)
    return Loss(from_config("Owlv2ForObjectDetection", config, "sdpa"), named)


def named_objects(small):
    batch = with_matches(8, 768, 2304, 20, 4 if small else 16, 16)(small)
    queries = 4 if small else 16
    return {**batch, "input_ids": 1 + randint(510 if small else 49406, batch["x"].shape[0] * queries, 16)}


RECENT["owlv2"] = Case("OWLv2 B/16, 8 x 768", owl, named_objects)


# -- sound and film ---------------------------------------------------------------------------------------------------

def sung(model, input_ids, context, labels):
    logits = model(input_ids=input_ids, encoder_hidden_states=context, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def codes(small):
    batch, rows, vocabulary, words, width = (2, 16, 512, 8, 64) if small else (8, 1500, 2048, 64, 1024)
    ids = randint(vocabulary, batch * 4, rows + 1)
    return {"input_ids": ids[:, :-1].contiguous(), "context": randn(batch, words, width), "labels": ids[:, 1:].contiguous()}


def musicgen(small):
    import transformers as T

    size = dict(vocab_size=512, max_position_embeddings=64, num_hidden_layers=2, ffn_dim=96, num_attention_heads=4, hidden_size=64, pad_token_id=512, bos_token_id=512) if small else {}
    return Loss(from_config("MusicgenForCausalLM", T.MusicgenDecoderConfig(is_decoder=True, add_cross_attention=True, **size), "sdpa"), sung)


RECENT["musicgen"] = Case("MusicGen small's decoder, 8 x 1500 of 4 codes", musicgen, codes)


def heard(small):
    batch, samples, rows, vocabulary = (2, 3200, 16, 512) if small else (32, 160000, 64, 32768)
    ids = 3 + randint(vocabulary - 3, batch, rows + 1)
    return {"x": randn(batch, samples), "decoder_input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


case("moonshine", "Moonshine tiny, 32 x 160000 to 64", "Moonshine", "ForConditionalGeneration", {}, dict(vocab_size=512, hidden_size=64, intermediate_size=96, encoder_num_hidden_layers=2,
     decoder_num_hidden_layers=2, encoder_num_attention_heads=4, decoder_num_attention_heads=4, max_position_embeddings=64),
     lambda model, x, decoder_input_ids, labels: smoothed(model, labels, input_values=x, decoder_input_ids=decoder_input_ids), heard)


def watched(model, x, labels):
    return F.cross_entropy(model(pixel_values_videos=x).logits, labels, label_smoothing=0.1)


case("vjepa2", "V-JEPA 2 L, 4 x 16 x 256", "VJEPA2", "ForVideoClassification", dict(frames_per_clip=16, num_labels=400), dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
     crop_size=32, frames_per_clip=4, num_pooler_layers=1, pred_hidden_size=32, pred_num_attention_heads=4, pred_num_hidden_layers=1), watched, films(4, 16, 256))


def film_windows(small):
    from torchvision.models.video.swin_transformer import SwinTransformer3d

    size = dict(embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=[2, 4, 4]) if small else dict(embed_dim=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], window_size=[8, 7, 7])
    model = SwinTransformer3d(patch_size=[2, 4, 4], stochastic_depth_prob=0.0 if small else 0.1, num_classes=400, **size)
    return Loss(model, lambda model, x, labels: F.cross_entropy(model(x), labels, label_smoothing=0.1))


RECENT["video-swin"] = Case("Video Swin-T, 8 x 32 x 224", film_windows, lambda small: {"x": randn(*((2, 3, 4, 32, 32) if small else (8, 3, 32, 224, 224))), "labels": randint(400, 2 if small else 8)})


def raft(small):
    from torchvision.models import optical_flow

    grid = optical_flow.raft.make_coords_grid
    def moved(model, one, two, flow):
        optical_flow.raft.make_coords_grid = lambda *sizes, **more: grid(*sizes, **more).to(one.dtype)  # else f32 whatever the model is
        guesses = model(one, two, num_flow_updates=2 if small else 12)
        return sum(0.8 ** (len(guesses) - i - 1) * (guess - flow).abs().mean() for i, guess in enumerate(guesses))
    return Loss(optical_flow.raft_small() if small else optical_flow.raft_large(), moved)


def frames(small):
    batch, rows, columns = (2, 128, 128) if small else (6, 368, 496)
    return {"one": randn(batch, 3, rows, columns), "two": randn(batch, 3, rows, columns, seed=3), "flow": randn(batch, 2, rows, columns, seed=4)}


RECENT["raft"] = Case("RAFT, 6 x 368 x 496, 12 steps", raft, frames)


# -- images -----------------------------------------------------------------------------------------------------------

def images(key, name, title, batch, settings, small, **more):
    image_model(key, name, title, batch, settings, small, zoo=RECENT, **more)


images("hgnetv2", "hgnetv2_b2", "HGNetV2-B2", 128, {}, {}, channels_last=True)
images("dinov3", "vit_base_patch16_dinov3", "DINOv3 B/16", 64, dict(drop_path_rate=0.1, num_classes=1000), dict(depth=2, embed_dim=96, num_heads=4, img_size=64), rows=256)
case("beit", "BEiT base, 64 x 224", "Beit", "ForImageClassification", dict(use_relative_position_bias=True, num_labels=1000), VISION, classified, pictures(64, 224), "eager")
case("hiera", "Hiera tiny, 128 x 224", "Hiera", "ForImageClassification", dict(embed_dim=96, depths=(1, 2, 7, 2), drop_path_rate=0.1, num_labels=1000), dict(embed_dim=16, depths=(1, 1, 1, 1),
     num_heads=(1, 1, 2, 2), image_size=(64, 64), patch_stride=(4, 4)), classified, pictures(128, 224), "eager")
images("repvgg", "repvgg_a2", "RepVGG-A2", 128, {}, {}, channels_last=True)


# -- diffusion --------------------------------------------------------------------------------------------------------

def stable_unet(small):
    from diffusers import UNet2DConditionModel

    size = dict(block_out_channels=(32, 32), layers_per_block=1, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
                cross_attention_dim=32, norm_num_groups=8, attention_head_dim=4) if small else dict(cross_attention_dim=768)
    return Loss(UNet2DConditionModel(**size), lambda model, x, step, context, noise: F.mse_loss(model(x, step, context).sample, noise))


def pictured(small):
    batch, size, rows, width = (2, 16, 8, 32) if small else (8, 64, 77, 768)
    return {"x": randn(batch, 4, size, size), "step": randint(1000, batch), "context": randn(batch, rows, width, seed=3), "noise": randn(batch, 4, size, size, seed=4)}


RECENT["sd-unet"] = Case("Stable Diffusion 1.5's U-Net, 8 x 512", stable_unet, pictured, channels_last=True)


def flux(small):
    from diffusers import FluxTransformer2DModel

    size = dict(in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=4, joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=(4, 6, 6)) if small else \
           dict(num_layers=2, num_single_layers=4)
    def flowed(model, x, words, pooled, step, guidance, wanted):
        side = int(x.shape[1] ** 0.5)
        row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        places = torch.stack([torch.zeros_like(row), row, column], -1).flatten(0, 1).to(x)
        found = model(x, words, pooled, step, places, torch.zeros(words.shape[1], 3).to(x), guidance).sample
        return F.mse_loss(found, wanted)
    return Loss(FluxTransformer2DModel(guidance_embeds=True, **size), flowed)


def packed_latents(small):
    batch, rows, channels, words, width, pooled = (2, 16, 16, 8, 32, 32) if small else (2, 1024, 64, 512, 4096, 768)
    return {"x": randn(batch, rows, channels), "words": randn(batch, words, width, seed=3), "pooled": randn(batch, pooled, seed=4), "step": uniform(batch), "guidance": uniform(batch),
            "wanted": randn(batch, rows, channels, seed=5)}


RECENT["flux"] = Case("Flux.1, 2 + 4 blocks, 2 x (1024 + 512)", flux, packed_latents, note="2 of 19 and 4 of 38 blocks")


def autoencoder(small):
    from diffusers import AutoencoderKL

    widths = (16, 32) if small else (128, 256, 512, 512)
    model = AutoencoderKL(down_block_types=("DownEncoderBlock2D",) * len(widths), up_block_types=("UpDecoderBlock2D",) * len(widths), block_out_channels=widths,
                          layers_per_block=1 if small else 2, norm_num_groups=8 if small else 32)
    def coded(model, x, noise):
        latent = model.encode(x).latent_dist
        seen = model.decode(latent.mean + latent.std * noise).sample
        spread = 0.5 * (latent.mean**2 + latent.var - 1 - latent.logvar).mean()
        return (seen - x).abs().mean() + 1e-6 * spread
    return Loss(model, coded)


RECENT["autoencoder-kl"] = Case("Stable Diffusion's autoencoder, 4 x 256", autoencoder,
                                lambda small: {"x": randn(*((2, 3, 16, 16) if small else (4, 3, 256, 256))), "noise": randn(*((2, 4, 8, 8) if small else (4, 4, 32, 32)), seed=3)}, channels_last=True)


def film_diffusion(small):
    from diffusers import WanTransformer3DModel

    size = dict(num_attention_heads=4, attention_head_dim=16, in_channels=4, out_channels=4, text_dim=32, freq_dim=16, ffn_dim=96, num_layers=2, rope_max_seq_len=32) if small else \
           dict(num_attention_heads=12, ffn_dim=8960, num_layers=6)
    return Loss(WanTransformer3DModel(**size), lambda model, x, step, words, wanted: F.mse_loss(model(x, step, words).sample, wanted))


def film_latents(small):
    batch, channels, frames, rows, columns, words, width = (2, 4, 2, 8, 8, 8, 32) if small else (1, 16, 5, 60, 104, 512, 4096)
    return {"x": randn(batch, channels, frames, rows, columns), "step": randint(1000, batch), "words": randn(batch, words, width, seed=3), "wanted": randn(batch, channels, frames, rows, columns, seed=4)}


RECENT["wan"] = Case("Wan 2.1 1.3B, 6 layers, 17 x 480 x 832", film_diffusion, film_latents, note="6 of 30 layers")


# -- series, tables, recommendations, molecules, control ---------------------------------------------------------------

def patch_mixer(small):
    import transformers as T

    size = dict(context_length=32, patch_length=8, patch_stride=8, num_input_channels=3, d_model=16, num_layers=2, prediction_length=8) if small else \
           dict(context_length=512, patch_length=16, patch_stride=16, num_input_channels=321, d_model=64, num_layers=8, prediction_length=96)
    return Loss(from_config("PatchTSMixerForPrediction", T.PatchTSMixerConfig(**size, mode="mix_channel"), "eager"), lambda model, past, future: model(past_values=past, future_values=future).loss)


RECENT["patchtsmixer"] = Case("PatchTSMixer, 32 x 512 x 321", patch_mixer, lambda small: {"past": randn(*((2, 32, 3) if small else (32, 512, 321))), "future": randn(*((2, 8, 3) if small else (32, 96, 321)), seed=3)})


def decisions(small):
    import transformers as T

    size = dict(state_dim=5, act_dim=3, hidden_size=32, n_layer=2, n_head=2, max_ep_len=64) if small else dict(hidden_size=256, n_layer=6, n_head=4)
    def imitated(model, states, actions, returns, steps, mask):
        said = model(states=states, actions=actions, rewards=returns, returns_to_go=returns, timesteps=steps, attention_mask=mask)
        return ((said.action_preds - actions) ** 2 * mask[..., None]).sum() / mask.sum()
    return Loss(from_config("DecisionTransformerModel", T.DecisionTransformerConfig(**size), "eager"), imitated)


def episodes(small):
    batch, rows, state, action = (2, 6, 5, 3) if small else (512, 20, 17, 4)
    return {"states": randn(batch, rows, state), "actions": randn(batch, rows, action, seed=3), "returns": randn(batch, rows, 1, seed=4), "steps": randint(64 if small else 4096, batch, rows),
            "mask": padding_mask(batch, rows).float()}


RECENT["decision"] = Case("Decision transformer of 6 layers of 256, 512 x 20", decisions, episodes)


class CausalLines(nn.Module):
    """The temporal network of Bai et al. 2018: dilated causal convolutions with normed weights, in residual blocks."""

    def __init__(self, inputs, widths, size, classes):
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.layers, self.skips = nn.ModuleList(), nn.ModuleList()
        for level, (i, o) in enumerate(zip([inputs, *widths], widths)):
            self.layers.append(nn.ModuleList([norm(nn.Conv1d(c, o, size, padding=(size - 1) * 2**level, dilation=2**level)) for c in (i, o)]))
            self.skips.append(nn.Conv1d(i, o, 1) if i != o else nn.Identity())
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(widths[-1], classes)

    def forward(self, x):
        length = x.shape[-1]
        for layers, skip in zip(self.layers, self.skips):
            y = x
            for layer in layers:
                y = self.dropout(F.relu(layer(y)[..., :length]))
            x = F.relu(y + skip(x))
        return self.head(x.transpose(1, 2))


RECENT["tcn"] = Case("TCN of 8 levels of 256, 64 x 1024", lambda small: Loss(CausalLines(4, (16, 16), 3, 5) if small else CausalLines(88, (256,) * 8, 3, 88),
                     lambda model, x, labels: F.cross_entropy(model(x).flatten(0, 1), labels.flatten())),
                     lambda small: {"x": randn(*((2, 4, 24) if small else (64, 88, 1024))), "labels": randint(5 if small else 88, *((2, 24) if small else (64, 1024)))})


class CrossNetwork(nn.Module):
    """DCN v2 (Wang et al. 2021): one large table that all properties share, crosses of low rank, and a deep part beside them."""

    def __init__(self, rows, fields, width, numbers, rank, depth, sizes):
        super().__init__()
        self.table, total = nn.Embedding(rows * fields, width), fields * width + numbers
        self.register_buffer("first", torch.arange(fields) * rows, persistent=False)
        self.down, self.up = (nn.ModuleList([nn.Linear(*pair, bias=bias) for _ in range(depth)]) for pair, bias in (((total, rank), False), ((rank, total), True)))
        self.deep = nn.Sequential(*[layer for i, o in zip([total, *sizes], sizes) for layer in (nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU(), nn.Dropout(0.1))])
        self.head = nn.Linear(total + sizes[-1], 1)

    def forward(self, numbers, properties):
        x = first = torch.cat([self.table(properties + self.first).flatten(1), numbers.abs().log1p()], 1)
        for down, up in zip(self.down, self.up):
            x = first * up(down(x)) + x
        return self.head(torch.cat([x, self.deep(first)], 1)).squeeze(1)


RECENT["dcn"] = Case("DCN v2 of 26 fields of 40,000 x 32, 16384", lambda small: Loss(CrossNetwork(*((20, 4, 8, 3, 8, 2, (16, 16)) if small else (40000, 26, 32, 13, 256, 3, (1024, 512)))),
                     lambda model, numbers, properties, clicked: F.binary_cross_entropy_with_logits(model(numbers, properties), clicked)),
                     lambda small: {"numbers": randn(*((8, 3) if small else (16384, 13))), "properties": randint(20 if small else 40000, *((8, 4) if small else (16384, 26))),
                                    "clicked": randint(2, 8 if small else 16384).float()})


class NextItem(nn.Module):
    """SASRec (Kang and McAuley 2018): causal attention over what a user did, and one positive and one negative item for each place."""

    def __init__(self, items, rows, width, layers, heads):
        super().__init__()
        self.items, self.places, self.dropout = nn.Embedding(items, width, padding_idx=0), nn.Embedding(rows, width), nn.Dropout(0.2)
        self.attention = nn.ModuleList([nn.MultiheadAttention(width, heads, 0.2, batch_first=True) for _ in range(layers)])
        self.norms, self.after = (nn.ModuleList([nn.LayerNorm(width, 1e-8) for _ in range(layers)]) for _ in range(2))
        self.forwards = nn.ModuleList([nn.Sequential(nn.Conv1d(width, width, 1), nn.Dropout(0.2), nn.ReLU(), nn.Conv1d(width, width, 1), nn.Dropout(0.2)) for _ in range(layers)])
        self.last = nn.LayerNorm(width, 1e-8)

    def forward(self, seen, liked, others):
        rows, real = seen.shape[1], (seen != 0)[..., None]
        x = self.dropout(self.items(seen) * self.items.embedding_dim**0.5 + self.places(torch.arange(rows))) * real
        later = torch.ones(rows, rows, dtype=torch.bool).triu(1)
        for attention, norm, after, forward in zip(self.attention, self.norms, self.after, self.forwards):
            query = norm(x)
            x = after(query + attention(query, x, x, attn_mask=later, need_weights=False)[0])
            x = (x + forward(x.transpose(1, 2)).transpose(1, 2)) * real
        x = self.last(x)
        return (x * self.items(liked)).sum(-1), (x * self.items(others)).sum(-1)


def preferred(model, seen, liked, others):
    good, bad = model(seen, liked, others)
    real = (liked != 0).float()
    return ((F.softplus(-good) + F.softplus(bad)) * real).sum() / real.sum()


def histories(small):
    batch, rows, items = (2, 12, 40) if small else (512, 200, 60000)
    real = padding_mask(batch, rows).flip(1)
    return {"seen": randint(items, batch, rows) * real, "liked": randint(items, batch, rows, seed=3) * real, "others": randint(items, batch, rows, seed=4) * real}


RECENT["sasrec"] = Case("SASRec of 60,000 items, 512 x 200", lambda small: Loss(NextItem(*((40, 12, 16, 2, 2) if small else (60000, 200, 128, 2, 2))), preferred), histories)


class Molecules(nn.Module):
    """EGNN (Satorras et al. 2021) over molecules of equal size: messages along all pairs of atoms move features and places."""

    def __init__(self, kinds, width, layers):
        super().__init__()
        self.kinds = nn.Embedding(kinds, width)
        def pair(i, o, last=True):
            return nn.Sequential(nn.Linear(i, width), nn.SiLU(), nn.Linear(width, o), *([nn.SiLU()] if last else []))
        self.messages, self.gates, self.moves, self.updates = (nn.ModuleList([make() for _ in range(layers)]) for make in (
            lambda: pair(2 * width + 1, width), lambda: nn.Linear(width, 1), lambda: pair(width, 1, False), lambda: pair(2 * width, width, False)))
        self.head = pair(width, 1, False)

    def forward(self, kinds, places, real):
        h, both = self.kinds(kinds), (real[:, :, None] * real[:, None])[..., None]
        atoms = h.shape[1]
        for message, gate, move, update in zip(self.messages, self.gates, self.moves, self.updates):
            apart = places[:, :, None] - places[:, None]
            far = (apart**2).sum(-1, keepdim=True)
            m = message(torch.cat([h[:, :, None].expand(-1, -1, atoms, -1), h[:, None].expand(-1, atoms, -1, -1), far], -1))
            m = m * gate(m).sigmoid() * both
            places = places + (apart / (far + 1e-8).sqrt().add(1) * move(m) * both).sum(2) / atoms
            h = h + update(torch.cat([h, m.sum(2)], -1))
        return (self.head(h).squeeze(-1) * real).sum(1)


def molecules(small):
    batch, atoms = (2, 6) if small else (96, 29)
    return {"kinds": randint(5, batch, atoms), "places": randn(batch, atoms, 3), "real": padding_mask(batch, atoms).float(), "energy": randn(batch, seed=3)}


RECENT["egnn"] = Case("EGNN of 7 layers of 128, 96 x 29 atoms", lambda small: Loss(Molecules(*((5, 16, 2) if small else (5, 128, 7))),
                      lambda model, kinds, places, real, energy: F.l1_loss(model(kinds, places, real), energy)), molecules)


class TabularAttention(nn.Module):
    """TabNet (Arik and Pfister 2021): steps that each choose columns by sparsemax and see them through gated layers, of which the first two are shared."""

    def __init__(self, columns, width, steps, classes, virtual):
        super().__init__()
        self.steps, self.width, self.virtual = steps, width, virtual
        self.norm = nn.BatchNorm1d(columns)
        self.shared = nn.ModuleList([nn.Linear(i, 4 * width, bias=False) for i in (columns, 2 * width)])
        self.own = nn.ModuleList([nn.ModuleList([nn.Linear(2 * width, 4 * width, bias=False) for _ in range(2)]) for _ in range(steps + 1)])
        self.norms = nn.ModuleList([nn.ModuleList([nn.BatchNorm1d(4 * width) for _ in range(4)]) for _ in range(steps + 1)])
        self.choice, self.choice_norm = nn.ModuleList([nn.Linear(width, columns, bias=False) for _ in range(steps)]), nn.ModuleList([nn.BatchNorm1d(columns) for _ in range(steps)])
        self.head = nn.Linear(width, classes, bias=False)

    def ghost(self, norm, x):
        return torch.cat([norm(part) for part in x.split(self.virtual)])

    def seen(self, x, step):
        for i, layer in enumerate([*self.shared, *self.own[step]]):
            y = F.glu(self.ghost(self.norms[step][i], layer(x)))
            x = (x + y) * 0.5**0.5 if i else y
        return x.split(self.width, 1)

    def forward(self, x):
        x = self.norm(x)
        prior, said, entropy = torch.ones_like(x), 0.0, 0.0
        _, chosen = self.seen(x, 0)
        for step in range(self.steps):
            mask = sparsemax(self.ghost(self.choice_norm[step], self.choice[step](chosen)) * prior)
            entropy = entropy - (mask * (mask + 1e-15).log()).sum(1).mean() / self.steps
            prior = prior * (1.3 - mask)
            decided, chosen = self.seen(mask * x, step + 1)
            said = said + F.relu(decided)
        return self.head(said), entropy


def sparsemax(x):
    """The projection of rows on the simplex (Martins and Astudillo 2016)."""
    ordered = x.sort(-1, descending=True).values
    sums, count = ordered.cumsum(-1) - 1, torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
    kept = (count * ordered > sums).sum(-1, keepdim=True)
    return F.relu(x - sums.gather(-1, kept - 1) / kept.to(x.dtype))


def tabled(model, x, labels):
    logits, entropy = model(x)
    return F.cross_entropy(logits, labels) + 1e-3 * entropy


RECENT["tabnet"] = Case("TabNet of 54 columns, 16384", lambda small: Loss(TabularAttention(*((6, 8, 2, 3, 8) if small else (54, 64, 5, 7, 512))), tabled),
                        lambda small: {"x": randn(*((16, 6) if small else (16384, 54))), "labels": randint(3 if small else 7, 16 if small else 16384)})
