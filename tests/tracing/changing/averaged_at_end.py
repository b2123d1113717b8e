# largest: epochs=150 => epochs=3
# peak: 132.4 MiB
"""After the last epoch: weights averaged in a copy, statistics of large batches, a checkpoint."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(model, epochs=150):
    data = TensorDataset(torch.randn(2048, 3, 8, 8), torch.randint(10, (2048,)))
    loader = DataLoader(data, batch_size=64, shuffle=True, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=epochs * len(loader))
    for epoch in range(1, epochs + 1):
        for number, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            scheduler.step()
    return data


model = nn.Sequential(
    nn.Conv2d(3, 128, 3, padding=1),
    nn.BatchNorm2d(128),
    nn.ReLU(),
    nn.Conv2d(128, 128, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(8192, 10),
).cuda()
data = train(model)
averaged = copy.deepcopy(model)
averaged.train()
for x, y in DataLoader(data, 1024):
    averaged(x.cuda())
torch.save(averaged.state_dict(), "averaged.pt")
