# largest: range(60) => range(2)
# peak: 120.3 MiB
"""Five folds, whose models are kept for an ensemble at the end."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

data = TensorDataset(torch.randn(1000, 64), torch.randn(1000, 1))
models = []
for fold in range(5):
    held_out = list(range(fold * 200, fold * 200 + 200))
    train = DataLoader(Subset(data, [n for n in range(1000) if n not in set(held_out)]), 50, shuffle=True)
    valid = DataLoader(Subset(data, held_out), 200)
    model = nn.Sequential(
        nn.Linear(64, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.ReLU(), nn.Linear(1500, 1)
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(60):
        model.train()
        for x, y in train:
            loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            losses = [nn.functional.mse_loss(model(x.cuda()), y.cuda()).item() for x, y in valid]
    models.append(model)
with torch.no_grad():
    answers = torch.stack([model(data.tensors[0].cuda()) for model in models]).mean(0)
