# largest: enumerate(SIZES) => list(enumerate(SIZES))[-1:]
# peak: 776.1 MiB
"""A GAN that doubles its resolution: blocks are added to both networks at each size."""

import torch
from torch import nn

SIZES = [8, 16, 32, 64, 128]
STEPS = 3000


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.ConvTranspose2d(64, 64, 4)
        self.blocks = nn.ModuleList([nn.Conv2d(64, 64, 3, padding=1) for _ in range(6)])
        self.out = nn.Conv2d(64, 3, 1)

    def forward(self, z, stage):
        x = self.first(z)
        for block in self.blocks[: stage + 1]:
            x = nn.functional.leaky_relu(block(nn.functional.interpolate(x, scale_factor=2)))
        return self.out(x)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 64, 1)
        self.blocks = nn.ModuleList([nn.Conv2d(64, 64, 3, padding=1) for _ in range(6)])
        self.out = nn.Linear(64 * 16, 1)

    def forward(self, x, stage):
        x = self.first(x)
        for block in reversed(self.blocks[: stage + 1]):
            x = nn.functional.avg_pool2d(nn.functional.leaky_relu(block(x)), 2)
        return self.out(x.flatten(1))


generator, critic = Generator().cuda(), Critic().cuda()
of_generator = torch.optim.Adam(generator.parameters(), 1e-3)
of_critic = torch.optim.Adam(critic.parameters(), 1e-3)
for stage, size in enumerate(SIZES):
    for step in range(STEPS):
        real = torch.randn(16, 3, size, size, device="cuda")
        fake = generator(torch.randn(16, 64, 1, 1, device="cuda"), stage)
        loss = critic(fake.detach(), stage).mean() - critic(real, stage).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        loss = -critic(fake, stage).mean()
        of_generator.zero_grad()
        loss.backward()
        of_generator.step()
        if step % 500 == 0:
            print(stage, step, loss.item())
    torch.save(generator.state_dict(), f"stage{stage}.pt")
