# largest: range(1, 300001) => range(20000, 20001)
# peak: 24.8 MiB
"""Iterations with one batch after the other from a loader that begins again, and rare evaluations."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(1000, 3, 16, 16)), 8, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 3, 3, padding=1)).cuda()
optimizer = torch.optim.Adam(model.parameters())
batches = iter(loader)
for iteration in range(1, 300001):
    try:
        (x,) = next(batches)
    except StopIteration:
        batches = iter(loader)
        (x,) = next(batches)
    x = x.cuda()
    loss = (model(x) - x).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if iteration % 20000 == 0:
        model.eval()
        with torch.no_grad():
            shown = model(torch.randn(4, 3, 128, 128, device="cuda"))
        torch.save({"model": model.state_dict(), "iteration": iteration}, "last.pt")
        model.train()
