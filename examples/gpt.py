"""A language model of one's own with linear attention: training, then generation from a state of constant size.

python examples/gpt.py
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leapformer_fairseq.attention import Attention, Cache


class Block(nn.Module):
    def __init__(self, name: str, dim: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.attention = Attention(name, dim, heads)
        self.feed_forward = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, keep: Tensor | None, cache: Cache | None) -> Tensor:
        x = x + self.attention(self.norms[0](x), keep=keep, cache=cache)
        return x + self.feed_forward(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, name: str = "gated-leap", dim: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(name, dim, heads=4) for _ in range(layers))
        self.out = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, vocabulary))

    def forward(self, tokens: Tensor, keep: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, keep, cache)
        return self.out(x)

    @torch.no_grad()
    def generate(self, prompt: Tensor, count: int, keep: Tensor | None = None) -> Tensor:
        cache = Cache(self)
        tokens = [self(prompt, keep, cache)[:, -1:].argmax(-1)]
        while len(tokens) < count:
            tokens.append(self(tokens[-1], cache=cache)[:, -1:].argmax(-1))
        return torch.cat(tokens, 1)


if __name__ == "__main__":
    torch.manual_seed(1)
    text = torch.tensor(list(b"the quick brown fox jumps over the lazy dog. " * 20))
    model = GPT(vocabulary=128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        rows = torch.stack([text[i : i + 65] for i in torch.randint(len(text) - 65, (8,))])
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    prompt = torch.tensor([list(b"the quick ")])
    print(f"loss {loss.item():.2f}:", bytes(model.generate(prompt, 60)[0].tolist()).decode())
