"""Tables, graphs, series and agents: what happens between few modules."""

from __future__ import annotations

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class InnerLoopMeta(nn.Module):
    """MAML with the inner steps in forward, second order."""

    def __init__(self, d: int = 40, h: int = 256, inner: int = 3) -> None:
        super().__init__()
        self.inner = inner
        self.ws = nn.ParameterList(
            [
                nn.Parameter(torch.randn(h, d) * 0.1),
                nn.Parameter(torch.randn(h, h) * 0.05),
                nn.Parameter(torch.randn(5, h) * 0.05),
            ]
        )

    @staticmethod
    def net(x: Tensor, ws: list[Tensor]) -> Tensor:
        for w in ws[:-1]:
            x = F.relu(x @ w.transpose(-1, -2))
        return x @ ws[-1].transpose(-1, -2)

    def forward(self, xs: Tensor, ys: Tensor, xq: Tensor, yq: Tensor) -> Tensor:
        ws = [w.expand(xs.size(0), -1, -1) for w in self.ws]
        for _ in range(self.inner):
            loss = F.cross_entropy(self.net(xs, ws).flatten(0, 1), ys.flatten(), reduction="sum")
            gs = torch.autograd.grad(loss, ws, create_graph=True)
            ws = [w - 0.01 * g for w, g in zip(ws, gs)]
        return F.cross_entropy(self.net(xq, ws).flatten(0, 1), yq.flatten())


class AttentiveProcess(nn.Module):
    def __init__(self, d: int = 128) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(2, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))
        self.q, self.k = nn.Linear(1, d), nn.Linear(1, d)
        self.lat = nn.Linear(d, 2 * d)
        self.dec = nn.Sequential(
            nn.Linear(2 * d + 1, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 2)
        )

    def forward(self, cx: Tensor, cy: Tensor, tx: Tensor, ty: Tensor) -> Tensor:
        r = self.enc(torch.cat([cx, cy], -1))
        a = torch.softmax(-torch.cdist(self.q(tx).float(), self.k(cx).float(), p=1) / 8, -1).to(r.dtype)
        mean, s = self.lat(r.mean(1)).chunk(2, -1)
        z = mean + torch.randn_like(mean) * F.softplus(s)
        m, v = self.dec(torch.cat([a @ r, z[:, None].expand(-1, tx.size(1), -1), tx], -1)).chunk(2, -1)
        v = 0.1 + F.softplus(v)
        return (((ty - m) / v) ** 2 / 2 + v.log()).mean() + 1e-3 * (mean**2).mean()


class SparseGaussian(nn.Module):
    """Variational GP on learned features: inducing points, a Cholesky factor, solves."""

    def __init__(self, d: int = 32, m: int = 512, h: int = 256) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, 8))
        self.z = nn.Parameter(torch.randn(m, 8))
        self.mu = nn.Parameter(torch.zeros(m, 1))
        self.logs = nn.Parameter(torch.zeros(m))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, z = self.f(x).float(), self.z.float()
        with torch.autocast(x.device.type, enabled=False):
            kzz = torch.exp(-0.5 * torch.cdist(z, z) ** 2) + 1e-1 * torch.eye(z.size(0), device=x.device)
            kzx = torch.exp(-0.5 * torch.cdist(z, x) ** 2)
            L = torch.linalg.cholesky(kzz)
            a = torch.linalg.solve_triangular(L, kzx, upper=False)
            mean = (a.t() @ self.mu.float()).squeeze(1)
            var = (1 - (a**2).sum(0) + ((a * self.logs.float().exp()[:, None]) ** 2).sum(0)).clamp(min=1e-4)
            return ((y.float().squeeze(1) - mean) ** 2 / var + var.log()).mean()


class SinkhornAlign(nn.Module):
    def __init__(self, d: int = 64, h: int = 256, iters: int = 20) -> None:
        super().__init__()
        self.iters = iters
        self.f = nn.Sequential(nn.Linear(d, h), nn.GELU(), nn.Linear(h, h))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        x, y = self.f(a), self.f(b)
        c = (x[:, :, None] - y[:, None]).square().sum(-1).float() / x.size(-1)
        u, v = torch.zeros_like(c[:, :, 0]), torch.zeros_like(c[:, 0])
        for _ in range(self.iters):
            u = -torch.logsumexp(v[:, None] - c / 0.1, 2)
            v = -torch.logsumexp(u[:, :, None] - c / 0.1, 1)
        return (torch.exp(u[:, :, None] + v[:, None] - c / 0.1) * c).sum((1, 2)).mean()


