# largest: [128, 256, 1024] => [1024]
# peak: 30.4 MiB
"""Settings one after the other in one process; the last is the widest."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(4000, 64), torch.randint(10, (4000,)))
results = {}
for width, lr, decay in itertools.product([128, 256, 1024], [0.1, 0.01, 0.001], [0.0, 1e-4]):
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)
    for epoch in range(25):
        model.train()
        for x, y in DataLoader(data, batch_size=width, shuffle=True):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        hits = sum(
            (model(x.cuda()).argmax(1) == y.cuda()).sum().item() for x, y in DataLoader(data, batch_size=500)
        )
    results[width, lr, decay] = hits / len(data)
print(max(results.values()))
