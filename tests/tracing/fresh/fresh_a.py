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


class MoeCapacity(Experts):
    """GShard: dispatch tensors of a fixed capacity."""

    def forward(self, x):
        shape = x.shape
        x = x.flatten(0, -2)
        tokens, count = x.shape[0], len(self.experts)
        capacity = int(1.25 * self.k * tokens / count)
        weights, chosen = self.route(x)
        hot = F.one_hot(chosen, count).float()
        place = (hot.flatten(0, 1).cumsum(0) - 1).view_as(hot)
        hot = hot * (place < capacity)
        slot = F.one_hot(place.clamp(0, capacity - 1).long(), capacity).float()
        send = torch.einsum("tke,tkec->tec", hot, slot)
        inside = torch.einsum("tec,td->ecd", send, x)
        made = torch.stack([expert(part) for expert, part in zip(self.experts, inside)])
        share = torch.einsum("tk,tke,tkec->tec", weights, hot, slot)
        return torch.einsum("tec,ecd->td", share, made).view(shape)


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


def moe_capacity(big):
    return _moe(MoeCapacity, big, 2048)


def gan_two(big):
    """Two optimizers, a detached step for the critic."""
    side, width, rows = (64, 64, 64) if big else (16, 4, 2)

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            up = [nn.ConvTranspose2d(100, width * 4, side // 8), nn.ReLU()]
            for a, b in ((4, 2), (2, 1)):
                up += [
                    nn.ConvTranspose2d(width * a, width * b, 4, 2, 1),
                    nn.BatchNorm2d(width * b),
                    nn.ReLU(),
                ]
            self.g = nn.Sequential(*up, nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh())
            down = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2)]
            for a, b in ((1, 2), (2, 4)):
                down += [
                    nn.Conv2d(width * a, width * b, 4, 2, 1),
                    nn.BatchNorm2d(width * b),
                    nn.LeakyReLU(0.2),
                ]
            self.d = nn.Sequential(*down, nn.Flatten(), nn.Linear(width * 4 * (side // 8) ** 2, 1))

    def step(model, batch, optimizer):
        (real,) = batch
        if not hasattr(model, "opts"):
            model.opts = [
                torch.optim.Adam(m.parameters(), 2e-4, betas=(0.5, 0.999)) for m in (model.g, model.d)
            ]
        g, d = model.opts
        fake = model.g(torch.randn(real.shape[0], 100, 1, 1, device=real.device))
        ones = torch.ones(real.shape[0], 1, device=real.device)
        d_loss = F.binary_cross_entropy_with_logits(model.d(real), ones)
        d_loss = d_loss + F.binary_cross_entropy_with_logits(model.d(fake.detach()), 1 - ones)
        d.zero_grad()
        d_loss.backward()
        d.step()
        g_loss = F.binary_cross_entropy_with_logits(model.d(fake), ones)
        g.zero_grad()
        g_loss.backward()
        g.step()
        return f"{d_loss.item():.3f} {g_loss:.3f}"

    return Pair(), (torch.randn(rows * (4 if big else 1), 3, side, side),), step


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


def gnn_scatter(big):
    """Messages along edges, summed with index_add and scatter_reduce."""
    nodes, edges, width = (40_000, 400_000, 256) if big else (20, 60, 8)

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.message, self.node = nn.Linear(2 * width, width), nn.GRUCell(width, width)

        def forward(self, x, source, target):
            m = F.relu(self.message(torch.cat([x[source], x[target]], -1)))
            total = torch.zeros_like(x).index_add(0, target, m)
            return self.node(total, x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Layer() for _ in range(2))
            self.head = nn.Linear(width, 10)

        def forward(self, x, edge):
            for layer in self.layers:
                x = layer(x, edge[0], edge[1])
            degree = torch.zeros(x.shape[0], device=x.device).scatter_add_(
                0, edge[1], torch.ones_like(edge[1], dtype=x.dtype)
            )
            return self.head(x / degree.clamp(min=1)[:, None])

    def step(model, batch, optimizer):
        x, edge, y, train = batch
        out = model(x, edge)
        return update(F.cross_entropy(out[train], y[train]), optimizer)

    train = torch.zeros(nodes, dtype=torch.bool)
    train[: nodes // 10] = True
    batch = (
        torch.randn(nodes, width),
        torch.randint(0, nodes, (2, edges)),
        torch.randint(0, 10, (nodes,)),
        train,
    )
    return Net(), batch, step


def gat_softmax(big):
    """Attention over edges: a softmax by target with scatter_reduce."""
    nodes, edges, width, heads = (30_000, 300_000, 32, 4) if big else (20, 60, 4, 2)

    class Gat(nn.Module):
        def __init__(self, inside):
            super().__init__()
            self.lin = nn.Linear(inside, width * heads, bias=False)
            self.a = nn.Parameter(torch.randn(heads, 2 * width) * 0.1)

        def forward(self, x, edge):
            h = self.lin(x).view(-1, heads, width)
            pair = torch.cat([h[edge[0]], h[edge[1]]], -1)
            score = F.leaky_relu((pair * self.a).sum(-1), 0.2)
            index = edge[1][:, None].expand_as(score)
            most = torch.full((x.shape[0], heads), -1e9, device=x.device).scatter_reduce(
                0, index, score, "amax"
            )
            e = (score - most[edge[1]]).exp()
            total = torch.zeros(x.shape[0], heads, device=x.device).scatter_add(0, index, e)
            alpha = e / (total[edge[1]] + 1e-9)
            out = torch.zeros_like(h).index_add(0, edge[1], h[edge[0]] * alpha[..., None])
            return F.elu(out.flatten(1))

    model = nn.ModuleList([Gat(width), Gat(width * heads), nn.Linear(width * heads, 7)])

    def step(model, batch, optimizer):
        x, edge, y = batch
        for layer in model[:2]:
            x = layer(x, edge)
        return update(F.cross_entropy(model[2](x), y), optimizer)

    return (
        model,
        (torch.randn(nodes, width), torch.randint(0, nodes, (2, edges)), torch.randint(0, 7, (nodes,))),
        step,
    )


def ssm_scan(big):
    """A selective state space with a loop over time."""
    width, state, length, rows = (512, 16, 64, 32) if big else (8, 4, 6, 2)

    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Linear(width, 2 * width)
            self.conv = nn.Conv1d(width, width, 4, groups=width, padding=3)
            self.x = nn.Linear(width, 1 + 2 * state)
            self.a = nn.Parameter(torch.arange(1, state + 1).float().log().repeat(width, 1))
            self.out = nn.Linear(width, width)

        def forward(self, x):
            u, gate = self.inside(x).chunk(2, -1)
            u = F.silu(self.conv(u.transpose(1, 2))[..., : x.shape[1]].transpose(1, 2))
            dt, b, c = self.x(u).split([1, state, state], -1)
            dt = F.softplus(dt)
            h, ys = torch.zeros(x.shape[0], width, state, device=x.device), []
            for t in range(x.shape[1]):
                h = (
                    torch.exp(dt[:, t, :, None] * -self.a.exp()) * h
                    + (dt[:, t] * u[:, t])[..., None] * b[:, t, None]
                )
                ys.append((h * c[:, t, None]).sum(-1))
            return self.out(torch.stack(ys, 1) * F.silu(gate)) + x

    model = nn.Sequential(nn.Embedding(256, width), Mixer(), Mixer(), nn.Linear(width, 256))

    def step(model, batch, optimizer):
        (x,) = batch
        out = model(x[:, :-1])
        return update(F.cross_entropy(out.flatten(0, 1), x[:, 1:].flatten()), optimizer)

    return model, (torch.randint(0, 256, (rows, length + 1)),), step


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
    moe_capacity,
    gan_two,
    wgan_gp,
    siamese,
    gnn_scatter,
    gat_softmax,
    ssm_scan,
    diffusion_unet,
    vq_vae,
    lstm_cells,
    gaussian_process,
    linalg_solve,
    spectral_conv,
]