class SoftWarping(nn.Module):
    """Soft-DTW over anti-diagonals as the loss of a sequence model."""

    def __init__(self, d: int = 16, h: int = 128) -> None:
        super().__init__()
        self.rnn = nn.GRU(d, h, 2, batch_first=True)
        self.out = nn.Linear(h, d)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        p = self.out(self.rnn(x)[0]).float()
        D = torch.cdist(p, y.float()) ** 2
        B, N, M = D.shape
        prev2 = torch.full((B, N + 1), 1e6, device=x.device)
        prev = prev2.clone()
        prev2[:, 0] = 0
        for k in range(2, N + M + 1):
            i = torch.arange(max(1, k - M), min(N, k - 1) + 1, device=x.device)
            cost = D[:, i - 1, k - i - 1]
            s = -torch.logsumexp(-torch.stack([prev2[:, i - 1], prev[:, i - 1], prev[:, i]]), 0)
            cur = torch.full((B, N + 1), 1e6, device=x.device).index_copy(1, i, cost + s)
            prev2, prev = prev, cur
        return prev[:, N].mean() / (N + M)


class InterestNet(nn.Module):
    """DIN: the candidate attends to a history through an MLP of products."""

    def __init__(self, items: int = 200000, d: int = 32, h: int = 80) -> None:
        super().__init__()
        self.item = nn.Embedding(items, d)
        self.user = nn.Embedding(50000, d)
        self.att = nn.Sequential(nn.Linear(4 * d, h), nn.PReLU(), nn.Linear(h, 1))
        self.top = nn.Sequential(
            nn.Linear(4 * d, 200), nn.PReLU(), nn.Linear(200, 80), nn.PReLU(), nn.Linear(80, 1)
        )

    def forward(self, user: Tensor, cand: Tensor, hist: Tensor, click: Tensor) -> Tensor:
        c, h = self.item(cand), self.item(hist)
        ce = c[:, None].expand_as(h)
        w = self.att(torch.cat([ce, h, ce - h, ce * h], -1))
        w = w.masked_fill((hist == 0)[..., None], 0)
        s = (w * h).sum(1)
        return F.binary_cross_entropy_with_logits(
            self.top(torch.cat([c, s, self.user(user), c * s], -1)).squeeze(1), click.to(s.dtype)
        )


class FieldInteraction(nn.Module):
    """AutoInt: fields attend to each other; numbers as embeddings times values."""

    def __init__(self, fields: int = 26, dense: int = 13, rows: int = 20000, d: int = 64, n: int = 3) -> None:
        super().__init__()
        self.emb = nn.Embedding(fields * rows, d)
        self.num = nn.Parameter(torch.randn(dense, d) * 0.02)
        self.register_buffer("shift", torch.arange(fields) * rows)
        self.q, self.k, self.v, self.r = (
            nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(n)) for _ in range(4)
        )
        self.out = nn.Linear((fields + dense) * d, 1)

    def forward(self, dense: Tensor, sparse: Tensor, y: Tensor) -> Tensor:
        x = torch.cat([self.emb(sparse + self.shift), dense[..., None] * self.num], 1)
        for q, k, v, r in zip(self.q, self.k, self.v, self.r):
            a, b, c = (f(x).unflatten(-1, (4, -1)) for f in (q, k, v))
            p = torch.einsum("bihd,bjhd->bhij", a, b).softmax(-1)
            x = F.relu(torch.einsum("bhij,bjhd->bihd", p, c).flatten(2) + r(x))
        return F.binary_cross_entropy_with_logits(self.out(x.flatten(1)).squeeze(1), y.to(x.dtype))


class SparsemaxTable(nn.Module):
    """TabNet's steps: feature masks by sparsemax, gated blocks, the penalty inside."""

    def __init__(self, d: int = 128, h: int = 256, steps: int = 5, classes: int = 7) -> None:
        super().__init__()
        self.h = h
        self.bn = nn.BatchNorm1d(d)
        self.first = nn.Linear(d, 4 * h)
        self.fc = nn.ModuleList(nn.Linear(d, 4 * h) for _ in range(steps))
        self.att = nn.ModuleList(nn.Linear(h, d) for _ in range(steps))
        self.nb = nn.ModuleList(nn.BatchNorm1d(d) for _ in range(steps))
        self.out = nn.Linear(h, classes)

    @staticmethod
    def sparsemax(z: Tensor) -> Tensor:
        s, _ = z.sort(dim=1, descending=True)
        k = torch.arange(1, z.size(1) + 1, device=z.device, dtype=z.dtype)
        c = s.cumsum(1)
        on = (1 + k * s > c).sum(1, keepdim=True)
        tau = (c.gather(1, on - 1) - 1) / on
        return (z - tau).clamp(min=0)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.bn(x)
        a = F.glu(self.first(x), 1)[:, self.h :]
        prior, agg, pen = torch.ones_like(x), 0.0, x.new_zeros(())
        for fc, att, nb in zip(self.fc, self.att, self.nb):
            m = self.sparsemax(nb(att(a)).float() * prior)
            prior = prior * (1.5 - m)
            pen = pen - (m * (m + 1e-6).log()).sum(1).mean()
            d, a = F.glu(fc(m.to(x.dtype) * x), 1).split(self.h, 1)
            agg = agg + F.relu(d)  # type: ignore[assignment]
        return F.cross_entropy(self.out(agg), y) + 1e-3 * pen


