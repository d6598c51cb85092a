"""Changes to models of transformers that exports and golden cases share."""
from torch import nn


class DenseExperts(nn.Module):
    """In place of a mixture of experts, which no exporter writes."""

    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return self.layer(x), None


def with_sinks(model):
    for layer in model.model.layers:
        layer.mlp = DenseExperts(model.config.hidden_size)
        nn.init.normal_(layer.self_attn.sinks)
    return model
