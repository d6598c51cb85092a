"""Networks of kinds that zoo_models.py and zoo_untuned.py lack: detectors, graphs, state spaces, experts, waveforms, points, rays and others. This is a module.

KINDS is {name: Case}; zoo_untuned.py takes its cases over. The networks are written close to the paper or the released code. What Python or a search over
data decides while people train (matched boxes, neighbours, edges) is an input.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from export_zoo import Loss, randint, randn
from zoo_models import Case, from_config, padding_mask

KINDS: dict[str, Case] = {}


def uniform(*shape, seed=4):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


# -- detection --------------------------------------------------------------------------------------------------------

def resnet(small, norm):
    """Its stages, so that what detectors read is at hand: ResNet-50, or the same layers once each."""
    from torchvision.models.resnet import Bottleneck, ResNet

    return ResNet(Bottleneck, [1, 1, 1, 1] if small else [3, 4, 6, 3], norm_layer=norm)


def frozen_norm():
    from torchvision.ops import FrozenBatchNorm2d

    return FrozenBatchNorm2d


class RetinaNet(nn.Module):
    """Lin et al. 2017: ResNet-50, a pyramid of five levels, and two heads of four convolutions that all levels share."""

    def __init__(self, small, classes=91, anchors=9):
        super().__init__()
        from torchvision.models._utils import IntermediateLayerGetter
        from torchvision.models.detection.retinanet import RetinaNetHead
        from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelP6P7

        width = 32 if small else 256
        self.backbone = IntermediateLayerGetter(resnet(small, frozen_norm()), {f"layer{level}": str(level) for level in (2, 3, 4)})
        self.pyramid = FeaturePyramidNetwork([512, 1024, 2048], width, extra_blocks=LastLevelP6P7(2048, width))
        self.head = RetinaNetHead(width, anchors, classes)

    def forward(self, x):
        return self.head(list(self.pyramid(self.backbone(x)).values()))


def focal_loss(logits, targets, alpha=0.25, gamma=2.0):
    chance = torch.sigmoid(logits)
    entropy = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    hit = chance * targets + (1 - chance) * (1 - targets)
    return (alpha * targets + (1 - alpha) * (1 - targets)) * (1 - hit) ** gamma * entropy


def detected(model, x, labels, boxes):
    """A label of 0 is the background, of -1 a box that does not count."""
    found = model(x)
    logits, deltas = found["cls_logits"].float(), found["bbox_regression"].float()
    targets = (torch.arange(logits.shape[-1], device=labels.device) == labels[..., None]) & (labels > 0)[..., None]
    objects = (labels > 0).float()
    count = objects.sum().clamp(min=1)
    entropy = focal_loss(logits, targets.float()) * (labels >= 0).float()[..., None]
    return entropy.sum() / count + ((deltas - boxes).abs() * objects[..., None]).sum() / count


def scarce(classes, *shape):
    """Labels as a detector meets them: one anchor in a hundred is an object, and as many do not count."""
    drawn, label = randint(100, *shape, seed=5), 1 + randint(classes - 1, *shape)
    return torch.where(drawn == 0, label, torch.where(drawn == 1, -1, 0))


def anchored(small):
    batch, size = (2, 64) if small else (8, 640)
    rows = [math.ceil(size / 2**level) for level in range(3, 8)]
    count = 9 * sum(n * n for n in rows)
    return {"x": randn(batch, 3, size, size), "labels": scarce(91, batch, count), "boxes": randn(batch, count, 4, seed=3)}


KINDS["retinanet"] = Case("RetinaNet on ResNet-50, 8 x 640", lambda small: Loss(RetinaNet(small), detected), anchored, channels_last=True)


class Detr(nn.Module):
    """Carion et al. 2020: ResNet-50, encoder and decoder, and what each layer of the decoder says of 100 queries. Positions are learned as in the paper's listing."""

    def __init__(self, small, width, heads, layers, queries, classes=91, rows=50):
        super().__init__()
        from torchvision.models._utils import IntermediateLayerGetter

        self.backbone = IntermediateLayerGetter(resnet(small, frozen_norm()), {"layer4": "x"})
        self.shrink = nn.Conv2d(2048, width, 1)
        self.rows, self.columns, self.queries = (nn.Parameter(torch.rand(n, w)) for n, w in ((rows, width // 2), (rows, width // 2), (queries, width)))
        sizes = dict(d_model=width, nhead=heads, dim_feedforward=8 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.ModuleList([nn.TransformerEncoderLayer(**sizes) for _ in range(layers)])
        self.decoder = nn.ModuleList([nn.TransformerDecoderLayer(**sizes) for _ in range(layers)])
        self.norm, self.classes = nn.LayerNorm(width), nn.Linear(width, classes + 1)
        self.boxes = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, x):
        x = self.shrink(self.backbone(x)["x"])
        batch, width, rows, columns = x.shape
        places = torch.cat([self.columns[:columns][None].expand(rows, columns, -1), self.rows[:rows][:, None].expand(rows, columns, -1)], -1).flatten(0, 1)
        x = x.flatten(2).transpose(1, 2) + places
        for layer in self.encoder:
            x = layer(x)
        y, said = self.queries.expand(batch, -1, -1), []
        for layer in self.decoder:
            y = layer(y, x)
            said.append(self.norm(y))
        said = torch.stack(said)
        return self.classes(said), self.boxes(said).sigmoid()


def corners(box):
    x, y, w, h = box.unbind(-1)
    return torch.stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2], -1)


def overlap(a, b):
    """Generalised intersection over union of boxes by their corners."""
    def area(box):
        return (box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1])
    both = (torch.min(a[..., 2:], b[..., 2:]) - torch.max(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    either = area(a) + area(b) - both
    hull = (torch.max(a[..., 2:], b[..., 2:]) - torch.min(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    return both / either - (hull - either) / hull


def matched(model, x, found, labels, boxes):
    """found[layer, image, object] is the query that the matching gave to an object."""
    logits, guessed = model(x)
    logits, guessed = logits.float(), guessed.float()
    nothing = logits.shape[-1] - 1
    targets = torch.full(logits.shape[:-1], nothing, device=x.device).scatter(2, found, labels.expand_as(found))
    weight = torch.ones(nothing + 1, device=x.device)
    weight[nothing] = 0.1
    guessed = guessed.gather(2, found[..., None].expand(-1, -1, -1, 4))
    wanted = boxes.expand_as(guessed)
    count = boxes.shape[0] * boxes.shape[1]
    distance, apart = (guessed - wanted).abs().sum() / count, (1 - overlap(corners(guessed), corners(wanted))).sum() / count
    return logits.shape[0] * F.cross_entropy(logits.flatten(0, 2), targets.flatten(), weight) + 5 * distance + 2 * apart


def with_objects(small):
    batch, size, layers, queries, objects = (2, 64, 2, 10, 3) if small else (16, 640, 6, 100, 20)
    found = torch.stack([torch.randperm(queries, generator=torch.Generator().manual_seed(i))[:objects] for i in range(layers * batch)]).view(layers, batch, objects)
    return {"x": randn(batch, 3, size, size), "found": found, "labels": randint(91, batch, objects), "boxes": 0.2 + 0.6 * uniform(batch, objects, 4)}


KINDS["detr"] = Case("DETR on ResNet-50, 16 x 640", lambda small: Loss(Detr(small, *((32, 4, 2, 10) if small else (256, 8, 6, 100))), matched), with_objects, channels_last=True)


def conv_silu(i, o, size=1, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, size, stride, size // 2, bias=False), nn.BatchNorm2d(o, 1e-3, 0.03), nn.SiLU(inplace=True))


class CrossStage(nn.Module):
    """The block C2f: half of the channels goes through n bottlenecks, and what each of them says is joined."""

    def __init__(self, i, o, n, shortcut):
        super().__init__()
        self.first, self.last, self.shortcut = conv_silu(i, o), conv_silu((2 + n) * (o // 2), o), shortcut
        self.blocks = nn.ModuleList([nn.Sequential(conv_silu(o // 2, o // 2, 3), conv_silu(o // 2, o // 2, 3)) for _ in range(n)])

    def forward(self, x):
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            y = block(parts[-1])
            parts.append(parts[-1] + y if self.shortcut else y)
        return self.last(torch.cat(parts, 1))


class PoolPyramid(nn.Module):
    """SPPF: three max pools of 5 x 5 one after the other."""

    def __init__(self, width):
        super().__init__()
        self.first, self.last = conv_silu(width, width // 2), conv_silu(2 * width, width)

    def forward(self, x):
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(F.max_pool2d(parts[-1], 5, 1, 2))
        return self.last(torch.cat(parts, 1))


class Yolo(nn.Module):
    """YOLOv8 (Jocher et al. 2023): backbone, paths down and up the pyramid, and heads without anchors that say a distribution over 16 distances for each side."""

    def __init__(self, widths, depths, classes=80, bins=16):
        super().__init__()
        w, self.bins = widths, bins
        self.stem = nn.Sequential(conv_silu(3, w[0], 3, 2), conv_silu(w[0], w[1], 3, 2), CrossStage(w[1], w[1], depths[0], True))
        self.down = nn.ModuleList([nn.Sequential(conv_silu(i, o, 3, 2), CrossStage(o, o, n, True)) for i, o, n in zip(w[1:], w[2:], depths[1:])])
        self.pyramid, n = PoolPyramid(w[4]), depths[0]
        self.up = nn.ModuleList([CrossStage(w[4] + w[3], w[3], n, False), CrossStage(w[3] + w[2], w[2], n, False)])
        self.shrink = nn.ModuleList([conv_silu(w[2], w[2], 3, 2), conv_silu(w[3], w[3], 3, 2)])
        self.again = nn.ModuleList([CrossStage(w[2] + w[3], w[3], n, False), CrossStage(w[3] + w[4], w[4], n, False)])
        def head(i, middle, o):
            return nn.Sequential(conv_silu(i, middle, 3), conv_silu(middle, middle, 3), nn.Conv2d(middle, o, 1))
        self.sides = nn.ModuleList([head(i, max(16, w[2] // 4, 4 * bins), 4 * bins) for i in w[2:]])
        self.classes = nn.ModuleList([head(i, max(w[2], min(classes, 100)), classes) for i in w[2:]])
        for level in self.classes:
            nn.init.constant_(level[-1].bias, -7.0)  # few boxes are objects

    def forward(self, x):
        small = self.down[0](self.stem(x))
        middle = self.down[1](small)
        large = self.pyramid(self.down[2](middle))
        middle = self.up[0](torch.cat([F.interpolate(large, scale_factor=2.0), middle], 1))
        small = self.up[1](torch.cat([F.interpolate(middle, scale_factor=2.0), small], 1))
        middle = self.again[0](torch.cat([self.shrink[0](small), middle], 1))
        large = self.again[1](torch.cat([self.shrink[1](middle), large], 1))
        levels = (small, middle, large)
        sides = torch.cat([head(level).flatten(2) for head, level in zip(self.sides, levels)], 2).transpose(1, 2)
        scores = torch.cat([head(level).flatten(2) for head, level in zip(self.classes, levels)], 2).transpose(1, 2)
        return sides.unflatten(2, (4, self.bins)), scores


def complete_overlap(a, b, eps=1e-7):
    """CIoU of boxes that are distances to the left, top, right and bottom of the same point."""
    def sides(box):
        return box[..., 0] + box[..., 2], box[..., 1] + box[..., 3]
    (wa, ha), (wb, hb) = sides(a), sides(b)
    least, most = sides(torch.min(a, b)), sides(torch.max(a, b))
    both = least[0] * least[1]
    share = both / (wa * ha + wb * hb - both + eps)
    centre = (((a - b)[..., 2:] - (a - b)[..., :2]) / 2).square().sum(-1)
    shape = 4 / math.pi**2 * (torch.atan(wb / (hb + eps)) - torch.atan(wa / (ha + eps))).square()
    weight = shape / (shape - share + 1 + eps)  # detached, since an export says nothing of no_grad
    return share - centre / (most[0].square() + most[1].square() + eps) - weight.detach() * shape


def assigned(model, x, objects, targets, boxes):
    sides, scores = model(x)
    sides, scores = sides.float(), scores.float()
    total = targets.sum().clamp(min=1)
    weight = targets.sum(-1) * objects
    distances = sides.softmax(-1) @ torch.arange(sides.shape[-1], device=x.device, dtype=torch.float32)
    left = boxes.long()
    def entropy(bins):
        return F.cross_entropy(sides.flatten(0, 2), bins.flatten(), reduction="none").view(bins.shape)
    near = entropy(left) * (left + 1 - boxes) + entropy(left + 1) * (boxes - left)
    overlaps = ((1 - complete_overlap(distances, boxes)) * weight).sum() / total
    return 0.5 * F.binary_cross_entropy_with_logits(scores, targets, reduction="sum") / total + 7.5 * overlaps + 1.5 * (near.mean(-1) * weight).sum() / total


def without_anchors(small):
    batch, size = (2, 64) if small else (32, 640)
    count = sum((size // 2**level) ** 2 for level in (3, 4, 5))
    objects = (randint(20, batch, count) == 0).float()
    targets = F.one_hot(randint(80, batch, count, seed=3), 80).float() * (objects * uniform(batch, count))[..., None]
    return {"x": randn(batch, 3, size, size), "objects": objects, "targets": targets, "boxes": 0.5 + 14 * uniform(batch, count, 4, seed=5)}


KINDS["yolo"] = Case("YOLOv8m, 32 x 640", lambda small: Loss(Yolo(*(((16, 16, 32, 32, 64), (1, 1, 1, 1)) if small else ((48, 96, 192, 384, 576), (2, 4, 4, 2)))), assigned),
                     without_anchors, channels_last=True)


# -- graphs -----------------------------------------------------------------------------------------------------------

class GraphConv(nn.Module):
    """Kipf and Welling 2017: the sum over a node's edges, each with one over the root of both degrees."""

    def __init__(self, i, o):
        super().__init__()
        self.linear, self.bias = nn.Linear(i, o, bias=False), nn.Parameter(torch.zeros(o))

    def forward(self, x, source, target):
        degree = torch.zeros(x.shape[0], device=x.device).index_add(0, target, torch.ones(target.shape[0], device=x.device))
        scale = degree.clamp(min=1).rsqrt()
        x = self.linear(x)
        messages = x[source] * (scale[source] * scale[target])[:, None].to(x.dtype)
        return torch.zeros_like(x).index_add(0, target, messages) + self.bias


class GraphAttention(nn.Module):
    """Velickovic et al. 2018: a softmax over the edges that end at a node."""

    def __init__(self, i, o, heads):
        super().__init__()
        self.heads, self.linear, self.bias = heads, nn.Linear(i, o, bias=False), nn.Parameter(torch.zeros(o))
        self.of_source, self.of_target = (nn.Parameter(0.1 * torch.randn(heads, o // heads)) for _ in range(2))

    def forward(self, x, source, target):
        nodes = x.shape[0]
        x = self.linear(x).view(nodes, self.heads, -1)
        score = F.leaky_relu((x * self.of_source).sum(-1)[source] + (x * self.of_target).sum(-1)[target], 0.2)
        index = target[:, None].expand_as(score)
        top = torch.zeros(nodes, self.heads, device=x.device, dtype=score.dtype).scatter_reduce(0, index, score.detach(), "amax", include_self=False)
        share = torch.exp(score - top[target])
        total = torch.zeros_like(share[:nodes]).index_add(0, target, share)
        share = (share / (total[target] + 1e-16)).to(x.dtype)
        return torch.zeros_like(x).index_add(0, target, x[source] * share[..., None]).flatten(1) + self.bias


class GraphNetwork(nn.Module):
    def __init__(self, layers, widths):
        super().__init__()
        self.layers = nn.ModuleList([layer(i, o) for layer, i, o in zip(layers, widths, widths[1:])])
        self.norms, self.dropout = nn.ModuleList([nn.BatchNorm1d(o) for o in widths[1:-1]]), nn.Dropout(0.5)

    def forward(self, x, source, target):
        for layer, norm in zip(self.layers, self.norms):
            x = self.dropout(F.relu(norm(layer(x, source, target))))
        return self.layers[-1](x, source, target)


def graph(small):
    nodes, edges, width, classes = (40, 200, 16, 5) if small else (100000, 1000000, 128, 48)
    own = torch.arange(nodes)
    return {"x": randn(nodes, width), "source": torch.cat([randint(nodes, edges), own]), "target": torch.cat([randint(nodes, edges, seed=3), own]),
            "labels": randint(classes, nodes, seed=4)}


def of_nodes(model, x, source, target, labels):
    return F.cross_entropy(model(x, source, target), labels)


KINDS["gcn"] = Case("GCN of 3 layers of 256, 100,000 nodes", lambda small: Loss(GraphNetwork([GraphConv] * 3, [16, 16, 16, 5] if small else [128, 256, 256, 48]), of_nodes), graph)
KINDS["gat"] = Case("GAT of 3 layers of 256, 100,000 nodes", lambda small: Loss(GraphNetwork([lambda i, o: GraphAttention(i, o, 4 if o % 4 == 0 else 1)] * 3,
                    [16, 16, 16, 5] if small else [128, 256, 256, 48]), of_nodes), graph)


# -- sequences without attention --------------------------------------------------------------------------------------

def next_of(model, input_ids, labels):
    return F.cross_entropy(model(input_ids).flatten(0, 1), labels.flatten())


def tokens(vocabulary, batch, rows):
    def make(small):
        ids = randint(*((512, 2, 33) if small else (vocabulary, batch, rows + 1)))
        return {"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}
    return make


class Residual(nn.Module):
    """A language model of blocks with a norm in front of each; the head has the table's weights."""

    def __init__(self, vocabulary, width, blocks):
        super().__init__()
        self.table, self.blocks = nn.Embedding(vocabulary, width), nn.ModuleList(blocks)
        self.norms, self.norm, self.head = nn.ModuleList([nn.RMSNorm(width, 1e-5) for _ in blocks]), nn.RMSNorm(width, 1e-5), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.table.weight, std=0.02)
        self.head.weight = self.table.weight

    def forward(self, input_ids):
        x = self.table(input_ids)
        for norm, block in zip(self.norms, self.blocks):
            x = x + block(norm(x))
        return self.head(self.norm(x))


def segment_sums(x):
    """out[..., i, j] = x[j + 1] + ... + x[i], and minus infinity above the diagonal."""
    sums = x.cumsum(-1)
    lower = torch.ones(x.shape[-1], x.shape[-1], dtype=torch.bool, device=x.device).tril()
    return (sums[..., :, None] - sums[..., None, :]).masked_fill(~lower, -math.inf)


class Mamba2(nn.Module):
    """State-space duality (Dao and Gu 2024) in chunks, as in the paper's listing, with one group."""

    def __init__(self, width, state, head=64, chunk=256, taps=4):
        super().__init__()
        self.inner, self.state, self.head, self.heads, self.chunk, self.taps = 2 * width, state, head, 2 * width // head, chunk, taps
        mixed = self.inner + 2 * state
        self.grow, self.shrink, self.norm = nn.Linear(width, self.inner + mixed + self.heads, bias=False), nn.Linear(self.inner, width, bias=False), nn.RMSNorm(self.inner, 1e-5)
        self.mix = nn.Conv1d(mixed, mixed, taps, groups=mixed, padding=taps - 1)
        self.dt_bias, self.a_log, self.d = (nn.Parameter(t) for t in (torch.rand(self.heads), torch.arange(1.0, self.heads + 1).log(), torch.ones(self.heads)))

    def forward(self, u):
        batch, rows, _ = u.shape
        z, mixed, dt = self.grow(u).split([self.inner, self.inner + 2 * self.state, self.heads], -1)
        mixed = F.silu(self.mix(mixed.transpose(1, 2))[..., :rows].transpose(1, 2))
        x, b, c = mixed.split([self.inner, self.state, self.state], -1)
        dt = F.softplus(dt.float() + self.dt_bias)
        x = x.unflatten(-1, (self.heads, self.head))
        y = self.scan(x * dt[..., None].to(x.dtype), -self.a_log.float().exp() * dt, b, c) + x * self.d[:, None].to(x.dtype)
        return self.shrink(self.norm(y.flatten(2) * F.silu(z)))

    def scan(self, x, a, b, c):  # [batch, rows, heads, head], [batch, rows, heads], [batch, rows, state] twice
        chunk = min(self.chunk, x.shape[1])
        x, a, b, c = (t.unflatten(1, (-1, chunk)) for t in (x, a, b, c))
        a = a.permute(0, 3, 1, 2)  # [batch, heads, chunks, chunk]
        sums = a.cumsum(-1)
        within = torch.einsum("bcln,bcsn->bcls", c, b)[:, None] * segment_sums(a).exp().to(x.dtype)
        diagonal = torch.einsum("bhcls,bcshp->bclhp", within, x)
        decay = (sums[..., -1:] - sums).exp().to(x.dtype)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", b, decay, x)
        states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
        between = segment_sums(F.pad(sums[..., -1], (1, 0))).exp().to(x.dtype)
        states = torch.einsum("bhzc,bchpn->bzhpn", between, states)[:, :-1]
        off_diagonal = torch.einsum("bcln,bchpn,bhcl->bclhp", c, states, sums.exp().to(x.dtype))
        return (diagonal + off_diagonal).flatten(1, 2)


KINDS["mamba2"] = Case("Mamba-2 130M, 8 x 2048", lambda small: Loss(Residual(512, 64, [Mamba2(64, 16, 16, 8) for _ in range(2)]) if small else
                       Residual(50288, 768, [Mamba2(768, 128) for _ in range(24)]), next_of), tokens(50288, 8, 2048))


class GatedLinearAttention(nn.Module):
    """Yang et al. 2024: a matrix of state for each head, which forgets at a rate of its own for each key channel; in chunks, one after the other."""

    def __init__(self, width, heads, chunk=64):
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.q, self.k, self.v, self.gate, self.out = (nn.Linear(i, o, bias=False) for i, o in
                                                       ((width, width // 2), (width, width // 2), (width, width), (width, width), (width, width)))
        self.forget, self.norm = nn.Sequential(nn.Linear(width, 16, bias=False), nn.Linear(16, width // 2)), nn.RMSNorm(width // heads, 1e-5)

    def forward(self, x):
        batch, rows, width = x.shape
        chunk = min(self.chunk, rows)
        def divided(t):  # [batch, heads, chunks, chunk, channels]
            return t.view(batch, rows // chunk, chunk, self.heads, -1).permute(0, 3, 1, 2, 4)
        q, k, v = (divided(layer(x)) for layer in (self.q, self.k, self.v))
        sums = divided(F.logsigmoid(self.forget(x).float()) / 16).cumsum(3)
        last = sums[..., -1:, :]
        near = (q.float() * sums.exp()).to(x.dtype) * q.shape[-1] ** -0.5
        scores = (near @ (k.float() * (-sums).exp()).to(x.dtype).transpose(-1, -2)).tril()
        update = (k.float() * (last - sums).exp()).to(x.dtype).transpose(-1, -2) @ v
        keep, state, states = last.exp().transpose(-1, -2).to(x.dtype), torch.zeros_like(update[:, :, 0]), []
        for i in range(rows // chunk):
            states.append(state)
            state = state * keep[:, :, i] + update[:, :, i]
        y = self.norm(scores @ v + near @ torch.stack(states, 2)).permute(0, 2, 3, 1, 4).reshape(batch, rows, width)
        return self.out(y * F.silu(self.gate(x)))


class GatedMlp(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate, self.grow, self.shrink = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.shrink(F.silu(self.gate(x)) * self.grow(x))


KINDS["gla"] = Case("gated linear attention 340M, 8 x 2048", lambda small: Loss(Residual(512, 64, [b for _ in range(2) for b in (GatedLinearAttention(64, 4, 8), GatedMlp(64, 96))])
                    if small else Residual(32000, 1024, [b for _ in range(24) for b in (GatedLinearAttention(1024, 4), GatedMlp(1024, 2816))]), next_of), tokens(32000, 8, 2048))


# -- experts ----------------------------------------------------------------------------------------------------------

class CausalAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, rows, width = x.shape
        q, k, v = self.qkv(x).view(batch, rows, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        half = q.shape[-1] // 2
        angle = torch.arange(rows, device=x.device)[:, None] * 10000.0 ** (-torch.arange(half, device=x.device) / half)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        def turned(t):
            a, b = t.chunk(2, -1)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        return self.out(F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True).transpose(1, 2).reshape(batch, rows, width))


class Experts(nn.Module):
    """Two of n experts for each token (Lepikhin et al. 2021), each of which takes a quarter more tokens than its share and drops what comes later."""

    def __init__(self, width, inner, experts, chosen=2, room=1.25):
        super().__init__()
        self.router, self.chosen, self.room = nn.Linear(width, experts, bias=False), chosen, room
        self.gate, self.grow, self.shrink = (nn.Parameter(0.02 * torch.randn(experts, i, o)) for i, o in ((width, inner), (width, inner), (inner, width)))

    def forward(self, x):
        shape, x = x.shape, x.flatten(0, 1)
        count, experts = x.shape[0], self.router.out_features
        places = math.ceil(self.room * self.chosen * count / experts / 8) * 8
        shares = self.router(x).float().softmax(-1)
        weight, expert = shares.topk(self.chosen, -1)
        weight = weight / weight.sum(-1, keepdim=True)
        hits = F.one_hot(expert.t().reshape(-1), experts)  # first choices come before second ones
        place = (hits.cumsum(0) * hits).sum(-1) - 1
        balance = experts * (hits[:count].float().mean(0) * shares.mean(0)).sum()
        slot = torch.where(place < places, expert.t().reshape(-1) * places + place, experts * places)
        taken = torch.zeros(experts * places + 1, x.shape[1], device=x.device, dtype=x.dtype).index_copy(0, slot, x.repeat(self.chosen, 1))
        taken = taken[:-1].view(experts, places, -1)
        made = (F.silu(taken @ self.gate) * (taken @ self.grow)) @ self.shrink
        made = F.pad(made.flatten(0, 1), (0, 0, 0, 1))[slot] * weight.t().reshape(-1, 1).to(x.dtype)
        return made.view(self.chosen, *shape).sum(0), balance


class ExpertDecoder(nn.Module):
    def __init__(self, vocabulary, width, heads, layers, inner, experts):
        super().__init__()
        self.table, self.head, self.norm = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False), nn.RMSNorm(width, 1e-5)
        self.layers = nn.ModuleList([nn.ModuleList([nn.RMSNorm(width, 1e-5), CausalAttention(width, heads), nn.RMSNorm(width, 1e-5), Experts(width, inner, experts)])
                                     for _ in range(layers)])

    def forward(self, input_ids):
        x, balance = self.table(input_ids), 0.0
        for norm1, attention, norm2, experts in self.layers:
            x = x + attention(norm1(x))
            y, share = experts(norm2(x))
            x, balance = x + y, balance + share
        return self.head(self.norm(x)), balance / len(self.layers)


def balanced(model, input_ids, labels):
    logits, balance = model(input_ids)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + 0.01 * balance


KINDS["moe"] = Case("decoder of 8 experts, 12 layers of 1024, 8 x 2048", lambda small: Loss(ExpertDecoder(*((512, 64, 4, 2, 96, 4) if small else (32000, 1024, 16, 12, 2816, 8))), balanced),
                    tokens(32000, 8, 2048))


# -- series and waveforms ---------------------------------------------------------------------------------------------

def patch_tst(small):
    import transformers as T

    size = dict(num_input_channels=3, context_length=64, prediction_length=16, patch_length=8, patch_stride=4, d_model=32, num_attention_heads=4, ffn_dim=64, num_hidden_layers=2) if small else \
           dict(num_input_channels=321, context_length=512, prediction_length=96, patch_length=16, patch_stride=8, d_model=128, num_attention_heads=16, ffn_dim=256, num_hidden_layers=3)
    config = T.PatchTSTConfig(**size, attention_dropout=0.2, ff_dropout=0.2, head_dropout=0.2, loss="mse", scaling="std", positional_encoding_type="random")
    return Loss(from_config("PatchTSTForPrediction", config, "sdpa"), lambda model, past, future: model(past_values=past, future_values=future).loss)


def series(small):
    batch, past, future, channels = (4, 64, 16, 3) if small else (32, 512, 96, 321)
    return {"past": randn(batch, past, channels), "future": randn(batch, future, channels, seed=3)}


KINDS["patchtst"] = Case("PatchTST, 32 x 512 x 321", patch_tst, series)


class Generator(nn.Module):
    """HiFi-GAN's V1 (Kong et al. 2020): transposed convolutions, and behind each the mean of three towers of dilated convolutions; weights have norms of their own."""

    def __init__(self, bands, width, rates, sizes=(3, 7, 11), dilations=(1, 3, 5)):
        super().__init__()
        from torch.nn.utils.parametrizations import weight_norm

        def conv(i, o, size, dilation=1):
            return weight_norm(nn.Conv1d(i, o, size, dilation=dilation, padding=(size - 1) * dilation // 2))
        self.first, self.grow, self.towers = conv(bands, width, 7), nn.ModuleList(), nn.ModuleList()
        for level, rate in enumerate(rates):
            i, o = width >> level, width >> level + 1
            self.grow.append(weight_norm(nn.ConvTranspose1d(i, o, 2 * rate, rate, rate // 2)))
            self.towers.append(nn.ModuleList([nn.ModuleList([nn.ModuleList([conv(o, o, size, dilation), conv(o, o, size)]) for dilation in dilations]) for size in sizes]))
        self.last = conv(width >> len(rates), 1, 7)

    def forward(self, x):
        x = self.first(x)
        for grow, towers in zip(self.grow, self.towers):
            x, total = grow(F.leaky_relu(x, 0.1)), 0.0
            for tower in towers:
                y = x
                for one, other in tower:
                    y = y + other(F.leaky_relu(one(F.leaky_relu(y, 0.1)), 0.1))
                total = total + y
            x = total / len(towers)
        return torch.tanh(self.last(F.leaky_relu(x)))


class MelLoss(nn.Module):
    """45 times the distance between logarithms of mel bands, whose Fourier transforms are convolutions with a Hann window's waves, and the distance of the waves."""

    def __init__(self, model, window, hop, bands):
        super().__init__()
        self.model, self.hop, self.window = model, hop, window
        angle = 2 * math.pi * torch.outer(torch.arange(window // 2 + 1.0), torch.arange(float(window))) / window
        self.register_buffer("waves", (torch.cat([angle.cos(), angle.sin()]) * torch.hann_window(window))[:, None])
        self.register_buffer("mel", torch.rand(bands, window // 2 + 1, generator=torch.Generator().manual_seed(5)) / window)

    def bands(self, wave):
        edge = (self.window - self.hop) // 2
        real, imaginary = F.conv1d(F.pad(wave, (edge, edge), "reflect"), self.waves, stride=self.hop).chunk(2, 1)
        return torch.log((self.mel @ (real.square() + imaginary.square() + 1e-9).sqrt()).clamp(min=1e-5))

    def forward(self, x, wave):
        made = self.model(x)
        return 45 * F.l1_loss(self.bands(made), self.bands(wave)) + F.l1_loss(made, wave)


def hifi_gan(small):
    return MelLoss(Generator(8, 32, (2, 2)), 16, 4, 8) if small else MelLoss(Generator(80, 512, (8, 8, 2, 2)), 1024, 256, 80)


def spoken(small):
    batch, bands, frames, hop = (2, 8, 16, 4) if small else (64, 80, 32, 256)
    return {"x": randn(batch, bands, frames), "wave": 0.3 * randn(batch, 1, frames * hop, seed=3)}


KINDS["hifi-gan"] = Case("generator of HiFi-GAN V1, 64 x 8192", hifi_gan, spoken)


class WaveNet(nn.Module):
    """van den Oord et al. 2016: dilated causal convolutions with gates."""

    def __init__(self, width, skips, layers, stacks, classes=256):
        super().__init__()
        self.table = nn.Embedding(classes, width)
        self.dilations = [2**i for i in range(layers)] * stacks
        self.mix = nn.ModuleList([nn.Conv1d(width, 2 * width, 2, dilation=d) for d in self.dilations])
        self.keep, self.skip = (nn.ModuleList([nn.Conv1d(width, o, 1) for _ in self.dilations]) for o in (width, skips))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(skips, skips, 1), nn.ReLU(), nn.Conv1d(skips, classes, 1))

    def forward(self, samples):
        x, total = self.table(samples).transpose(1, 2), 0.0
        for dilation, mix, keep, skip in zip(self.dilations, self.mix, self.keep, self.skip):
            filtered, gate = mix(F.pad(x, (dilation, 0))).chunk(2, 1)
            y = torch.tanh(filtered) * torch.sigmoid(gate)
            x, total = x + keep(y), total + skip(y)
        return self.head(total)


def samples(small):
    wave = randint(256, *((2, 65) if small else (8, 16001)))
    return {"samples": wave[:, :-1].contiguous(), "labels": wave[:, 1:].contiguous()}


KINDS["wavenet"] = Case("WaveNet of 30 layers of 128, 8 x 16000", lambda small: Loss(WaveNet(*((16, 16, 3, 2) if small else (128, 256, 10, 3))),
                        lambda model, samples, labels: F.cross_entropy(model(samples), labels)), samples)


# -- points, rays and films -------------------------------------------------------------------------------------------

class EdgeConv(nn.Module):
    """DGCNN (Wang et al. 2019): the greatest of what a layer makes of a point's neighbours, seen from it."""

    def __init__(self, i, o):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2 * i, o, 1, bias=False), nn.BatchNorm2d(o)

    def forward(self, x, neighbours):  # [batch, channels, points], [batch, points, k]
        batch, width, points = x.shape
        rows = x.transpose(1, 2).reshape(batch * points, width)
        index = neighbours + torch.arange(batch, device=x.device)[:, None, None] * points
        seen = rows[index.flatten()].view(batch, points, -1, width)
        own = rows.view(batch, points, 1, width).expand_as(seen)
        edges = torch.cat([seen - own, own], 3).permute(0, 3, 1, 2)
        return F.leaky_relu(self.norm(self.conv(edges)), 0.2).amax(3)


class PointNetwork(nn.Module):
    def __init__(self, widths, joined, classes=40):
        super().__init__()
        self.edges = nn.ModuleList([EdgeConv(i, o) for i, o in zip([3, *widths], widths)])
        self.join = nn.Sequential(nn.Conv1d(sum(widths), joined, 1, bias=False), nn.BatchNorm1d(joined), nn.LeakyReLU(0.2))
        def layer(i, o):
            return nn.Sequential(nn.Linear(i, o, bias=False), nn.BatchNorm1d(o), nn.LeakyReLU(0.2), nn.Dropout(0.5))
        self.head = nn.Sequential(layer(2 * joined, joined // 2), layer(joined // 2, joined // 4), nn.Linear(joined // 4, classes))

    def forward(self, x, neighbours):
        parts = []
        for level, edge in enumerate(self.edges):
            x = edge(x, neighbours[:, level])
            parts.append(x)
        x = self.join(torch.cat(parts, 1))
        return self.head(torch.cat([x.amax(2), x.mean(2)], 1))


def points(small):
    batch, count, k = (4, 32, 4) if small else (32, 1024, 20)
    return {"x": randn(batch, 3, count), "neighbours": randint(count, batch, 4, count, k), "labels": randint(40, batch)}


KINDS["dgcnn"] = Case("DGCNN, 32 x 1024 points of 20 neighbours", lambda small: Loss(PointNetwork(*(((8, 8, 16, 16), 32) if small else ((64, 64, 128, 256), 1024))),
                      lambda model, x, neighbours, labels: F.cross_entropy(model(x, neighbours), labels, label_smoothing=0.2)), points)


def film_network(small):
    from torchvision.models.video.resnet import BasicBlock, Conv2Plus1D, R2Plus1dStem, VideoResNet

    depth = 1 if small else 2
    return Loss(VideoResNet(BasicBlock, [Conv2Plus1D] * 4, [depth] * 4, R2Plus1dStem, num_classes=400), lambda model, x, labels: F.cross_entropy(model(x), labels))


KINDS["r2plus1d"] = Case("R(2+1)D-18, 16 x 16 x 112", film_network,
                         lambda small: {"x": randn(*((2, 3, 4, 32, 32) if small else (16, 3, 16, 112, 112))), "labels": randint(400, 2 if small else 16)})


class SeparableFilm(nn.Module):
    """A block of X3D (Feichtenhofer 2020): a depthwise 3 x 3 x 3 convolution between two of size 1, and in every other block a gate from means."""

    def __init__(self, i, o, stride, gated):
        super().__init__()
        middle = int(2.25 * o)
        self.grow = nn.Sequential(nn.Conv3d(i, middle, 1, bias=False), nn.BatchNorm3d(middle), nn.ReLU(inplace=True))
        self.mix = nn.Sequential(nn.Conv3d(middle, middle, 3, (1, stride, stride), 1, groups=middle, bias=False), nn.BatchNorm3d(middle))
        narrow = max(8, middle // 16 // 8 * 8)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Conv3d(middle, narrow, 1), nn.ReLU(), nn.Conv3d(narrow, middle, 1), nn.Sigmoid()) if gated else None
        self.shrink = nn.Sequential(nn.Conv3d(middle, o, 1, bias=False), nn.BatchNorm3d(o))
        self.skip = nn.Identity() if i == o and stride == 1 else nn.Sequential(nn.Conv3d(i, o, 1, (1, stride, stride), bias=False), nn.BatchNorm3d(o))

    def forward(self, x):
        y = self.mix(self.grow(x))
        if self.gate is not None:
            y = y * self.gate(y)
        return F.relu(self.shrink(F.silu(y)) + self.skip(x))


class FilmNetwork(nn.Module):
    def __init__(self, widths, depths, classes=400):
        super().__init__()
        first, last = widths[0], int(2.25 * widths[-1])
        self.stem = nn.Sequential(nn.Conv3d(3, first, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False),
                                  nn.Conv3d(first, first, (5, 1, 1), padding=(2, 0, 0), groups=first, bias=False), nn.BatchNorm3d(first), nn.ReLU(inplace=True))
        self.blocks = nn.Sequential(*[SeparableFilm(i if n == 0 else o, o, 2 if n == 0 else 1, n % 2 == 0)
                                      for i, o, depth in zip([first, *widths], widths, depths) for n in range(depth)])
        self.last = nn.Sequential(nn.Conv3d(widths[-1], last, 1, bias=False), nn.BatchNorm3d(last), nn.ReLU(inplace=True))
        self.head = nn.Sequential(nn.Linear(last, 2048, bias=False), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(2048, classes))

    def forward(self, x):
        return self.head(self.last(self.blocks(self.stem(x))).mean((2, 3, 4)))


KINDS["x3d"] = Case("X3D-M, 16 x 16 x 224", lambda small: Loss(FilmNetwork(*(((8, 16), (2, 1)) if small else ((24, 48, 96, 192), (3, 5, 11, 7)))),
                    lambda model, x, labels: F.cross_entropy(model(x), labels)),
                    lambda small: {"x": randn(*((2, 3, 4, 32, 32) if small else (16, 3, 16, 224, 224))), "labels": randint(400, 2 if small else 16)})


class RadianceField(nn.Module):
    """NeRF (Mildenhall et al. 2020): waves of a place and a direction, eight layers with a skip, and the light that reaches the eye along a ray."""

    def __init__(self, width, layers=8, waves=10, direction_waves=4):
        super().__init__()
        place, direction, self.waves, self.direction_waves = 3 + 6 * waves, 3 + 6 * direction_waves, waves, direction_waves
        self.layers = nn.ModuleList([nn.Linear(place if i == 0 else width + (place if i == 5 else 0), width) for i in range(layers)])
        self.density, self.feature = nn.Linear(width, 1), nn.Linear(width, width)
        nn.init.constant_(self.density.bias, 0.5)  # some places are dense from the start
        self.colour = nn.Sequential(nn.Linear(width + direction, width // 2), nn.ReLU(), nn.Linear(width // 2, 3), nn.Sigmoid())

    def forward(self, origins, directions, depths):
        def encoded(x, waves):
            angles = x[..., None] * 2.0 ** torch.arange(waves, device=x.device)
            return torch.cat([x, angles.sin().flatten(-2), angles.cos().flatten(-2)], -1)
        rays, steps = depths.shape
        seen = encoded(origins[:, None] + directions[:, None] * depths[..., None], self.waves)
        x = seen
        for i, layer in enumerate(self.layers):
            x = F.relu(layer(torch.cat([seen, x], -1) if i == 5 else x))
        density = F.relu(self.density(x)).squeeze(-1).float()
        x = torch.cat([self.feature(x), encoded(directions, self.direction_waves)[:, None].expand(rays, steps, -1)], -1)
        lengths = torch.cat([depths[:, 1:] - depths[:, :-1], torch.full_like(depths[:, :1], 1e10)], 1) * directions.norm(dim=-1, keepdim=True)
        depth = density * lengths
        passed = torch.exp(-F.pad(depth[:, :-1].cumsum(1), (1, 0)))  # the released code takes cumprod, which PyTorch's exporter refuses
        stopped = 1 - torch.exp(-depth)
        return ((stopped * passed)[..., None] * self.colour(x).float()).sum(1)


def rays(small):
    count, steps = (8, 16) if small else (4096, 192)
    return {"origins": uniform(count, 3) - 0.5, "directions": randn(count, 3), "depths": 2 + 4 * uniform(count, steps, seed=5).sort(1).values, "colours": uniform(count, 3, seed=6)}


KINDS["nerf"] = Case("NeRF, 4096 rays of 192", lambda small: Loss(RadianceField(32 if small else 256),
                     lambda model, origins, directions, depths, colours: F.mse_loss(model(origins, directions, depths), colours)), rays)


# -- codes, pairs and tables ------------------------------------------------------------------------------------------

class Quantiser(nn.Module):
    """VQ-VAE (van den Oord et al. 2017): the nearest of the codes, whose gradient goes straight on to the encoder."""

    def __init__(self, codes, width):
        super().__init__()
        self.codes = nn.Embedding(codes, width)
        nn.init.uniform_(self.codes.weight, -1.0, 1.0)

    def forward(self, x):
        rows = x.permute(0, 2, 3, 1)
        table = self.codes.weight
        flat = rows.flatten(0, 2).to(table.dtype)
        near = (flat.square().sum(1, keepdim=True) - 2 * flat @ table.t() + table.square().sum(1)).argmin(1)
        code = self.codes(near).view(rows.shape)
        loss = F.mse_loss(code.flatten(0, 2), flat.detach()) + 0.25 * F.mse_loss(flat, code.flatten(0, 2).detach())
        return (rows + (code - rows).detach()).permute(0, 3, 1, 2), loss


class CodedImages(nn.Module):
    def __init__(self, width, codes, code_width):
        super().__init__()
        def residual():
            return nn.Sequential(nn.ReLU(), nn.Conv2d(width, width // 4, 3, 1, 1), nn.ReLU(), nn.Conv2d(width // 4, width, 1))
        self.down = nn.ModuleList([nn.Conv2d(3, width // 2, 4, 2, 1), nn.Conv2d(width // 2, width, 4, 2, 1), nn.Conv2d(width, width, 3, 1, 1)])
        self.deep, self.high = (nn.ModuleList([residual() for _ in range(2)]) for _ in range(2))
        self.to_code, self.codes, self.of_code = nn.Conv2d(width, code_width, 1), Quantiser(codes, code_width), nn.Conv2d(code_width, width, 3, 1, 1)
        self.up = nn.ModuleList([nn.ConvTranspose2d(width, width // 2, 4, 2, 1), nn.ConvTranspose2d(width // 2, 3, 4, 2, 1)])

    def forward(self, image):
        x = self.down[2](F.relu(self.down[1](F.relu(self.down[0](image)))))
        for block in self.deep:
            x = x + block(x)
        x, loss = self.codes(self.to_code(F.relu(x)))
        x = self.of_code(x)
        for block in self.high:
            x = x + block(x)
        return loss + F.mse_loss(self.up[1](F.relu(self.up[0](F.relu(x)))).to(image.dtype), image)


KINDS["vq-vae"] = Case("VQ-VAE of 512 codes, 64 x 256", lambda small: Loss(CodedImages(*((16, 16, 8) if small else (128, 512, 64))), lambda model, x: model(x)),
                       lambda small: {"x": randn(*((2, 3, 32, 32) if small else (64, 3, 256, 256)))}, channels_last=True)


class Contrasted(nn.Module):
    """SimCLR (Chen et al. 2020): two views of each image, of which each has to find the other among all of the batch."""

    def __init__(self, small, out):
        super().__init__()
        self.body = resnet(small, nn.BatchNorm2d)
        self.body.fc = nn.Sequential(nn.Linear(2048, out * 16, bias=False), nn.BatchNorm1d(out * 16), nn.ReLU(inplace=True), nn.Linear(out * 16, out, bias=False))

    def forward(self, one, other):
        x = F.normalize(self.body(torch.cat([one, other])).float(), dim=1)
        count = x.shape[0]
        own = torch.eye(count, dtype=torch.bool, device=x.device)
        return F.cross_entropy((x @ x.t() / 0.1).masked_fill(own, -math.inf), (torch.arange(count, device=x.device) + count // 2) % count)


def views(small):
    return {name: randn(*((4, 3, 32, 32) if small else (96, 3, 224, 224)), seed=seed) for name, seed in (("one", 1), ("other", 3))}


KINDS["simclr"] = Case("SimCLR on ResNet-50, 2 x 96 x 224", lambda small: Loss(Contrasted(small, 16 if small else 128), lambda model, one, other: model(one, other)),
                       views, channels_last=True)


class FaceBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.body = nn.Sequential(nn.BatchNorm2d(i, 1e-5), nn.Conv2d(i, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o, 1e-5), nn.PReLU(o),
                                  nn.Conv2d(o, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o, 1e-5))
        self.skip = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o, 1e-5)) if stride > 1 else nn.Identity()

    def forward(self, x):
        return self.body(x) + self.skip(x)


class Faces(nn.Module):
    """ArcFace (Deng et al. 2019): the IResNet of its code, and a margin between the angle to a face's own class and to the others'."""

    def __init__(self, widths, depths, size, out, classes, scale=64.0, margin=0.5):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0], 1e-5), nn.PReLU(widths[0]))
        self.blocks = nn.Sequential(*[FaceBlock(i if n == 0 else o, o, 2 if n == 0 else 1) for i, o, depth in zip([widths[0], *widths], widths, depths) for n in range(depth)])
        self.norm, self.fc, self.last = nn.BatchNorm2d(widths[-1], 1e-5), nn.Linear(widths[-1] * (size // 2 ** len(widths)) ** 2, out), nn.BatchNorm1d(out, 1e-5)
        self.classes, self.scale, self.margin = nn.Parameter(0.01 * torch.randn(classes, out)), scale, margin

    def forward(self, x, labels):
        x = self.last(self.fc(self.norm(self.blocks(self.stem(x))).flatten(1)))
        cosine = F.linear(F.normalize(x), F.normalize(self.classes)).float().clamp(-1 + 1e-6, 1 - 1e-6)
        own = F.one_hot(labels, cosine.shape[1]).bool()
        return F.cross_entropy(self.scale * torch.where(own, torch.cos(torch.acos(cosine) + self.margin), cosine), labels)


def faces(small):
    batch, size, classes = (16, 32, 50) if small else (256, 112, 85742)
    return {"x": randn(batch, 3, size, size), "labels": randint(classes, batch)}


KINDS["arcface"] = Case("ArcFace on IResNet-50 of 85,742 classes, 256 x 112", lambda small: Loss(Faces(*(((16, 16), (1, 1), 32, 16, 50, 8.0) if small else
                        ((64, 128, 256, 512), (3, 4, 14, 3), 112, 512, 85742))), lambda model, x, labels: model(x, labels)), faces, channels_last=True)


class FeatureBlock(nn.Module):
    def __init__(self, width, heads, inner, dropouts, first):
        super().__init__()
        self.heads, self.dropouts = heads, dropouts
        self.norm1, self.norm2 = nn.Identity() if first else nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out, self.grow, self.shrink = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, 2 * inner), nn.Linear(inner, width)
        self.dropout = nn.Dropout(dropouts[1])

    def forward(self, x):
        batch, rows, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, rows, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropouts[0]).transpose(1, 2).reshape(batch, rows, width))
        a, b = self.grow(self.norm2(x)).chunk(2, -1)
        return x + self.shrink(self.dropout(a * F.relu(b)))


class FeatureTransformer(nn.Module):
    """FT-Transformer (Gorishniy et al. 2021): each column of a table is a token, of a number by a vector times it, of a category by its table."""

    def __init__(self, numbers, categories, width, heads, layers):
        super().__init__()
        self.weight, self.bias, self.token = (nn.Parameter(0.1 * torch.randn(n, width)) for n in (numbers, numbers, 1))
        self.table = nn.Embedding(sum(categories), width)
        self.register_buffer("first", torch.tensor([0, *categories]).cumsum(0)[:-1])
        self.blocks = nn.ModuleList([FeatureBlock(width, heads, width * 4 // 3, (0.2, 0.1), i == 0) for i in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1)

    def forward(self, numbers, categories):
        x = torch.cat([self.token.expand(numbers.shape[0], 1, -1), numbers[..., None] * self.weight + self.bias, self.table(categories + self.first)], 1)
        for block in self.blocks:
            x = block(x)
        return self.head(F.relu(self.norm(x[:, 0]))).squeeze(1)


def table_rows(small):
    batch, numbers, categories = (4, 5, (3, 7)) if small else (1024, 100, (10,) * 27)
    return {"numbers": randn(batch, numbers), "categories": torch.stack([randint(n, batch, seed=i) for i, n in enumerate(categories)], 1), "wanted": randn(batch, seed=3)}


def without_dropout(model, small):
    for part in model.modules():
        if small and isinstance(part, FeatureBlock):
            part.dropouts = (0.0, 0.0)
    return model


KINDS["ft-transformer"] = Case("FT-Transformer of 127 columns, 1024", lambda small: Loss(without_dropout(FeatureTransformer(*((5, (3, 7), 32, 4, 2) if small else (100, (10,) * 27, 192, 8, 3))), small),
                               lambda model, numbers, categories, wanted: F.mse_loss(model(numbers, categories), wanted)), table_rows)


# -- proteins, scenes and patches -------------------------------------------------------------------------------------

def esm(small):
    import transformers as T

    size = dict(vocab_size=33, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4) if small else \
           dict(vocab_size=33, hidden_size=640, intermediate_size=2560, num_hidden_layers=30, num_attention_heads=20)
    config = T.EsmConfig(**size, pad_token_id=1, mask_token_id=32, position_embedding_type="rotary", token_dropout=True, emb_layer_norm_before=False,
                         hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=1026)
    def masked(model, input_ids, attention_mask, labels):
        return F.cross_entropy(model(input_ids=input_ids, attention_mask=attention_mask).logits.flatten(0, 1), labels.flatten())
    return Loss(from_config("EsmForMaskedLM", config, "sdpa"), masked)


def proteins(small):
    size = (2, 32) if small else (32, 512)
    ids, hidden = 4 + randint(20, *size), randint(100, *size, seed=3) < 15
    return {"input_ids": torch.where(hidden, 32, ids), "attention_mask": padding_mask(*size), "labels": torch.where(hidden, ids, -100)}


KINDS["esm2"] = Case("ESM-2 150M, 32 x 512", esm, proteins)


class BiasedAttention(nn.Module):
    """AlphaFold's gated attention (Jumper et al. 2021) along the rows of [batch, rows, columns, width], with a bias for each pair that all rows share."""

    def __init__(self, width, heads, pair=0):
        super().__init__()
        self.heads, self.norm, self.qkv, self.gate, self.out = heads, nn.LayerNorm(width), nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width), nn.Linear(width, width)
        self.bias = nn.Sequential(nn.LayerNorm(pair), nn.Linear(pair, heads, bias=False)) if pair else None

    def forward(self, x, pairs=None):
        batch, rows, columns, width = x.shape
        x = self.norm(x)
        q, k, v = self.qkv(x).view(batch, rows, columns, 3, self.heads, -1).permute(3, 0, 1, 4, 2, 5).unbind(0)  # [batch, rows, heads, columns, head]
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if self.bias is not None:
            scores = scores + self.bias(pairs).permute(0, 3, 1, 2)[:, None]
        y = (scores.float().softmax(-1).to(v.dtype) @ v).transpose(2, 3).reshape(x.shape)
        return self.out(y * torch.sigmoid(self.gate(x)))


class TriangleProduct(nn.Module):
    def __init__(self, width, outgoing):
        super().__init__()
        self.norm, self.inner, self.sides, self.gates, self.gate, self.out = (nn.LayerNorm(width), nn.LayerNorm(width), nn.Linear(width, 2 * width),
                                                                              nn.Linear(width, 2 * width), nn.Linear(width, width), nn.Linear(width, width))
        self.equation = "bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc"

    def forward(self, z):
        z = self.norm(z)
        a, b = (self.sides(z) * torch.sigmoid(self.gates(z))).chunk(2, -1)
        return self.out(self.inner(torch.einsum(self.equation, a, b))) * torch.sigmoid(self.gate(z))


def transition(width):
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))


class EvoformerBlock(nn.Module):
    def __init__(self, width, pair, outer=32):
        super().__init__()
        heads, pair_heads = max(1, width // 32), max(1, pair // 32)
        self.rows, self.columns, self.transition = BiasedAttention(width, heads, pair), BiasedAttention(width, heads), transition(width)
        self.outer_norm, self.left, self.right, self.outer = nn.LayerNorm(width), nn.Linear(width, outer), nn.Linear(width, outer), nn.Linear(outer * outer, pair)
        self.products = nn.ModuleList([TriangleProduct(pair, outgoing) for outgoing in (True, False)])
        self.starts, self.ends, self.pair_transition = BiasedAttention(pair, pair_heads, pair), BiasedAttention(pair, pair_heads, pair), transition(pair)

    def forward(self, m, z):  # [batch, sequences, residues, width], [batch, residues, residues, pair]
        m = m + self.rows(m, z)
        m = m + self.columns(m.transpose(1, 2)).transpose(1, 2)
        m = m + self.transition(m)
        x = self.outer_norm(m)
        z = z + self.outer(torch.einsum("bsic,bsjd->bijcd", self.left(x), self.right(x)).flatten(3) / m.shape[1])
        for product in self.products:
            z = z + product(z)
        z = z + self.starts(z, z)
        turned = z.transpose(1, 2)
        z = z + self.ends(turned, turned).transpose(1, 2)
        return m, z + self.pair_transition(z)


class Evoformer(nn.Module):
    def __init__(self, width, pair, layers, kinds=23, bins=64):
        super().__init__()
        self.table, self.left, self.right = nn.Embedding(kinds, width), nn.Embedding(kinds, pair), nn.Embedding(kinds, pair)
        self.blocks = nn.ModuleList([EvoformerBlock(width, pair) for _ in range(layers)])
        self.masked, self.distances = nn.Linear(width, kinds), nn.Linear(pair, bins)

    def forward(self, sequences):
        m, z = self.table(sequences), self.left(sequences[:, 0])[:, :, None] + self.right(sequences[:, 0])[:, None]
        for block in self.blocks:
            m, z = block(m, z)
        z = self.distances(z)
        return self.masked(m), z + z.transpose(1, 2)


def folded(model, sequences, masked, distances):
    letters, bins = model(sequences)
    return 2 * F.cross_entropy(letters.flatten(0, 2), masked.flatten()) + 0.3 * F.cross_entropy(bins.flatten(0, 2), distances.flatten())


def alignments(small):
    batch, sequences, residues = (1, 4, 16) if small else (1, 128, 256)
    return {"sequences": randint(23, batch, sequences, residues), "masked": randint(23, batch, sequences, residues, seed=3), "distances": randint(64, batch, residues, residues)}


KINDS["evoformer"] = Case("AlphaFold's Evoformer, 8 of 48 blocks, 128 x 256", lambda small: Loss(Evoformer(*((32, 32, 1) if small else (256, 128, 8))), folded), alignments,
                          note="8 of 48 blocks, without dropout of rows")


class DeformableAttention(nn.Module):
    """Zhu et al. 2021, without its kernel: each query reads four points of each level by grid_sample."""

    def __init__(self, width, heads, levels, points=4):
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points
        self.value, self.out, self.offsets, self.weights = (nn.Linear(width, o) for o in (width, width, heads * levels * points * 2, heads * levels * points))

    def forward(self, query, places, x, sizes):  # [batch, rows, width], [rows, 2] in 0..1, [batch, rows, width]
        batch, rows, width = query.shape
        value = self.value(x).view(batch, -1, self.heads, width // self.heads)
        offsets = self.offsets(query).view(batch, rows, self.heads, self.levels, self.points, 2)
        weights = self.weights(query).view(batch, rows, self.heads, -1).softmax(-1).view(batch, rows, self.heads, self.levels, self.points)
        total, first = 0.0, 0
        for level, (height, columns) in enumerate(sizes):
            image = value[:, first : first + height * columns].flatten(2).transpose(1, 2).reshape(batch * self.heads, -1, height, columns)
            first += height * columns
            at = places[None, :, None, None] + offsets[:, :, :, level] / torch.tensor([columns, height], dtype=offsets.dtype, device=x.device)
            grid = (2 * at - 1).transpose(1, 2).flatten(0, 1)
            read = F.grid_sample(image, grid.to(image.dtype), align_corners=False)  # [batch * heads, channels, rows, points]
            total = total + (read * weights[:, :, :, level].transpose(1, 2).reshape(batch * self.heads, 1, rows, self.points)).sum(-1)
        return self.out(total.view(batch, width, rows).transpose(1, 2))


class PixelDecoder(nn.Module):
    """The decoder of Mask2Former (Cheng et al. 2022) on ResNet-50: deformable attention over three levels, and masks of 100 queries at a quarter of the size."""

    def __init__(self, small, width, heads, layers, queries, classes=133):
        super().__init__()
        from torchvision.models._utils import IntermediateLayerGetter

        self.backbone = IntermediateLayerGetter(resnet(small, frozen_norm()), {f"layer{level}": str(level) for level in (1, 2, 3, 4)})
        self.shrink = nn.ModuleList([nn.Sequential(nn.Conv2d(256 * 2**level, width, 1), nn.GroupNorm(8, width)) for level in range(4)])
        self.levels = nn.Parameter(torch.randn(3, width))
        self.layers = nn.ModuleList([nn.ModuleList([DeformableAttention(width, heads, 3), nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)])
                                     for _ in range(layers)])
        self.smooth = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.GroupNorm(8, width), nn.ReLU(), nn.Conv2d(width, width, 1))
        self.queries = nn.Parameter(torch.randn(queries, width))
        self.decoder = nn.ModuleList([nn.TransformerDecoderLayer(width, heads, 4 * width, 0.0, batch_first=True) for _ in range(3)])
        self.norm, self.classes, self.masks = nn.LayerNorm(width), nn.Linear(width, classes + 1), nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, x):
        found = self.backbone(x)
        maps = [shrink(found[str(level + 1)]) for level, shrink in enumerate(self.shrink)]
        sizes = [tuple(m.shape[2:]) for m in maps[1:]]
        def grid(rows, columns):
            y, x_ = (torch.arange(rows, device=x.device) + 0.5) / rows, (torch.arange(columns, device=x.device) + 0.5) / columns
            return torch.stack([x_[None].expand(rows, columns), y[:, None].expand(rows, columns)], -1).flatten(0, 1)
        places = torch.cat([grid(*size) for size in sizes])
        y = torch.cat([m.flatten(2).transpose(1, 2) + level for m, level in zip(maps[1:], self.levels)], 1)
        for attention, norm1, grow, shrink, norm2 in self.layers:
            y = norm1(y + attention(y, places, y, sizes))
            y = norm2(y + shrink(F.relu(grow(y))))
        parts = y.split([rows * columns for rows, columns in sizes], 1)
        finest = parts[0].transpose(1, 2).unflatten(2, sizes[0])
        pixels = self.smooth(maps[0] + F.interpolate(finest, size=maps[0].shape[2:], mode="bilinear", align_corners=False))
        q = self.queries.expand(x.shape[0], -1, -1)
        for layer, part in zip(self.decoder, reversed(parts)):
            q = layer(q, part)
        q = self.norm(q)
        return self.classes(q), torch.einsum("bqc,bchw->bqhw", self.masks(q), pixels)


def masked_scenes(model, x, labels, masks):
    classes, found = model(x)
    found = found.flatten(2).float()
    entropy = F.binary_cross_entropy_with_logits(found, masks.flatten(2))
    shares = found.sigmoid()
    dice = 1 - (2 * (shares * masks.flatten(2)).sum(-1) + 1) / (shares.sum(-1) + masks.flatten(2).sum(-1) + 1)
    return 2 * F.cross_entropy(classes.flatten(0, 1), labels.flatten()) + 5 * entropy + 5 * dice.mean()


def scenes_of_masks(small):
    batch, size, queries = (2, 64, 5) if small else (8, 512, 100)
    return {"x": randn(batch, 3, size, size), "labels": randint(134, batch, queries), "masks": (randint(8, batch, queries, size // 4, size // 4, seed=3) == 0).float()}


KINDS["mask2former"] = Case("Mask2Former's decoder on ResNet-50, 8 x 512", lambda small: Loss(PixelDecoder(small, *((32, 4, 1, 5) if small else (256, 8, 6, 100))), masked_scenes),
                            scenes_of_masks, channels_last=True, note="masks that a matching gave, 3 decoder layers without masked attention")


class DenseBlock(nn.Module):
    def __init__(self, width, growth):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(width + i * growth, growth if i < 4 else width, 3, 1, 1) for i in range(5)])

    def forward(self, x):
        parts = [x]
        for conv in self.convs[:-1]:
            parts.append(F.leaky_relu(conv(torch.cat(parts, 1)), 0.2))
        return x + 0.2 * self.convs[-1](torch.cat(parts, 1))


class SuperResolution(nn.Module):
    """ESRGAN's generator (Wang et al. 2018): dense blocks inside residual ones, and two steps of twice the size, here by pixel shuffle."""

    def __init__(self, width, growth, blocks):
        super().__init__()
        self.first, self.trunk = nn.Conv2d(3, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.blocks = nn.ModuleList([nn.Sequential(*[DenseBlock(width, growth) for _ in range(3)]) for _ in range(blocks)])
        self.up = nn.Sequential(*[layer for _ in range(2) for layer in (nn.Conv2d(width, 4 * width, 3, 1, 1), nn.PixelShuffle(2), nn.LeakyReLU(0.2))])
        self.last = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.LeakyReLU(0.2), nn.Conv2d(width, 3, 3, 1, 1))

    def forward(self, x):
        x = y = self.first(x)
        for block in self.blocks:
            y = y + 0.2 * block(y)
        return self.last(self.up(x + self.trunk(y)))


def patches(small):
    batch, size = (2, 8) if small else (16, 64)
    return {"x": uniform(batch, 3, size, size), "wanted": uniform(batch, 3, 4 * size, 4 * size, seed=5)}


KINDS["esrgan"] = Case("ESRGAN's generator, 16 x 64 to 256", lambda small: Loss(SuperResolution(*((16, 8, 1) if small else (64, 32, 23))), lambda model, x, wanted: F.l1_loss(model(x), wanted)),
                       patches, channels_last=True)


class FourierLayer(nn.Module):
    """Li et al. 2021: a product for each of the lowest waves."""

    def __init__(self, width, waves):
        super().__init__()
        self.waves, self.skip = waves, nn.Conv2d(width, width, 1)
        self.low, self.high = (nn.Parameter(torch.rand(2, width, width, waves, waves) / width**2) for _ in range(2))

    def forward(self, x):
        batch, width, rows, columns = x.shape
        n, waves = self.waves, torch.view_as_real(torch.fft.rfft2(x))
        def times(a, w):
            real, imaginary = a.unbind(-1)
            def product(p, q):
                return torch.einsum("bixy,ioxy->boxy", p, q)
            return torch.stack([product(real, w[0]) - product(imaginary, w[1]), product(real, w[1]) + product(imaginary, w[0])], -1)
        low, high = times(waves[:, :, :n, :n], self.low), times(waves[:, :, -n:, :n], self.high)
        y = F.pad(torch.cat([low, low.new_zeros(batch, width, rows - 2 * n, n, 2), high], 2), (0, 0, 0, columns // 2 + 1 - n))
        return torch.fft.irfft2(torch.view_as_complex(y.to(waves.dtype)), (rows, columns)).to(x.dtype) + self.skip(x)


class FourierOperator(nn.Module):
    def __init__(self, width, waves, layers=4):
        super().__init__()
        self.lift, self.layers = nn.Conv2d(3, width, 1), nn.ModuleList([FourierLayer(width, waves) for _ in range(layers)])
        self.head = nn.Sequential(nn.Conv2d(width, 128, 1), nn.GELU(), nn.Conv2d(128, 1, 1))

    def forward(self, x):
        x = self.lift(x)
        for i, layer in enumerate(self.layers):
            x = layer(x) if i + 1 == len(self.layers) else F.gelu(layer(x))
        return self.head(x)


def flows(small):
    batch, size = (2, 16) if small else (20, 128)
    return {"x": randn(batch, 3, size, size), "wanted": randn(batch, 1, size, size, seed=3)}


KINDS["fno"] = Case("Fourier neural operator, 20 x 128", lambda small: Loss(FourierOperator(*((8, 4) if small else (64, 16))), lambda model, x, wanted: F.mse_loss(model(x), wanted)), flows)
