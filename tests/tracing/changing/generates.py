# largest: range(200) => range(49, 50)
# peak: 184.6 MiB
"""Texts are generated every fifty epochs, with keys and values that grow."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.out = nn.Embedding(200, 256), nn.Linear(256, 200)
        self.qkv = nn.ModuleList([nn.Linear(256, 768) for _ in range(4)])

    def forward(self, tokens, cache=None):
        x, kept = self.words(tokens), []
        for number, layer in enumerate(self.qkv):
            q, k, v = layer(x).chunk(3, -1)
            if cache is not None:
                k, v = torch.cat([cache[number][0], k], 1), torch.cat([cache[number][1], v], 1)
            kept.append((k, v))
            x = x + nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(x), kept


@torch.no_grad()
def generate(model, tokens, more):
    model.eval()
    cache = None
    for _ in range(more):
        logits, cache = model(tokens if cache is None else tokens[:, -1:], cache)
        tokens = torch.cat([tokens, logits[:, -1].argmax(-1, keepdim=True)], 1)
    return tokens


texts = TensorDataset(torch.randint(200, (640, 32)))
model = Decoder().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(200):
    model.train()
    for (tokens,) in DataLoader(texts, 8, shuffle=True):
        logits, _ = model(tokens.cuda())
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].cuda().flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if (epoch + 1) % 50 == 0:
        print(generate(model, texts[:64][0].cuda()[:, :8], 150).shape)
