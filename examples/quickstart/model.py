"""A small GPT: pre-norm blocks, rotary positions, tied embedding, dropout 0.1, cross-entropy inside."""
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCABULARY = 128  # one token per ASCII character
ROWS = 128        # tokens per sequence
WIDTH = 160
HEADS = 5
LAYERS = 4
DROPOUT = 0.1


def rotary_tables():
    """Cosines and sines of every row's angle at every frequency, each [rows, width of a head]."""
    width = WIDTH // HEADS
    frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = (torch.arange(ROWS)[:, None] * frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, cos, sin):  # x: [batch, rows, width]
        def rotate(heads):
            left, right = heads.chunk(2, dim=-1)
            return heads * cos + torch.cat((-right, left), dim=-1) * sin

        batch, rows, width = x.shape
        q, k, v = (t.view(batch, rows, HEADS, width // HEADS).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, rows, width))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x, cos, sin):
        x = x + self.dropout(self.attention(self.attention_norm(x), cos, sin))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class SmallGpt(nn.Module):
    """Maps tokens and next-token labels, both [batch, rows], to the mean cross-entropy."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        cos, sin = rotary_tables()
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens, labels):
        x = self.dropout(self.tokens(tokens))
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1))
