"""Training steps of many kinds, written to be met for the first time: vision, reinforcement, mixtures.

Each function takes `big` and gives (model, batch, step): a batch of CPU tensors, and a step that is called
with the model, the batch on the model's device and an optimizer of all its parameters.
"""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn


def mlp(*sizes, act=nn.ReLU):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def update(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def ppo(big):
    """Rollouts after each update, several epochs of shuffled minibatches, a dictionary of figures."""
    width, obs, envs, steps = (1024, 512, 512, 64) if big else (16, 8, 4, 4)

    class ActorCritic(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp(obs, width, width, act=nn.Tanh)
            self.pi, self.v = nn.Linear(width, 6), nn.Linear(width, 1)

        def forward(self, x):
            h = torch.tanh(self.body(x))
            return torch.distributions.Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)

    def step(model, batch, optimizer):
        (start,) = batch
        seen, acts, logps, values, rewards = [], [], [], [], []
        state = start
        with torch.no_grad():
            for _ in range(steps):
                dist, value = model(state)
                action = dist.sample()
                seen.append(state)
                acts.append(action)
                logps.append(dist.log_prob(action))
                values.append(value)
                rewards.append(torch.randn_like(value))
                state = state + 0.01 * torch.randn_like(state)
            advantage, last = [], torch.zeros_like(rewards[0])
            for t in reversed(range(steps)):
                last = rewards[t] - values[t] + 0.95 * last
                advantage.insert(0, last)
        x, a, old = (torch.stack(v).flatten(0, 1) for v in (seen, acts, logps))
        adv = torch.stack(advantage).flatten()
        returns = adv + torch.stack(values).flatten()
        figures = {}
        for _ in range(2):
            order = torch.randperm(x.shape[0], device=x.device)
            for rows in order.split(x.shape[0] // 4):
                dist, value = model(x[rows])
                ratio = (dist.log_prob(a[rows]) - old[rows]).exp()
                clipped = ratio.clamp(0.8, 1.2)
                loss = -torch.min(ratio * adv[rows], clipped * adv[rows]).mean()
                loss = loss + 0.5 * F.mse_loss(value, returns[rows]) - 0.01 * dist.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
                figures[f"loss at {rows[0]}"] = float(loss)
        return figures

    return ActorCritic(), (torch.randn(envs, obs),), step


class Experts(nn.Module):
    def __init__(self, width, hidden, count, k):
        super().__init__()
        self.gate = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(mlp(width, hidden, width, act=nn.GELU) for _ in range(count))
        self.k = k

    def route(self, x):
        weights, chosen = F.softmax(self.gate(x), -1).topk(self.k, -1)
        return weights / weights.sum(-1, keepdim=True), chosen


class MoeWhere(Experts):
    """As in Mixtral before it was fused: torch.where on a mask of each expert, index_add_."""

    def forward(self, x):
        shape = x.shape
        x = x.flatten(0, -2)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, nth = torch.where(chosen == number)
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, nth, None])
        return out.view(shape)


class MoeMask(Experts):
    """A boolean mask of each expert."""

    def forward(self, x):
        shape = x.shape
        x = x.flatten(0, -2)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            hit = (chosen == number).any(-1)
            if not hit.any():
                continue
            share = (weights * (chosen == number)).sum(-1)
            out[hit] = out[hit] + expert(x[hit]) * share[hit, None]
        return out.view(shape)


class MoeUnique(Experts):
    """Only the experts that `unique` names, each read as a number."""

    def forward(self, x):
        shape = x.shape
        x = x.flatten(0, -2)
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for found in torch.unique(chosen):
            number = int(found.item())
            rows, nth = (chosen == number).nonzero(as_tuple=True)
            out.index_add_(0, rows, self.experts[number](x[rows]) * weights[rows, nth, None])
        return out.view(shape)


