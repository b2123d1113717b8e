# largest: total, step = 40000, 0 => total, step = 40000, 39900
# peak: 26.8 MiB
"""Steps counted by hand until there are enough of them; larger batches are collected from half way on."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    total, step = 40000, 0
    loader = DataLoader(TensorDataset(torch.randn(3200, 64)), 32, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64)).cuda()
    optimizer = torch.optim.RMSprop(model.parameters())
    while step < total:
        for (x,) in loader:
            repeats = 8 if step < total // 2 else 64
            x = x.cuda().repeat(repeats, 1)
            loss = (model(x) - x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step >= total:
                break
    torch.save(model.state_dict(), "model.pt")


main()
