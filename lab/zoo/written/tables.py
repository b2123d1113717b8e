"""Tables, clicks, sets of features, kernels, experts."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class DLRM(nn.Module):
    def __init__(self, fields: int = 16, rows: int = 50000, d: int = 32, dense: int = 13) -> None:
        super().__init__()
        self.emb = nn.ModuleList(nn.Embedding(rows, d) for _ in range(fields))
        self.bot = nn.Sequential(nn.Linear(dense, 256), nn.ReLU(), nn.Linear(256, d), nn.ReLU())
        n = fields + 1
        self.top = nn.Sequential(
            nn.Linear(n * (n - 1) // 2 + d, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        x = self.bot(dense)
        T = torch.stack([x, *[e(sparse[:, i]).to(x.dtype) for i, e in enumerate(self.emb)]], 1)
        Z = torch.bmm(T, T.transpose(1, 2))
        i, j = torch.tril_indices(T.size(1), T.size(1), -1, device=x.device)
        return self.top(torch.cat([x, Z[:, i, j]], 1)).squeeze(1)


class DeepFM(nn.Module):
    def __init__(self, fields: int = 24, rows: int = 200000, d: int = 16) -> None:
        super().__init__()
        self.fields = fields
        self.w, self.v = nn.Embedding(rows, 1), nn.Embedding(rows, d)
        self.deep = nn.Sequential(
            nn.Linear(fields * d, 400),
            nn.BatchNorm1d(400),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(400, 400),
            nn.ReLU(),
            nn.Linear(400, 1),
        )

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        v = self.v(ids)
        fm = 0.5 * (v.sum(1) ** 2 - (v**2).sum(1)).sum(1)
        return self.w(ids).sum((1, 2)) + fm + self.deep(v.flatten(1)).squeeze(-1) + 0 * dense.sum(-1)


class xDeepCIN(nn.Module):
    def __init__(self, fields: int = 20, rows: int = 80000, d: int = 12, maps: int = 64) -> None:
        super().__init__()
        self.e = nn.Embedding(rows, d)
        self.c1, self.c2 = nn.Conv1d(fields * fields, maps, 1), nn.Conv1d(fields * maps, maps, 1)
        self.out = nn.Linear(2 * maps, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        x0 = self.e(ids)
        b, _, d = x0.shape
        z = torch.einsum("bhd,bmd->bhmd", x0, x0).reshape(b, -1, d)
        x1 = F.relu(self.c1(z))
        x2 = F.relu(self.c2(torch.einsum("bhd,bmd->bhmd", x1, x0.to(x1.dtype)).reshape(b, -1, d)))
        return self.out(torch.cat([x1.sum(-1), x2.sum(-1)], 1)).squeeze(1) + dense.mean(1) * 0


class TwoTower(nn.Module):
    """In-batch negatives: a matrix of all users by all items of the batch."""

    def __init__(self, users: int = 200000, items: int = 50000, d: int = 64, hid: int = 256) -> None:
        super().__init__()
        self.u, self.i = nn.Embedding(users, d), nn.Embedding(items, d)
        self.mu, self.mi = (
            nn.Sequential(nn.Linear(d, hid), nn.ReLU(), nn.Linear(hid, d)),
            nn.Sequential(nn.Linear(d, hid), nn.ReLU(), nn.Linear(hid, d)),
        )
        self.temp = nn.Parameter(torch.tensor(0.0))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        a, b = F.normalize(self.mu(self.u(user)), dim=-1), F.normalize(self.mi(self.i(item)), dim=-1)
        return F.cross_entropy(
            (a @ b.t()).float() * self.temp.float().exp(), torch.arange(a.size(0), device=a.device)
        )


class SASRecSampled(nn.Module):
    def __init__(self, items: int = 30000, d: int = 64, n: int = 2) -> None:
        super().__init__()
        self.e, self.p = nn.Embedding(items, d), nn.Embedding(512, d)
        self.q, self.k, self.v, self.f = (nn.ModuleList(nn.Linear(d, d) for _ in range(n)) for _ in range(4))

    def forward(self, seq: Tensor, pos: Tensor, neg: Tensor) -> Tensor:
        T = seq.size(1)
        x = self.e(seq) + self.p(torch.arange(T, device=seq.device))
        mask = torch.ones(T, T, dtype=torch.bool, device=seq.device).triu(1)
        for q, k, v, f in zip(self.q, self.k, self.v, self.f):
            a = (q(x) @ k(x).transpose(1, 2) / 8).masked_fill(mask, float("-inf")).softmax(-1)
            x = F.layer_norm(x + a.to(x.dtype) @ v(x), x.shape[-1:])
            x = F.layer_norm(x + F.relu(f(x)), x.shape[-1:]).to(self.e.weight.dtype)
        good, bad = (x * self.e(pos)).sum(-1), torch.einsum("btd,btnd->btn", x, self.e(neg).to(x.dtype))
        return -F.logsigmoid(good).mean() - F.logsigmoid(-bad).mean()


class FTTransformer(nn.Module):
    def __init__(
        self, features: int = 40, d: int = 96, heads: int = 8, n: int = 3, classes: int = 10
    ) -> None:
        super().__init__()
        self.h = heads
        self.weight, self.bias = (
            nn.Parameter(torch.randn(features, d)),
            nn.Parameter(torch.randn(features, d)),
        )
        self.cls = nn.Parameter(torch.randn(1, 1, d))
        self.qkv, self.o = (
            nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(n)),
            nn.ModuleList(nn.Linear(d, d) for _ in range(n)),
        )
        self.ff1, self.ff2 = (
            nn.ModuleList(nn.Linear(d, 4 * d) for _ in range(n)),
            nn.ModuleList(nn.Linear(2 * d, d) for _ in range(n)),
        )
        self.head = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        t = x.unsqueeze(-1) * self.weight + self.bias
        t = torch.cat([self.cls.expand(len(x), -1, -1), t], 1)
        for qkv, o, f1, f2 in zip(self.qkv, self.o, self.ff1, self.ff2):
            q, k, v = qkv(t).unflatten(-1, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
            a = F.dropout(torch.softmax(q @ k.mT * q.size(-1) ** -0.5, -1), 0.2, self.training)
            t = t + o((a.to(v.dtype) @ v).transpose(1, 2).flatten(2))
            u, g = f1(t).chunk(2, -1)
            t = t + f2(u * F.relu(g))
        return self.head(t[:, 0])


class NodeTrees(nn.Module):
    """Soft decision trees: every path's probability kept."""

    def __init__(self, features: int = 32, trees: int = 64, depth: int = 5, classes: int = 10) -> None:
        super().__init__()
        self.depth = depth
        self.choose = nn.Parameter(torch.randn(features, trees, depth))
        self.thr, self.leaf = (
            nn.Parameter(torch.randn(trees, depth)),
            nn.Parameter(torch.randn(trees, 2**depth, classes)),
        )
        codes = torch.tensor([[(i >> k) & 1 for k in range(depth)] for i in range(2**depth)])
        self.register_buffer("codes", codes)

    def forward(self, x: Tensor) -> Tensor:
        f = torch.einsum("bf,ftd->btd", x, self.choose.softmax(0).to(x.dtype))
        p = torch.sigmoid(f - self.thr)
        both = torch.stack([p, 1 - p], -1)
        paths = both[:, :, torch.arange(self.depth, device=x.device), self.codes.long()].prod(-1)
        return torch.einsum("btl,tlc->bc", paths.to(self.leaf.dtype), self.leaf)