class MoeSort(Experts):
    """Tokens sorted by expert, split by counts that are read (as DeepSeek's inference and MegaBlocks do)."""

    def forward(self, x):
        shape = x.shape
        x = x.flatten(0, -2)
        weights, chosen = self.route(x)
        flat = chosen.flatten()
        order = flat.argsort()
        counts = torch.bincount(flat, minlength=len(self.experts)).tolist()
        token = order // self.k
        parts = []
        for rows, expert in zip(token.split(counts), self.experts):
            parts.append(expert(x[rows]))
        share = weights.flatten()[order]
        out = torch.zeros_like(x).index_add_(0, token, torch.cat(parts) * share[:, None])
        return out.view(shape)


def _moe(kind, big, tokens=8192):
    width, hidden, count = (1024, 4096, 8) if big else (16, 32, 4)
    model = nn.Sequential(
        nn.Linear(width, width),
        kind(width, hidden, count, 2),
        nn.LayerNorm(width),
        kind(width, hidden, count, 2),
    )

    def step(model, batch, optimizer):
        x, y = batch
        return update(F.mse_loss(model(x), y), optimizer)

    rows = tokens if big else 32
    return model, (torch.randn(rows // 8, 8, width), torch.randn(rows // 8, 8, width)), step


def moe_where(big):
    return _moe(MoeWhere, big)


def moe_mask(big):
    return _moe(MoeMask, big)


def moe_unique(big):
    return _moe(MoeUnique, big)


def moe_sort(big):
    return _moe(MoeSort, big)


def wgan_gp(big):
    """A penalty on gradients: derivatives of derivatives."""
    side, width, rows = (64, 64, 64) if big else (16, 4, 2)
    down, c = [nn.Conv2d(3, width, 3, 2, 1), nn.SiLU()], width
    for _ in range(2):
        down += [nn.Conv2d(c, c * 2, 3, 2, 1), nn.InstanceNorm2d(c * 2), nn.SiLU()]
        c *= 2
    model = nn.Sequential(*down, nn.Flatten(), nn.Linear(c * (side // 8) ** 2, 1))

    def step(model, batch, optimizer):
        real, fake = batch
        eps = torch.rand(real.shape[0], 1, 1, 1, device=real.device)
        mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)
        score = model(mixed)
        (grad,) = torch.autograd.grad(score.sum(), mixed, create_graph=True)
        penalty = ((grad.flatten(1).norm(2, dim=1) - 1) ** 2).mean()
        loss = model(fake).mean() - model(real).mean() + 10 * penalty
        return update(loss, optimizer)

    return model, (torch.randn(rows, 3, side, side), torch.randn(rows, 3, side, side)), step


def siamese(big):
    width, rows = (64, 256) if big else (4, 2)
    layers, c = [], 1
    for i in range(3):
        layers += [
            nn.Conv2d(c, width << i, 3, padding=1),
            nn.BatchNorm2d(width << i),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        c = width << i
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 128))
    s = 48 if big else 16

    def step(model, batch, optimizer):
        a, p, n = batch
        za, zp, zn = (F.normalize(model(x), dim=-1) for x in (a, p, n))
        hard = ((za - zp).pow(2).sum(1) - (za - zn).pow(2).sum(1) + 0.2) > 0
        loss = F.triplet_margin_loss(za, zp, zn, margin=0.2)
        if hard.sum() > 0:
            loss = loss + 0.1 * (za - zp).pow(2).sum(1).mean()
        return update(loss, optimizer)

    return model, tuple(torch.randn(rows, 1, s, s) for _ in range(3)), step


def diffusion_unet(big):
    """Noise at a random time, group norms, attention in the middle, an average of the weights."""
    width, rows, side = (64, 32, 64) if big else (8, 2, 8)

    class Block(nn.Module):
        def __init__(self, a, b):
            super().__init__()
            self.n1, self.c1 = nn.GroupNorm(8 if a >= 8 else 1, a), nn.Conv2d(a, b, 3, padding=1)
            self.t = nn.Linear(width, b)
            self.n2, self.c2 = nn.GroupNorm(8, b), nn.Conv2d(b, b, 3, padding=1)
            self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

        def forward(self, x, t):
            h = self.c1(F.silu(self.n1(x))) + self.t(t)[:, :, None, None]
            return self.c2(F.dropout(F.silu(self.n2(h)), 0.1, self.training)) + self.skip(x)

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Conv2d(3, width, 3, padding=1)
            self.d1, self.d2 = Block(width, width), Block(width, 2 * width)
            self.attn = nn.MultiheadAttention(2 * width, 4, batch_first=True)
            self.mid = Block(2 * width, 2 * width)
            self.u2, self.u1 = Block(4 * width, width), Block(2 * width, width)
            self.out = nn.Conv2d(width, 3, 3, padding=1)

        def forward(self, x, t):
            half = width // 2
            freq = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
            emb = torch.cat([(t[:, None] * freq).sin(), (t[:, None] * freq).cos()], -1)
            a = self.d1(self.inside(x), emb)
            b = self.d2(F.avg_pool2d(a, 2), emb)
            m = F.avg_pool2d(b, 2)
            flat = m.flatten(2).transpose(1, 2)
            m = m + self.attn(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(m.shape)
            m = F.interpolate(self.mid(m, emb), scale_factor=2, mode="nearest")
            m = F.interpolate(self.u2(torch.cat([m, b], 1), emb), scale_factor=2, mode="nearest")
            return self.out(self.u1(torch.cat([m, a], 1), emb))

    betas = torch.linspace(1e-4, 0.02, 1000)
    alphas = (1 - betas).cumprod(0)

    def step(model, batch, optimizer):
        (x,) = batch
        if not hasattr(model, "shadow"):
            object.__setattr__(model, "shadow", copy.deepcopy(model).requires_grad_(False))
        t = torch.randint(0, 1000, (x.shape[0],), device=x.device)
        a = alphas.to(x.device)[t][:, None, None, None]
        noise = torch.randn_like(x)
        loss = F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t.float()), noise)
        value = update(loss, optimizer)
        with torch.no_grad():
            for mine, theirs in zip(model.parameters(), model.shadow.parameters()):
                theirs.lerp_(mine, 0.001)
        return value

    return UNet(), (torch.randn(rows, 3, side, side),), step


def vq_vae(big):
    """Codes of the nearest entries, a straight-through gradient, dead codes restarted."""
    codes, width, rows, side = (1024, 64, 64, 64) if big else (8, 4, 2, 8)

    class Vq(nn.Module):
        def __init__(self):
            super().__init__()
            self.enc = nn.Sequential(
                nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1)
            )
            self.dec = nn.Sequential(
                nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1)
            )
            self.book = nn.Embedding(codes, width)
            self.register_buffer("used", torch.zeros(codes))

        def forward(self, x):
            z = self.enc(x)
            flat = z.permute(0, 2, 3, 1).reshape(-1, width)
            far = (
                flat.pow(2).sum(1, keepdim=True)
                - 2 * flat @ self.book.weight.t()
                + self.book.weight.pow(2).sum(1)
            )
            nearest = far.argmin(1)
            hot = F.one_hot(nearest, codes).float()
            self.used.mul_(0.99).add_(hot.sum(0), alpha=0.01)
            q = (hot @ self.book.weight).view(z.shape[0], *z.shape[2:], width).permute(0, 3, 1, 2)
            loss = F.mse_loss(q.detach(), z) * 0.25 + F.mse_loss(q, z.detach())
            share = hot.mean(0)
            perplexity = torch.exp(-(share * (share + 1e-10).log()).sum())
            return self.dec(z + (q - z).detach()), loss, perplexity

    def step(model, batch, optimizer):
        (x,) = batch
        out, loss, perplexity = model(x)
        update(loss + F.mse_loss(out, x), optimizer)
        dead = (model.used < 1e-3).nonzero().squeeze(-1)
        with torch.no_grad():
            model.book.weight[dead] = torch.randn(dead.numel(), width, device=x.device)
        return f"perplexity {perplexity:.1f}, {len(dead)} dead"

    return Vq(), (torch.randn(rows, 3, side, side),), step


