"""An ordinary training script, as people write it: nothing in it knows of slurm_gpumem."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--epochs", type=int, default=10)
args = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"

model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(64, 128, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(128 * 16 * 16, 10),
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
images, labels = torch.randn(2048, 3, 64, 64), torch.randint(0, 10, (2048,))
dataset = TensorDataset(images, labels)
loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, pin_memory=True)

for epoch in range(args.epochs):
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(device, non_blocking=True)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        guesses = model(images[:512].to(device)).argmax(1).cpu()
    print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {(guesses == labels[:512]).float().mean():.3f}")
    torch.save(model.state_dict(), "model.pt")
