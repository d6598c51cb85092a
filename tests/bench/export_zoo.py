"""The models of try_exports.py: tiny configurations of many families, each with its loss inside.

table() gives {name: (make, exports, optimizer)}; make() gives a module whose forward is the loss, and its batch.
"""
import pathlib
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from torch_models import with_sinks

BOTH = ["dynamo20+optimize", "script17+dynamic"]
MANY = ["dynamo18+optimize", "dynamo20", "dynamo20+optimize", "dynamo23+optimize", "dynamo20+optimize+dynamic", "script13", "script15+dynamic",
        "script17+dynamic", "script17+optimize", "dynamo20+optimize+rebatch", "script17+rebatch"]
PLAIN = ["dynamo20", "script17+dynamic"]  # optimizing folds batch norms into convolutions
DYNAMO = ["dynamo20"]


class Loss(nn.Module):
    """A loss over a model: loss(model, *batch)."""

    def __init__(self, model, loss):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch):
        return self.loss(self.model, *batch)


def randn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def randint(high, *shape, seed=2):
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


# -- language models --------------------------------------------------------------------------------------------------

def next_token(model, input_ids, labels):
    logits = model(input_ids=input_ids, use_cache=False).logits
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def own_loss(model, input_ids, attention_mask, labels):
    return model(input_ids=input_ids, attention_mask=attention_mask, labels=labels, use_cache=False).loss


LLAMA = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=32)
GROUPED = dict(LLAMA, num_key_value_heads=2)
NARROW = dict(GROUPED, head_dim=8)
GPTJ = dict(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=32, rotary_dim=4)
LANGUAGE_MODELS = {
    "GPT2": ("GPT2LMHead", dict(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=32, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)),
    "GPTNeoX": ("GPTNeoXFor", dict(LLAMA, rotary_pct=0.25)),
    "OPT": ("OPTFor", dict(vocab_size=96, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=32,
                           word_embed_proj_dim=32, dropout=0.0)),
    "Llama": ("LlamaFor", GROUPED), "Mistral": ("MistralFor", dict(GROUPED, sliding_window=6)), "Qwen2": ("Qwen2For", GROUPED),
    "Qwen3": ("Qwen3For", NARROW), "Gemma": ("GemmaFor", NARROW),
    "Gemma2": ("Gemma2For", dict(NARROW, query_pre_attn_scalar=8, sliding_window=6)),
    "Gemma3Text": ("Gemma3For", dict(NARROW, query_pre_attn_scalar=8, sliding_window=6)),
    "Phi": ("PhiFor", LLAMA), "Phi3": ("Phi3For", GROUPED), "Bloom": ("BloomFor", dict(vocab_size=96, hidden_size=32, n_layer=2, n_head=4, hidden_dropout=0.0, attention_dropout=0.0)),
    "Mpt": ("MptFor", dict(vocab_size=96, d_model=32, n_layers=2, n_heads=4, max_seq_len=32)),
    "Falcon": ("FalconFor", dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_hidden_size=48)),
    "Olmo": ("OlmoFor", GROUPED), "Olmo2": ("Olmo2For", GROUPED), "StableLm": ("StableLmFor", GROUPED), "Starcoder2": ("Starcoder2For", dict(GROUPED, residual_dropout=0.0, embedding_dropout=0.0)),
    "GPTNeo": ("GPTNeoFor", dict(vocab_size=96, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
                                 max_position_embeddings=32, window_size=4, resid_dropout=0.0, embed_dropout=0.0, attention_dropout=0.0)),
    "GPTJ": ("GPTJFor", dict(GPTJ, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)), "Cohere": ("CohereFor", GROUPED), "Granite": ("GraniteFor", GROUPED),
}


EAGER_ONLY = ("Gemma2", "Bloom", "Mpt", "GPTNeo", "GPTJ")