class KANLayer(nn.Module):
    def __init__(self, a: int, b: int, grid: int) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(-2, 2, grid))
        self.coef, self.base = nn.Parameter(torch.randn(a, b, grid) * 0.1), nn.Linear(a, b)

    def forward(self, x: Tensor) -> Tensor:
        basis = torch.exp(-((x.unsqueeze(-1) - self.knots) ** 2) * 4)
        return self.base(F.silu(x)) + torch.einsum("big,iog->bo", basis.to(self.coef.dtype), self.coef)


class KAN(nn.Module):
    def __init__(
        self, features: int = 64, width: int = 128, n: int = 2, grid: int = 8, classes: int = 10
    ) -> None:
        super().__init__()
        dims = [features] + [width] * n + [classes]
        self.layers = nn.ModuleList(KANLayer(a, b, grid) for a, b in zip(dims, dims[1:]))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class DenseMoE(nn.Module):
    def __init__(
        self, feats: int = 64, d: int = 256, experts: int = 8, n: int = 2, classes: int = 10
    ) -> None:
        super().__init__()
        self.inp = nn.Linear(feats, d)
        self.gate = nn.ModuleList(nn.Linear(d, experts) for _ in range(n))
        self.w1, self.w2 = (
            nn.ParameterList(nn.Parameter(torch.randn(experts, d, d) * 0.02) for _ in range(n))
            for _ in range(2)
        )
        self.out = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        for g, a, b in zip(self.gate, self.w1, self.w2):
            p = g(x).softmax(-1)
            h = F.gelu(torch.einsum("bd,edf->bef", x, a))
            x = x + torch.einsum("bef,efd,be->bd", h, b, p.to(h.dtype))
        return self.out(x)


