# largest: global_step = 0 => global_step = 2990
# peak: 143.3 MiB
"""A second loss from some step on, counted by hand over all epochs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WARMUP = 3000
loader = DataLoader(TensorDataset(torch.randn(8000, 128)), 16)
encoder = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)).cuda()
critic = nn.Sequential(
    *[layer for _ in range(8) for layer in (nn.Linear(128, 2048), nn.ReLU(), nn.Linear(2048, 128))]
).cuda()
optimizer = torch.optim.Adam([*encoder.parameters(), *critic.parameters()])
global_step = 0


def train():
    global global_step
    for epoch in range(10):
        for (x,) in loader:
            x = x.cuda()
            out = encoder(x)
            loss = (out - x).pow(2).mean()
            if global_step > WARMUP:
                loss = loss + critic(out.repeat(64, 1)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            global_step += 1


train()
