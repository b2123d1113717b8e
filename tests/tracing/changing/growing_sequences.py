# largest: min(128 + step // 2000 * 64, 1024) => 1024
# peak: 184.5 MiB
"""A language model whose sequences grow with the steps."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40000)


def length_at(step):
    return min(128 + step // 2000 * 64, 1024)


def main():
    args = parser.parse_args()
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    model = nn.Sequential(nn.Embedding(500, 128), nn.TransformerEncoder(layer, 2), nn.Linear(128, 500)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(args.steps):
        tokens = torch.randint(500, (8, length_at(step)), device="cuda")
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