class SparseMoE(nn.Module):
    """Tokens sent to their two best experts by index, results added back."""

    def __init__(self, vocab: int = 5000, d: int = 192, experts: int = 8, n: int = 3) -> None:
        super().__init__()
        self.e = nn.Embedding(vocab, d)
        self.router = nn.ModuleList(nn.Linear(d, experts, bias=False) for _ in range(n))
        self.experts = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(experts)
            )
            for _ in range(n)
        )
        self.mix = nn.ModuleList(nn.Conv1d(d, d, 4, padding=3, groups=d) for _ in range(n))
        self.head = nn.Linear(d, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.e(ids)
        B, T, D = x.shape
        for r, experts, mix in zip(self.router, self.experts, self.mix):
            x = x + mix(x.transpose(1, 2))[..., :T].transpose(1, 2)
            flat = x.reshape(-1, D)
            w, top = r(flat).softmax(-1).topk(2)
            y = torch.zeros_like(flat)
            for i, e in enumerate(experts):
                rows, slot = torch.where(top == i)
                y = y.index_add(0, rows, (w[rows, slot, None] * e(flat[rows])).to(y.dtype))
            x = x + y.view(B, T, D)
        return self.head(x)


class DeepKernelGP(nn.Module):
    """An exact marginal likelihood over the batch: kernel matrix and Cholesky factor."""

    def __init__(self, feats: int = 32, hid: int = 256, d: int = 16) -> None:
        super().__init__()
        self.f = nn.Sequential(
            nn.Linear(feats, hid), nn.ReLU(), nn.Linear(hid, hid), nn.ReLU(), nn.Linear(hid, d)
        )
        self.log_noise = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.f(x).float()
        k = torch.exp(-0.5 * torch.cdist(z, z).pow(2)) + (0.1 + self.log_noise.float().exp()) * torch.eye(
            len(x), device=x.device
        )
        chol = torch.linalg.cholesky(k)
        a = torch.cholesky_solve(y.float(), chol)
        return 0.5 * (y.float() * a).mean() + chol.diagonal().log().mean()


class MMDNet(nn.Module):
    def __init__(self, feats: int = 50, hid: int = 512) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(feats, hid), nn.ELU(), nn.Linear(hid, hid), nn.ELU())
        self.cls = nn.Linear(hid, 5)

    def forward(self, source: Tensor, target: Tensor, label: Tensor) -> Tensor:
        a, b = self.phi(source), self.phi(target)
        z = torch.cat([a, b])
        d2 = (
            (z[:, None] - z[None]).pow(2).sum(-1)
            if len(z) < 1500
            else torch.cdist(z.float(), z.float()).pow(2)
        )
        k = sum(torch.exp(-d2 / (2 * s * d2.detach().mean())) for s in (0.25, 0.5, 1.0, 2.0))
        n = len(a)
        return (
            F.cross_entropy(self.cls(a), label) + k[:n, :n].mean() + k[n:, n:].mean() - 2 * k[:n, n:].mean()
        )