class SkeletonGraph(nn.Module):
    """ST-GCN: an adjacency per layer, convolutions in time."""

    def __init__(self, joints: int = 25, c: int = 64, n: int = 5, classes: int = 60) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.rand(3, joints, joints))
        w = [3] + [c * (1 + i // 2) for i in range(n)]
        self.g = nn.ModuleList(nn.Conv2d(i, 3 * o, 1) for i, o in zip(w, w[1:]))
        self.t = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(o), nn.ReLU(), nn.Conv2d(o, o, (9, 1), padding=(4, 0)), nn.BatchNorm2d(o)
            )
            for o in w[1:]
        )
        self.r = nn.ModuleList(nn.Conv2d(i, o, 1) for i, o in zip(w, w[1:]))
        self.fc = nn.Linear(w[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        for g, t, r in zip(self.g, self.t, self.r):
            y = torch.einsum("bkctv,kvw->bctw", g(x).unflatten(1, (3, -1)), self.A.softmax(-1))
            x = F.relu(t(y) + r(x))
        return self.fc(x.mean((2, 3)))


class DiffusionRecurrent(nn.Module):
    """DCRNN: graph diffusion inside a GRU's gates, step by step."""

    def __init__(self, nodes: int = 200, h: int = 32, hops: int = 2, horizon: int = 6) -> None:
        super().__init__()
        self.hops, self.h, self.horizon = hops, h, horizon
        self.register_buffer("P", torch.rand(nodes, nodes).softmax(-1))
        k = (1 + h) * (2 * hops + 1)
        self.gate, self.cand, self.out = nn.Linear(k, 2 * h), nn.Linear(k, h), nn.Linear(h, 1)

    def diffuse(self, x: Tensor) -> Tensor:
        P: Tensor = self.P.to(x.dtype)  # type: ignore[assignment, operator]
        xs = [x]
        for M in (P, P.t()):
            y = x
            for _ in range(self.hops):
                y = torch.einsum("nm,bmc->bnc", M, y)
                xs.append(y)
        return torch.cat(xs, -1)

    def forward(self, x: Tensor) -> Tensor:
        B, T, N = x.shape
        s = x.new_zeros(B, N, self.h)
        outs, inp = [], x[:, 0]
        for t in range(T + self.horizon):
            inp = x[:, t] if t < T else outs[-1]
            z, r = torch.sigmoid(self.gate(self.diffuse(torch.cat([inp[..., None], s], -1)))).chunk(2, -1)
            c = torch.tanh(self.cand(self.diffuse(torch.cat([inp[..., None], r * s], -1))))
            s = z * s + (1 - z) * c
            outs.append(self.out(s).squeeze(-1))
        return F.l1_loss(torch.stack(outs[T:], 1), x[:, -self.horizon :])


class RelationalGraph(nn.Module):
    """R-GCN with bases and DistMult: edges from indices, index_add, negative samples."""

    def __init__(self, nodes: int = 20000, rels: int = 40, d: int = 128, bases: int = 8) -> None:
        super().__init__()
        self.nodes, self.rels = nodes, rels
        self.emb = nn.Embedding(nodes, d)
        self.basis = nn.ParameterList(nn.Parameter(torch.randn(bases, d, d) * 0.02) for _ in range(2))
        self.comb = nn.ParameterList(nn.Parameter(torch.randn(rels, bases) * 0.1) for _ in range(2))
        self.loop = nn.ModuleList(nn.Linear(d, d) for _ in range(2))
        self.rel = nn.Embedding(rels, d)

    def forward(self, s: Tensor, r: Tensor, o: Tensor) -> Tensor:
        s, r, o = s.flatten(), r.flatten(), o.flatten()
        x = self.emb.weight
        for basis, comb, loop in zip(self.basis, self.comb, self.loop):
            h = torch.einsum("nd,kde->nke", x, basis)
            msg = torch.einsum("ekf,ek->ef", h[s], comb[r])
            agg = torch.zeros_like(msg[:1]).expand(self.nodes, -1).index_add(0, o, msg)
            x = F.relu(loop(x) + agg)
        fake = torch.randint(self.nodes, o.shape, device=o.device)
        e = x[s] * self.rel(r)
        pos, neg = (e * x[o]).sum(1), (e * x[fake]).sum(1)
        return F.softplus(-pos).mean() + F.softplus(neg).mean()


class MeshSimulator(nn.Module):
    """MeshGraphNet: edge and node MLPs with residuals, sums by scatter."""

    def __init__(self, d: int = 128, n: int = 6) -> None:
        super().__init__()
        self.ne, self.ee = nn.Linear(6, d), nn.Linear(4, d)
        self.e = nn.ModuleList(
            nn.Sequential(nn.Linear(3 * d, d), nn.ReLU(), nn.Linear(d, d), nn.LayerNorm(d)) for _ in range(n)
        )
        self.v = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * d, d), nn.ReLU(), nn.Linear(d, d), nn.LayerNorm(d)) for _ in range(n)
        )
        self.out = nn.Linear(d, 3)

    def forward(self, x: Tensor, src: Tensor, dst: Tensor) -> Tensor:
        B, N, _ = x.shape
        base = (torch.arange(B, device=x.device) * N)[:, None]
        i, j = (src + base).flatten(), (dst + base).flatten()
        f = x.flatten(0, 1)
        rel = f[i, :3] - f[j, :3]
        e = self.ee(torch.cat([rel, rel.norm(dim=1, keepdim=True)], 1))
        v = self.ne(f)
        for fe, fv in zip(self.e, self.v):
            e = e + fe(torch.cat([v[i], v[j], e], 1))
            agg = torch.zeros_like(v).index_add_(0, j, e.to(v.dtype))
            v = v + fv(torch.cat([v, agg], 1))
        return self.out(v).view(B, N, 3)