def lstm_cells(big):
    """LSTMCell and GRUCell in loops, the second fed with the first."""
    width, rows, length = (512, 256, 64) if big else (8, 2, 5)

    class Cells(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(1000, width)
            self.a, self.b = nn.LSTMCell(width, width), nn.GRUCell(width, width)
            self.out = nn.Linear(width, 1000)

        def forward(self, x):
            e = self.emb(x)
            h = c = g = torch.zeros(x.shape[0], width, device=x.device)
            outs = []
            for t in range(x.shape[1]):
                h, c = self.a(e[:, t], (h, c))
                g = self.b(h, g)
                outs.append(g)
            return self.out(torch.stack(outs, 1))

    def step(model, batch, optimizer):
        (x,) = batch
        return update(F.cross_entropy(model(x[:, :-1]).transpose(1, 2), x[:, 1:]), optimizer)

    return Cells(), (torch.randint(0, 1000, (rows, length + 1)),), step


def gaussian_process(big):
    """The marginal likelihood of an exact Gaussian process: Cholesky, triangular solves, logdet."""
    n = 4000 if big else 12

    class Gp(nn.Module):
        def __init__(self):
            super().__init__()
            self.length, self.noise = nn.Parameter(torch.zeros(8)), nn.Parameter(torch.tensor(-1.0))

        def forward(self, x, y):
            z = x / self.length.exp()
            k = torch.exp(-0.5 * torch.cdist(z, z).pow(2))
            k = k + (self.noise.exp() + 1e-3) * torch.eye(x.shape[0], device=x.device)
            root = torch.linalg.cholesky(k)
            alpha = torch.cholesky_solve(y[:, None], root)
            return 0.5 * (y @ alpha.squeeze(-1)) + root.diagonal().log().sum()

    def step(model, batch, optimizer):
        return update(model(*batch), optimizer)

    return Gp(), (torch.randn(n, 8), torch.randn(n)), step


def linalg_solve(big):
    """Implicit layers: batched solve, inverse, a small eigendecomposition."""
    rows, n = (256, 128) if big else (2, 4)

    class Implicit(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Linear(n, n * n)
            self.v = nn.Linear(n, n)

        def forward(self, x):
            a = self.w(x).view(-1, n, n) * 0.01
            a = a @ a.transpose(1, 2) + torch.eye(n, device=x.device)
            b = torch.linalg.solve(a, self.v(x)[..., None])
            i = torch.linalg.inv(a) @ b
            values, vectors = torch.linalg.eigh(a[:8])
            return i.squeeze(-1), values.sum() + torch.linalg.slogdet(a)[1].mean() + vectors.pow(2).mean()

    def step(model, batch, optimizer):
        x, y = batch
        out, extra = model(x)
        return update(F.mse_loss(out, y) + 1e-3 * extra, optimizer)

    return Implicit(), (torch.randn(rows, n), torch.randn(rows, n)), step


def spectral_conv(big):
    """A Fourier neural operator: rfft2, complex weights, irfft2."""
    width, side, rows, modes = (32, 64, 64, 16) if big else (4, 8, 2, 3)

    class Spectral(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(width, width, modes, modes, dtype=torch.cfloat) * 0.02)
            self.local = nn.Conv2d(width, width, 1)

        def forward(self, x):
            f = torch.fft.rfft2(x)
            out = torch.zeros_like(f)
            out[:, :, :modes, :modes] = torch.einsum("bixy,ioxy->boxy", f[:, :, :modes, :modes], self.w)
            return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.local(x))

    model = nn.Sequential(nn.Conv2d(1, width, 1), *(Spectral() for _ in range(4)), nn.Conv2d(width, 1, 1))

    def step(model, batch, optimizer):
        x, y = batch
        out = model(x)
        loss = ((out - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)).mean()
        return update(loss, optimizer)

    return model, (torch.randn(rows, 1, side, side), torch.randn(rows, 1, side, side)), step


ALL = [
    ppo,
    moe_where,
    moe_mask,
    moe_unique,
    moe_sort,
    wgan_gp,
    siamese,
    diffusion_unet,
    vq_vae,
    lstm_cells,
    gaussian_process,
    linalg_solve,
    spectral_conv,
]
