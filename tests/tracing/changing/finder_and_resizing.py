# largest: range(EPOCHS) => range(50, EPOCHS)
# peak: 263.1 MiB
"""A search for the learning rate, then images that grow with the epochs."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS = 60


class Images(Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return 2000

    def __getitem__(self, number):
        return torch.zeros(3, self.size, self.size), number % 10


def network():
    layers = [nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).cuda()


def find_lr(model, loader):
    optimizer, best, lr = torch.optim.SGD(model.parameters(), 1e-6), float("inf"), 1e-6
    for number, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        if loss.item() > 4 * best:
            break
        best = min(best, loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lr *= 1.2
        for group in optimizer.param_groups:
            group["lr"] = lr
    return lr / 10


def train_one_epoch(model, loader, optimizer):
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    model = network()
    lr = find_lr(network(), DataLoader(Images(32), 32))
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for epoch in range(EPOCHS):
        size = 48 if epoch < 20 else 64 if epoch < 50 else 128
        train_one_epoch(model, DataLoader(Images(size), 32), optimizer)
        scheduler.step()


main()