class EquivariantMessages(nn.Module):
    """PaiNN-like scalars and vectors; forces by the gradient of the energy."""

    def __init__(self, d: int = 64, n: int = 3, rbf: int = 20) -> None:
        super().__init__()
        self.d, self.rbf = d, rbf
        self.emb = nn.Embedding(20, d)
        self.phi = nn.ModuleList(
            nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 3 * d)) for _ in range(n)
        )
        self.w = nn.ModuleList(nn.Linear(rbf, 3 * d) for _ in range(n))
        self.uv = nn.ModuleList(nn.Linear(d, 2 * d, bias=False) for _ in range(n))
        self.a = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * d, d), nn.SiLU(), nn.Linear(d, 3 * d)) for _ in range(n)
        )
        self.out = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, 1))

    def forward(self, z: Tensor, pos: Tensor, force: Tensor) -> Tensor:
        pos = pos.requires_grad_()
        rel = pos[:, :, None] - pos[:, None]
        dist = (rel.square().sum(-1) + 1e-3).sqrt()
        k = torch.arange(1, self.rbf + 1, device=pos.device, dtype=pos.dtype)
        rb = torch.sin(dist[..., None] * k) / dist[..., None]
        s = self.emb(z)
        v = s.new_zeros(*s.shape, 3)
        for phi, w, uv, a in zip(self.phi, self.w, self.uv, self.a):
            f, g, h = (phi(s)[:, None] * w(rb)).chunk(3, -1)
            s = s + f.sum(2)
            v = (
                v
                + torch.einsum("bijd,bjdx->bidx", g, v)
                + torch.einsum("bijd,bijx->bidx", h, rel / dist[..., None])
            )
            u, x = uv(v.transpose(2, 3)).transpose(2, 3).chunk(2, 2)
            n = (x.square().sum(-1) + 1e-6).sqrt()
            a1, a2, a3 = a(torch.cat([s, n], -1)).chunk(3, -1)
            v = v + a1[..., None] * u
            s = s + a2 + a3 * (u * x).sum(-1)
        e = self.out(s).sum()
        (g,) = torch.autograd.grad(e, pos, create_graph=True)
        return F.mse_loss(-g, force)