def language_model(name, attention, with_own_loss=False):
    def make():
        import transformers as T

        head, settings = LANGUAGE_MODELS[name]
        head = head + "Model" if head.endswith("Head") else head + "CausalLM"
        config = getattr(T, name + "Config")
        model = getattr(T, head)._from_config(config(**dict(settings, bos_token_id=0, eos_token_id=0, pad_token_id=0)), attn_implementation=attention)
        ids = randint(96, 2, 13)
        batch = {"input_ids": ids[:, :-1].contiguous()}
        if with_own_loss:
            batch["attention_mask"] = (torch.arange(12)[None] < torch.tensor([[12], [9]])).long()
            batch["labels"] = torch.where(batch["attention_mask"] == 1, ids[:, :-1], -100)
            return Loss(model, own_loss), batch
        batch["labels"] = ids[:, 1:].contiguous()
        return Loss(model, next_token), batch

    return make


def packed_documents(name, attention):
    """A language model on rows of two documents each, which positions tell apart."""
    def make():
        model, batch = language_model(name, attention)()
        positions = torch.cat([torch.arange(5), torch.arange(7)])[None].expand(2, -1).contiguous()
        return Loss(model.model, next_packed_token), {"input_ids": batch["input_ids"], "position_ids": positions, "labels": batch["labels"]}

    return make


def next_packed_token(model, input_ids, position_ids, labels):
    logits = model(input_ids=input_ids, position_ids=position_ids, use_cache=False).logits
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def attention_with_sinks():
    import transformers as T

    config = T.GptOssConfig(**GROUPED, head_dim=8, sliding_window=6, layer_types=["sliding_attention", "full_attention"],
                            num_local_experts=2, num_experts_per_tok=1, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    model = with_sinks(T.GptOssForCausalLM._from_config(config, attn_implementation="eager"))
    ids = randint(96, 2, 13)
    return Loss(model, next_token), {"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}


# -- encoders ---------------------------------------------------------------------------------------------------------

def classified_text(model, input_ids, attention_mask, labels):
    return F.cross_entropy(model(input_ids=input_ids, attention_mask=attention_mask).logits, labels)


def translated(model, input_ids, decoder_input_ids, labels):
    logits = model(input_ids=input_ids, decoder_input_ids=decoder_input_ids, use_cache=False).logits
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


BERT = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=40,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0)
POSITIONS = dict(relative_attention=True, pos_att_type=["p2c", "c2p"])
ENCODERS = {"Bert": BERT, "Roberta": BERT, "Electra": BERT, "Albert": dict(BERT, embedding_size=16), "MPNet": BERT, "Deberta": dict(BERT, **POSITIONS),
            "DebertaV2": dict(BERT, position_buckets=8, **POSITIONS),
            "DistilBert": dict(vocab_size=96, dim=32, hidden_dim=48, n_layers=2, n_heads=4, max_position_embeddings=40, dropout=0.0,
                               attention_dropout=0.0, seq_classif_dropout=0.0),
            "ModernBert": dict(BERT, local_attention=8, global_attn_every_n_layers=2, classifier_dropout=0.0)}
SEQUENCE = dict(vocab_size=96, d_model=32, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=48, decoder_ffn_dim=48, encoder_attention_heads=4,
                decoder_attention_heads=4, max_position_embeddings=32, dropout=0.0)
TRANSLATORS = {"T5": dict(vocab_size=96, d_model=32, d_ff=48, d_kv=8, num_layers=2, num_heads=4, dropout_rate=0.0, decoder_start_token_id=0),
               "Bart": SEQUENCE}


def encoder(name, attention):
    def make():
        import transformers as T

        config = getattr(T, name + "Config")(**ENCODERS[name])
        for key in ("classifier_dropout", "summary_last_dropout", "classifier_dropout_prob", "pooler_dropout"):
            if hasattr(config, key):
                setattr(config, key, 0.0)
        cls = getattr(T, name + "ForSequenceClassification")
        try:
            model = cls._from_config(config, attn_implementation=attention)
        except ValueError:  # the family has only one implementation
            model = cls._from_config(config, attn_implementation="eager")
        mask = (torch.arange(12)[None] < torch.tensor([[12], [7], [3]])).long()
        return Loss(model, classified_text), {"input_ids": randint(96, 3, 12), "attention_mask": mask, "labels": torch.tensor([0, 1, 0])}

    return make


def translator(name):
    def make():
        import transformers as T

        model = getattr(T, name + "ForConditionalGeneration")(getattr(T, name + "Config")(**TRANSLATORS[name]))
        return Loss(model, translated), {"input_ids": randint(96, 2, 10), "decoder_input_ids": randint(96, 2, 7, seed=3), "labels": randint(96, 2, 7, seed=4)}

    return make


# -- vision -----------------------------------------------------------------------------------------------------------

def classified(model, x, labels):
    return F.cross_entropy(model(x), labels)


def segmented(model, x, labels):
    return F.cross_entropy(model(x)["out"], labels)


def images(batch, size, classes=10):
    return {"x": randn(batch, 3, size, size), "labels": randint(classes, batch)}


TORCHVISION = {"resnet18": {}, "resnet50": {}, "vgg11": dict(dropout=0.0), "vgg11_bn": dict(dropout=0.0), "mobilenet_v2": dict(dropout=0.0),
               "mobilenet_v3_small": dict(dropout=0.0), "efficientnet_b0": dict(dropout=0.0, stochastic_depth_prob=0.0), "densenet121": {},
               "googlenet": dict(aux_logits=False, init_weights=True, dropout=0.0), "regnet_y_400mf": {},
               "convnext_tiny": dict(stochastic_depth_prob=0.0), "swin_t": dict(stochastic_depth_prob=0.0),
               "squeezenet1_1": dict(dropout=0.0), "shufflenet_v2_x0_5": {}, "mnasnet1_0": dict(dropout=0.0), "alexnet": dict(dropout=0.0)}
TIMM = {"deit_tiny_patch16_224": dict(img_size=64, depth=2), "vit_tiny_patch16_224": dict(img_size=64, depth=2, qk_norm=True, init_values=1e-1),
        "mixer_s32_224": dict(img_size=64), "swin_tiny_patch4_window7_224": dict(img_size=56, depths=(2, 2), num_heads=(2, 4), embed_dim=16, drop_path_rate=0.0),
        "convnext_atto": dict(depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)), "resnet10t": {}, "regnetx_002": {}, "repvgg_a0": {}, "ghostnet_050": {},
        "pit_ti_224": dict(img_size=64), "beit_base_patch16_224": dict(img_size=64, depth=2, embed_dim=48, num_heads=4), "cait_xxs24_224": dict(img_size=64, depth=2),
        "gmlp_ti16_224": dict(img_size=64), "eca_resnet33ts": {}, "mobilevit_xxs": {}, "poolformer_s12": {}, "hrnet_w18_small": {},
        "inception_v4": {}, "xception41": {}, "levit_128s": dict(img_size=64), "nfnet_l0": {}, "resmlp_12_224": dict(img_size=64)}