class HyperNet(nn.Module):
    """Makes a small network's weights for every sample."""

    def __init__(self, task: int = 64, inner: int = 32, hid: int = 256) -> None:
        super().__init__()
        self.inner = inner
        self.h = nn.Sequential(
            nn.Linear(task, hid), nn.ReLU(), nn.Linear(hid, 2 * inner + inner * inner + inner)
        )

    def forward(self, task: Tensor, x: Tensor) -> Tensor:
        n = self.inner
        w1, b1, w2, w3 = self.h(task).split([n, n, n * n, n], -1)
        h = torch.tanh(x.unsqueeze(-1) * w1[:, None] + b1[:, None])
        h = torch.tanh(torch.bmm(h, w2.view(-1, n, n)))
        return torch.bmm(h, w3.unsqueeze(-1)).squeeze(-1)


class NeuralODE(nn.Module):
    def __init__(self, feats: int = 32, d: int = 256, steps: int = 12, classes: int = 10) -> None:
        super().__init__()
        self.inp, self.f1, self.f2, self.out = (
            nn.Linear(feats, d),
            nn.Linear(d + 1, d),
            nn.Linear(d, d),
            nn.Linear(d, classes),
        )
        self.steps = steps

    def f(self, t: float, h: Tensor) -> Tensor:
        return self.f2(torch.tanh(self.f1(torch.cat([h, torch.full_like(h[:, :1], t)], 1))))

    def forward(self, x: Tensor) -> Tensor:
        h, dt = self.inp(x), 1.0 / self.steps
        for i in range(self.steps):
            t = i * dt
            k1 = self.f(t, h)
            k2 = self.f(t + dt / 2, h + dt / 2 * k1)
            k3 = self.f(t + dt / 2, h + dt / 2 * k2)
            k4 = self.f(t + dt, h + dt * k3)
            h = h + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return self.out(h)


class HopfieldMemory(nn.Module):
    def __init__(
        self, feats: int = 64, d: int = 128, stored: int = 4096, hops: int = 3, classes: int = 20
    ) -> None:
        super().__init__()
        self.q, self.keys, self.values = (
            nn.Linear(feats, d),
            nn.Parameter(torch.randn(stored, d)),
            nn.Parameter(torch.randn(stored, d)),
        )
        self.hops, self.out = hops, nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        u = self.q(x)
        for _ in range(self.hops):
            u = u + F.softmax(u @ self.keys.t() / 11, -1).to(u.dtype) @ self.values
        return self.out(u)


class PhysicsInformed(nn.Module):
    """Second derivatives of the network in its loss."""

    def __init__(self, hid: int = 256, n: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2 if i == 0 else hid, hid) for i in range(n))
        self.last = nn.Linear(hid, 1)

    def u(self, xt: Tensor) -> Tensor:
        for layer in self.layers:
            xt = torch.tanh(layer(xt))
        return self.last(xt)

    def forward(self, xt: Tensor) -> Tensor:
        xt = xt.detach().requires_grad_(True)
        with torch.enable_grad():
            u = self.u(xt)
            du = torch.autograd.grad(u.sum(), xt, create_graph=True)[0]
            d2 = torch.autograd.grad(du[:, 0].sum(), xt, create_graph=True)[0]
        return (du[:, 1] + u[:, 0] * du[:, 0] - 0.01 * d2[:, 0]).pow(2).mean()