class ProbabilisticForecast(nn.Module):
    """DeepAR: LSTM cells unrolled, a Student likelihood, the future fed with samples."""

    def __init__(self, series: int = 1000, d: int = 64, context: int = 72) -> None:
        super().__init__()
        self.context = context
        self.emb = nn.Embedding(series, 20)
        self.l1, self.l2 = nn.LSTMCell(25, d), nn.LSTMCell(d, d)
        self.out = nn.Linear(d, 3)

    def forward(self, y: Tensor, cov: Tensor, ident: Tensor) -> Tensor:
        B, T = y.shape
        scale = y[:, : self.context].abs().mean(1, keepdim=True) + 1
        e = self.emb(ident.flatten())
        s1 = s2 = None
        prev, nll = y.new_zeros(B), y.new_zeros(())
        for t in range(T):
            s1 = self.l1(torch.cat([(prev[:, None] / scale), cov[:, t], e], 1), s1)
            s2 = self.l2(s1[0], s2)
            m, s, n = self.out(s2[0]).float().unbind(1)
            dist = torch.distributions.StudentT(
                2 + F.softplus(n), m, F.softplus(s) + 1e-3, validate_args=False
            )
            nll = nll - dist.log_prob((y[:, t] / scale[:, 0]).float()).mean()
            prev = y[:, t] if t < self.context else (m.detach() * scale[:, 0]).to(y.dtype)
        return nll / T


class GatedVariables(nn.Module):
    """A temporal fusion transformer in small: variable selection, an LSTM, interpretable attention, quantiles."""

    def __init__(self, variables: int = 12, d: int = 64, horizon: int = 24) -> None:
        super().__init__()
        self.horizon = horizon
        self.proj = nn.ModuleList(nn.Linear(1, d) for _ in range(variables))
        self.grn = nn.ModuleList(
            nn.Sequential(nn.Linear(d, d), nn.ELU(), nn.Linear(d, 2 * d)) for _ in range(variables)
        )
        self.sel = nn.Linear(variables * d, variables)
        self.rnn = nn.LSTM(d, d, batch_first=True)
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d // 4)
        self.out = nn.Linear(d // 4, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        vs = [p(x[..., i : i + 1]) for i, p in enumerate(self.proj)]
        w = self.sel(torch.cat(vs, -1)).softmax(-1)
        h = torch.stack([v + F.glu(g(v), -1) for v, g in zip(vs, self.grn)], -1)
        h = (h * w[..., None, :]).sum(-1)
        h = h + self.rnn(h)[0]
        q, k = (f(h).unflatten(-1, (4, -1)) for f in (self.q, self.k))
        a = torch.einsum("bihd,bjhd->bhij", q, k) * q.size(-1) ** -0.5
        L = h.size(1)
        a = a.masked_fill(torch.ones(L, L, dtype=torch.bool, device=h.device).triu(1), -1e4).softmax(-1)
        o = self.out(a.mean(1) @ self.v(h))[:, -self.horizon :]
        taus = torch.tensor([0.1, 0.5, 0.9], device=h.device, dtype=o.dtype)
        e = y[..., None] - o
        return torch.maximum(taus * e, (taus - 1) * e).mean()


class QuantumMixing(nn.Module):
    """QMIX: agents' recurrent Q values mixed by weights that a hypernetwork makes from the state."""

    def __init__(
        self, agents: int = 8, obs: int = 96, state: int = 200, h: int = 64, actions: int = 14
    ) -> None:
        super().__init__()
        self.n, self.h, self.obs = agents, h, obs
        self.fc, self.cell, self.q = nn.Linear(obs, h), nn.GRUCell(h, h), nn.Linear(h, actions)
        self.w1, self.b1 = nn.Linear(state, agents * 32), nn.Linear(state, 32)
        self.w2, self.v = (
            nn.Linear(state, 32),
            nn.Sequential(nn.Linear(state, 32), nn.ReLU(), nn.Linear(32, 1)),
        )

    def forward(self, obs: Tensor, act: Tensor, state: Tensor, target: Tensor) -> Tensor:
        B, T = obs.shape[:2]
        h = obs.new_zeros(B * self.n, self.h)
        qs = []
        for t in range(T):
            h = self.cell(F.relu(self.fc(obs[:, t].reshape(-1, self.obs))), h)
            qs.append(self.q(h).view(B, self.n, -1))
        chosen = torch.stack(qs, 1).gather(3, act[..., None]).squeeze(3)
        w1 = self.w1(state).abs().unflatten(-1, (self.n, 32))
        hid = F.elu(torch.einsum("btn,btnh->bth", chosen, w1.to(chosen.dtype)) + self.b1(state))
        tot = (hid * self.w2(state).abs()).sum(-1) + self.v(state).squeeze(-1)
        return F.mse_loss(tot, target.to(tot.dtype)) + 0 * math.pi