IMAGE_SIZE = {"timm_inception_v4": 96, "timm_swin_tiny_patch4_window7_224": 56}


def image_model(name):
    def make():
        if name.startswith("timm_"):
            import timm

            model = timm.create_model(name[5:], pretrained=False, num_classes=10, drop_rate=0.0, **TIMM[name[5:]])
        else:
            import torchvision

            model = getattr(torchvision.models, name[3:])(num_classes=10, **TORCHVISION[name[3:]])
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return Loss(model, classified), images(4, IMAGE_SIZE.get(name, 64))

    return make


def segmenter(name):
    def make():
        import torchvision

        model = getattr(torchvision.models.segmentation, name)(weights=None, weights_backbone=None, num_classes=5)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return Loss(model, segmented), {"x": randn(2, 3, 64, 64), "labels": randint(5, 2, 64, 64)}

    return make


def swin2():
    import transformers as T

    config = T.Swinv2Config(image_size=64, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=10)
    return without_chance(Loss(T.Swinv2ForImageClassification(config), lambda model, x, labels: F.cross_entropy(model(x).logits, labels))), images(2, 64)


class UNet(nn.Module):
    def __init__(self, mode, norm):
        super().__init__()
        block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), norm(o), nn.ReLU(inplace=True), nn.Conv2d(o, o, 3, padding=1), norm(o), nn.LeakyReLU(0.1))
        self.down, self.middle, self.up, self.head = block(3, 8), block(8, 16), block(24, 8), nn.Conv2d(8, 5, 1)
        self.grow = nn.Upsample(scale_factor=2, mode=mode, **({} if mode == "nearest" else {"align_corners": mode == "bilinear"}))

    def forward(self, x):
        skip = self.down(x)
        low = self.grow(self.middle(F.max_pool2d(skip, 2)))
        dy, dx = skip.shape[2] - low.shape[2], skip.shape[3] - low.shape[3]
        low = F.pad(low, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.head(self.up(torch.cat([skip, low], 1)))


def unet(mode, norm):
    return lambda: (Loss(UNet(mode, norm), classified), {"x": randn(2, 3, 17, 18), "labels": randint(5, 2, 17, 18)})


# -- layers and functions ---------------------------------------------------------------------------------------------

def squares(y):
    """Reduces the results of a module to one number."""
    if isinstance(y, torch.Tensor):
        return (y * y).mean() + y.mean() if y.is_floating_point() else 0.0
    return sum(squares(part) for part in y)


def layer(build, *shapes):
    """A module whose outputs are squared; its float inputs pass a learned scale so that gradients reach them."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = build()
            self.scales = nn.ParameterList([nn.Parameter(torch.rand(s[1:]) + 0.5) for s in shapes])

        def forward(self, *inputs):
            return squares(self.body(*[x * scale for x, scale in zip(inputs, self.scales)]))

    return lambda: (Scaled(), {"x%d" % i: randn(*s, seed=i + 1) for i, s in enumerate(shapes)})


class Function(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, *inputs):
        return self.body(*inputs)


def function(body, *shapes):
    return layer(lambda: Function(body), *shapes)


def first(module):
    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = module()

        def forward(self, *x):
            return self.module(*x)[0]

    return First


def self_attention(**settings):
    class Self(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.MultiheadAttention(16, 4, **settings)

        def forward(self, x):
            mask = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
            return self.module(x, x, x, need_weights=False)[0], self.module(x, x, x)[0], self.module(x, x, x, attn_mask=mask, need_weights=False)[0]

    return Self


ROWS = (4, 5, 16)
LAYERS = {
    "lstm": layer(first(lambda: nn.LSTM(5, 7)), (6, 2, 5)), "lstm_bi2": layer(first(lambda: nn.LSTM(5, 7, 2, bidirectional=True, batch_first=True)), (2, 6, 5)),
    "gru": layer(lambda: nn.GRU(5, 7, batch_first=True), (2, 6, 5)), "gru_bi2": layer(first(lambda: nn.GRU(5, 7, 2, bidirectional=True)), (6, 2, 5)),
    "rnn": layer(first(lambda: nn.RNN(5, 7, 2, nonlinearity="relu")), (6, 2, 5)), "rnn_bi": layer(lambda: nn.RNN(5, 7, bidirectional=True, batch_first=True), (2, 6, 5)),
    "lstm_projected": layer(first(lambda: nn.LSTM(5, 7, proj_size=3)), (6, 2, 5)),
    "lstm_cell": layer(lambda: nn.LSTMCell(5, 7), (2, 5)), "gru_cell": layer(lambda: nn.GRUCell(5, 7), (2, 5)),
    "conv1d": layer(lambda: nn.Sequential(nn.Conv1d(3, 6, 3, padding="same", dilation=2), nn.BatchNorm1d(6), nn.GELU("tanh"), nn.ConvTranspose1d(6, 4, 4, 2, 1), nn.AvgPool1d(2)), (3, 3, 11)),
    "conv3d": layer(lambda: nn.Sequential(nn.Conv3d(3, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU(), nn.MaxPool3d(2, ceil_mode=True), nn.ConvTranspose3d(4, 2, 2, 2), nn.AdaptiveAvgPool3d(1)), (2, 3, 5, 6, 7)),
    "conv2d": layer(lambda: nn.Sequential(nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"), nn.Conv2d(8, 8, 3, groups=4, stride=2), nn.Conv2d(8, 8, 3, groups=8, padding=2, dilation=2),
                                          nn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1, groups=2)), (2, 4, 9, 9)),
    "norms1d": layer(lambda: nn.Sequential(nn.Linear(16, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 8), nn.LayerNorm(8)), (6, 16)),
    "norms2d": layer(lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.SiLU(), nn.InstanceNorm2d(4, affine=True), nn.BatchNorm2d(4, affine=False), nn.InstanceNorm2d(4), nn.LocalResponseNorm(2)), (3, 4, 5, 5)),
    "norms_last": layer(lambda: nn.Sequential(nn.LayerNorm([5, 16]), nn.RMSNorm(16), nn.LayerNorm(16, elementwise_affine=False), nn.LayerNorm(16, bias=False)), ROWS),
    "batch_norm_momentumless": layer(lambda: nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False), nn.Conv2d(4, 3, 1), nn.BatchNorm2d(3, momentum=0.3, eps=1e-3)), (3, 4, 5, 5)),
    "multihead": layer(self_attention(batch_first=True), ROWS), "multihead_time_first": layer(self_attention(), (5, 4, 16)),
    "transformer_encoder": layer(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0, activation="gelu"), 2), ROWS),
    "transformer_norm_first": layer(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, norm_first=True), 2, enable_nested_tensor=False), (5, 4, 16)),
    "transformer": layer(lambda: nn.Transformer(16, 4, 1, 1, 32, dropout=0.0, batch_first=True), (4, 5, 16), (4, 3, 16)),
    "bilinear": layer(lambda: nn.Bilinear(3, 4, 5), (2, 3), (2, 4)), "unfold": layer(lambda: nn.Unfold(3, padding=1, stride=2), (1, 2, 6, 6)),
}


class Activations(nn.Module):
    def __init__(self):
        super().__init__()
        self.bodies = nn.ModuleList([nn.ELU(), nn.CELU(), nn.SELU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.Softplus(), nn.Softplus(2, 10), nn.Softsign(), nn.Hardswish(),
                                     nn.Hardsigmoid(), nn.Hardtanh(), nn.LeakyReLU(), nn.PReLU(), nn.PReLU(5), nn.ReLU6(), nn.Tanhshrink(), nn.Softshrink(), nn.Hardshrink(), nn.LogSigmoid(),
                                     nn.GLU(), nn.Softmax(1), nn.LogSoftmax(-1), nn.Softmin(-1), nn.Threshold(0.1, 0.5), nn.Sigmoid(), nn.Tanh()])

    def forward(self, x):
        return [body(x) for body in self.bodies]


LAYERS["activations"] = layer(Activations, ROWS)
QKV = [(2, 3, 6, 4)] * 3
FUNCTIONS = {
    "einsum": function(lambda a, b: [torch.einsum("bhid,bhjd->bhij", a, b), torch.einsum("bhid,bhjd->bij", a, b), torch.einsum("...id,...jd->...ij", a, b), torch.einsum("bhid,bhid->bh", a, b),
                                     torch.einsum("bhid->bdhi", a)], (2, 3, 4, 5), (2, 3, 4, 5)),
    "scans": function(lambda x: [x.cumsum(1), x.sort(2)[0], x.topk(2, 2)[0], x.flip(1), torch.roll(x, (1, -1), (1, 2)), x.tril(), x.triu(1), x.cumsum(-1).logsumexp(1)], (2, 4, 5)),
    "choices": function(lambda x: [torch.where(x > 0, x, -x), x.masked_fill(x > 0, 0.5), x.clamp(-0.5, 0.5), x.clamp_min(0.1), torch.maximum(x, x.flip(1)), x.abs().max(), x.amax(2), x.amin(1, True)], (2, 4, 5)),
    "masked_writes": function(lambda x, v: [x.masked_scatter(x > 0, v), x.masked_scatter(x[..., :1] > 0, v), torch.index_put(x, (x > 0.5,), torch.tensor(0.5))], (2, 4, 5), (2, 4, 5)),
    "indexing": function(lambda x: [x.index_select(1, torch.tensor([2, 0, 2])), x[:, 1], x[..., ::2], x[:, [1, 3]], torch.gather(x, 1, torch.zeros(2, 2, 5, dtype=torch.long) + 1), x.diagonal(0, 1, 2),
                                    x.repeat(1, 2, 1), x.repeat_interleave(2, 1), torch.stack([x, x * 2], 1), torch.cat(x.chunk(2, 1)), x.unflatten(1, (2, 2)), x.unfold(2, 2, 1)], (2, 4, 5)),
    "reductions": function(lambda x: [x.sum(1), x.mean((1, 2)), x.var(1), x.std((1, 2)), x.norm(dim=1), x.norm(p=1, dim=2), x.prod(2), x.logsumexp(1), F.normalize(x, dim=-1), torch.linalg.vector_norm(x, dim=2)], (2, 4, 5)),
    "pads": function(lambda x: [F.pad(x, (1, 2, 0, 1)), F.pad(x, (1, 2, 2, 1), "reflect"), F.pad(x, (1, 2, 2, 1), "replicate"), F.pad(x, (1, 2, 2, 1), "circular"), F.pad(x, (-1, 1), value=3.0)], (1, 2, 4, 6)),
    "interpolate": function(lambda x: [F.interpolate(x, scale_factor=2), F.interpolate(x, size=(7, 9), mode="bilinear"), F.interpolate(x, size=(7, 9), mode="bilinear", align_corners=True),
                                       F.interpolate(x, scale_factor=1.5, mode="bicubic"), F.interpolate(x, size=(3, 2), mode="nearest-exact")], (1, 2, 4, 6)),
    "antialias": function(lambda x: [F.interpolate(x, size=(3, 2), mode="bilinear", antialias=True), F.interpolate(x, size=(3, 4), mode="bicubic", antialias=True)], (1, 2, 6, 8)),
    "shuffles": function(lambda x: [F.pixel_shuffle(x, 2), F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2), F.channel_shuffle(x, 2)], (1, 8, 4, 6)),
    "pools": function(lambda x: [F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), F.avg_pool2d(x, 3, 2, ceil_mode=True), F.adaptive_avg_pool2d(x, (3, 2)), F.adaptive_max_pool2d(x, 1),
                                 F.lp_pool2d(x, 2, 2), F.max_pool2d(x, 2, ceil_mode=True)], (1, 2, 6, 6)),
    "sdpa": function(F.scaled_dot_product_attention, *QKV), "sdpa_causal": function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3), *QKV),
    "sdpa_boolean": function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(6, 6).tril(2).bool()), *QKV),
    "sdpa_float": function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.linspace(-1, 1, 36).view(6, 6)), *QKV),
    "sdpa_grouped": function(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), (2, 6, 5, 4), (2, 2, 5, 4), (2, 2, 5, 4)),
    "sdpa_bias": function(lambda q, k, v, bias: F.scaled_dot_product_attention(q, k, v, attn_mask=bias), *QKV, (2, 3, 6, 6)),
    "grid_sample": function(lambda x, g: F.grid_sample(x, torch.tanh(g), align_corners=False), (1, 2, 5, 5), (1, 4, 4, 2)),
    "distances": function(lambda a, b: [torch.cdist(a, b), F.cosine_similarity(a[:, :3], b[:, :3], dim=-1), torch.bmm(a, b.transpose(1, 2)), torch.baddbmm(a @ b.mT, a, b.mT)], (2, 3, 4), (2, 5, 4)),
    "elementwise": function(lambda x: [torch.exp(-x * x), torch.log1p(x.abs()), torch.expm1(x), torch.erf(x), torch.rsqrt(x.abs() + 1), torch.atan2(x, x.abs() + 1), torch.sin(x), torch.remainder(x, 0.7), x.pow(3),
                                       x.abs().sqrt(), torch.sign(x) * x, (x.abs() + 0.5).reciprocal(), torch.addcmul(x, x, x, value=0.5), torch.lerp(x, x.flip(0), 0.3)], (2, 4, 5)),
}


# -- losses -----------------------------------------------------------------------------------------------------------

def focal(y, labels):
    p = F.cross_entropy(y, labels, reduction="none")
    return ((1 - torch.exp(-p)) ** 2 * p).mean()


def dice(y, labels):
    p, t = y.softmax(-1), F.one_hot(labels.clamp_min(0), 5).float()
    return 1 - ((2 * (p * t).sum(0) + 1) / (p.sum(0) + t.sum(0) + 1)).mean()


WEIGHTS = [0.5, 1.0, 2.0, 0.3, 1.5]
# Losses of a linear model's output y [8, 5] with a float target t [8, 5] or labels [8] (one of them -100).
LOSSES = {
    "mse": lambda y, t, c: F.mse_loss(y, t), "l1": lambda y, t, c: F.l1_loss(y, t), "smooth_l1": lambda y, t, c: F.smooth_l1_loss(y, t, beta=0.5), "huber": lambda y, t, c: F.huber_loss(y, t, delta=0.7),
    "bce_logits": lambda y, t, c: F.binary_cross_entropy_with_logits(y, torch.sigmoid(t)), "bce_weighted": lambda y, t, c: F.binary_cross_entropy_with_logits(y, torch.sigmoid(t), pos_weight=torch.tensor(WEIGHTS)),
    "bce": lambda y, t, c: F.binary_cross_entropy(torch.sigmoid(y), torch.sigmoid(t)), "nll": lambda y, t, c: F.nll_loss(F.log_softmax(y, 1), c), "kl": lambda y, t, c: F.kl_div(F.log_softmax(y, 1), t.softmax(1), reduction="batchmean"),
    "cross_entropy": lambda y, t, c: F.cross_entropy(y, c), "cross_entropy_sum": lambda y, t, c: F.cross_entropy(y, c, reduction="sum"), "cross_entropy_weighted": lambda y, t, c: F.cross_entropy(y, c, weight=torch.tensor(WEIGHTS)),
    "label_smoothing": lambda y, t, c: F.cross_entropy(y, c.clamp_min(0), label_smoothing=0.1), "soft_labels": lambda y, t, c: F.cross_entropy(y, t.softmax(1)), "focal": lambda y, t, c: focal(y, c.clamp_min(0)),
    "ignore_index": lambda y, t, c: F.cross_entropy(y, c.clamp_min(0), ignore_index=0), "per_sample": lambda y, t, c: (F.cross_entropy(y, c, reduction="none") * t[:, 0].abs()).sum() / t[:, 0].abs().sum(),
    "dice": lambda y, t, c: dice(y, c), "hinge": lambda y, t, c: F.relu(1 - y * t.sign()).mean(), "triplet": lambda y, t, c: F.triplet_margin_loss(y, y.flip(0), t), "cosine": lambda y, t, c: 1 - F.cosine_similarity(y, t).mean(),
    "contrastive": lambda y, t, c: F.cross_entropy(F.normalize(y, dim=-1) @ F.normalize(t, dim=-1).T / 0.07, torch.arange(8)), "gaussian_nll": lambda y, t, c: F.gaussian_nll_loss(y, t, F.softplus(y)),
    "poisson": lambda y, t, c: F.poisson_nll_loss(y, t.abs()), "soft_margin": lambda y, t, c: F.soft_margin_loss(y, t.sign()),
}


def loss_case(loss):
    def make():
        labels = randint(5, 8)
        labels[3] = -100
        return Loss(nn.Linear(6, 5), lambda model, x, t, c: loss(model(x), t, c)), {"x": randn(8, 6), "t": randn(8, 5, seed=5), "c": labels}

    return make


def bag():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 3)

        def forward(self, ids, labels):
            weight = (ids != 0).float().unsqueeze(-1)
            mean = (self.table(ids) * weight).sum(1) / weight.sum(1).clamp_min(1)
            return F.cross_entropy(self.head(mean), labels)

    return Bag(), {"ids": randint(20, 4, 7), "labels": randint(3, 4)}


BY_CHANCE = ("vit-mae",)  # what it hides is drawn too


def without_chance(module):
    """Turns off all that a training step draws, so that two programs may be compared."""
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, float) and ("drop" in name or (name == "p" and isinstance(part, nn.Dropout))):
                setattr(part, name, 0.0)
    return module


def small_of_zoo(case):
    return lambda: (without_chance(case.build(True)), case.batch(True))


def table():
    from zoo_models import ZOO  # which needs this module, as the next does
    from zoo_untuned import UNTUNED

    cases = {"zoo_" + name: (small_of_zoo(case), ["dynamo20"], "sgd") for name, case in {**ZOO, **UNTUNED}.items() if name not in BY_CHANCE}
    for name in LANGUAGE_MODELS:
        # The TorchScript exporter needs an attention mask for these.
        ways = ["dynamo20", "dynamo20+optimize"] if name not in ("GPT2", "Llama") else [how for how in MANY if how.startswith("dynamo")]
        if name not in EAGER_ONLY:
            cases["lm_" + name] = (language_model(name, "sdpa"), ways, "adamw")
        cases["lm_eager_" + name] = (language_model(name, "eager"), ["dynamo20"], "sgd")
    for name in ("GPT2", "Llama", "Qwen2", "Gemma2", "OPT", "Bloom"):
        cases["lm_padded_" + name] = (language_model(name, "eager" if name in EAGER_ONLY else "sdpa", with_own_loss=True), PLAIN, "sgd")
    cases["lm_sinks_GptOss"] = (attention_with_sinks, ["dynamo20"], "sgd")
    cases["lm_packed_Llama"] = (packed_documents("Llama", "sdpa"), ["dynamo20", "dynamo20+optimize"], "sgd")
    cases["lm_packed_eager_Llama"] = (packed_documents("Llama", "eager"), ["dynamo20"], "sgd")
    for name in ENCODERS:
        cases["text_" + name] = (encoder(name, "sdpa"), MANY if name == "Bert" else BOTH, "adamw")
    for name in ("Bert", "Roberta", "DistilBert", "Electra"):
        cases["text_eager_" + name] = (encoder(name, "eager"), BOTH, "sgd")
    for name in TRANSLATORS:
        cases["text_" + name] = (translator(name), BOTH, "sgd")
    for name, make in LAYERS.items():
        cases["layer_" + name] = (make, ["dynamo20+optimize", "script17"], "sgd")
    for name, make in FUNCTIONS.items():
        cases["function_" + name] = (make, ["dynamo20+optimize", "script17", "dynamo23"] if "sdpa" in name else ["dynamo20+optimize", "script17"], "sgd")
    for name, loss in LOSSES.items():
        cases["loss_" + name] = (loss_case(loss), ["dynamo20+optimize", "script17"], "sgd")
    cases["layer_embedding_bag"] = (bag, BOTH, "sgd")
    cases["image_swin2"] = (swin2, DYNAMO, "sgd")
    for mode, norm in (("bilinear", nn.BatchNorm2d), ("nearest", nn.InstanceNorm2d), ("bicubic", nn.BatchNorm2d)):
        cases["image_unet_" + mode] = (unet(mode, norm), PLAIN, "sgd")
    for name in TORCHVISION:
        cases["image_tv_" + name] = (image_model("tv_" + name), (MANY + ["dynamo20+optimize+eval", "script17+eval"]) if name == "resnet18" else PLAIN, "sgd")
    for name in TIMM:
        cases["image_timm_" + name] = (image_model("timm_" + name), PLAIN, "sgd")
    for name in ("deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large", "fcn_resnet50"):
        cases["image_" + name] = (segmenter(name), DYNAMO, "sgd")
    return cases
