# largest: START = 0 => START = 60
# peak: 172.6 MiB
"""Fine-tuning in two stages: the head first, then everything, with fewer samples in a batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

START = 0
EPOCHS, UNFREEZE = 100, 60
data = TensorDataset(torch.randn(1500, 256), torch.randint(10, (1500,)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            *[layer for _ in range(12) for layer in (nn.Linear(256, 256), nn.GELU())]
        )
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        return self.head(self.backbone(x.unsqueeze(1).expand(-1, 64, -1)).mean(1))


class Trainer:
    def __init__(self):
        self.model = Net().cuda()
        self.model.backbone.requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.model.head.parameters())
        self.loader = DataLoader(data, 100, shuffle=True)

    def run_epoch(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x.cuda()), y.cuda())
            loss.backward()
            self.optimizer.step()

    def fit(self):
        for epoch in range(START, EPOCHS):
            if epoch == UNFREEZE:
                self.model.backbone.requires_grad_(True)
                self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-4)
            self.run_epoch()


Trainer().fit()
