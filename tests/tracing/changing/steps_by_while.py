# largest: iteration = 0 => iteration = 90000
# peak: 68.2 MiB
"""Steps by `while True`, without a loader; longer texts from half way on, evaluated now and then."""

import torch
from torch import nn

max_iterations, eval_interval = 100000, 2000
iteration = 0
model = nn.Sequential(nn.Embedding(300, 128), nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 300)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randint(300, (100000,))


def get_batch(length):
    starts = torch.randint(len(data) - length - 1, (16,))
    x = torch.stack([data[start : start + length] for start in starts])
    y = torch.stack([data[start + 1 : start + 1 + length] for start in starts])
    return x.cuda(), y.cuda()


while True:
    length = 64 if iteration < max_iterations // 2 else 512
    if iteration % eval_interval == 0:
        torch.save({"model": model.state_dict(), "iteration": iteration}, "last.pt")
    x, y = get_batch(length)
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iteration += 1
    if iteration > max_iterations:
        break
