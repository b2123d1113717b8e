# largest: range(1000) => range(3)
# peak: 84.8 MiB
"""Ends when validation gets no better; then the test set, in one batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

train = DataLoader(TensorDataset(torch.randn(3000, 32), torch.randint(4, (3000,))), 64)
valid = DataLoader(TensorDataset(torch.randn(300, 32), torch.randint(4, (300,))), 64)
model = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4)).cuda()
optimizer = torch.optim.Adam(model.parameters())
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3)
best, waited = float("inf"), 0
for epoch in range(1000):
    model.train()
    for x, y in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        loss = sum(nn.functional.cross_entropy(model(x.cuda()), y.cuda()).item() for x, y in valid)
    plateau.step(loss)
    if loss < best:
        best, waited = loss, 0
        torch.save(model.state_dict(), "best.pt")
    else:
        waited += 1
        if waited >= 10:
            break
model.load_state_dict(torch.load("best.pt"))
with torch.no_grad():
    print(model(torch.randn(20000, 32).cuda()).argmax(1).float().mean())
