"""Graphs, molecules and point clouds: gather, scatter, distances, nearest neighbours."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


def scatter_sum(m: Tensor, index: Tensor, n: int) -> Tensor:
    return m.new_zeros(n, *m.shape[1:]).index_add_(0, index, m)


class MPNNLayer(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.msg = nn.Sequential(nn.Linear(2 * d, d), nn.ReLU(), nn.Linear(d, d))
        self.gru = nn.GRUCell(d, d)

    def forward(self, h: Tensor, edges: Tensor) -> Tensor:
        src, dst = edges
        m = self.msg(torch.cat([h[src], h[dst]], -1))
        return self.gru(scatter_sum(m, dst, h.size(0)).to(h.dtype), h)


class MPNN(nn.Module):
    def __init__(self, feats: int = 64, d: int = 128, n: int = 4, classes: int = 40) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(feats, d), nn.Linear(d, classes)
        self.layers = nn.ModuleList(MPNNLayer(d) for _ in range(n))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.inp(x)
        for layer in self.layers:
            h = layer(h, edge_index)
        return self.out(h)


class GATLayer(nn.Module):
    def __init__(self, cin: int, cout: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.lin = nn.Linear(cin, cout * heads, bias=False)
        self.a_src, self.a_dst = (nn.Parameter(torch.randn(heads, cout) * 0.1) for _ in range(2))

    def forward(self, x: Tensor, ei: Tensor) -> Tensor:
        h = self.lin(x).view(x.size(0), self.heads, -1)
        e = F.leaky_relu((h * self.a_src).sum(-1)[ei[0]] + (h * self.a_dst).sum(-1)[ei[1]], 0.2)
        e = torch.exp(e - e.max())
        z = scatter_sum(e, ei[1], x.size(0)) + 1e-9
        alpha = F.dropout(e / z[ei[1]], 0.2, self.training)
        return scatter_sum(alpha.unsqueeze(-1) * h[ei[0]], ei[1], x.size(0)).flatten(1)


class GAT(nn.Module):
    def __init__(self, feats: int = 128, hid: int = 32, heads: int = 8, classes: int = 40) -> None:
        super().__init__()
        self.g1, self.g2 = GATLayer(feats, hid, heads), GATLayer(hid * heads, hid, heads)
        self.skip, self.fc = nn.Linear(feats, hid * heads), nn.Linear(hid * heads, classes)

    def forward(self, x: Tensor, ei: Tensor) -> Tensor:
        h = F.elu(self.g1(x, ei) + self.skip(x)).to(x.dtype)
        return self.fc(F.elu(self.g2(h, ei)).to(x.dtype))


class SageMax(nn.Module):
    def __init__(self, feats: int = 100, d: int = 256, n: int = 3, classes: int = 47) -> None:
        super().__init__()
        dims = [feats] + [d] * n
        self.pool = nn.ModuleList(nn.Linear(a, a) for a in dims[:-1])
        self.lin = nn.ModuleList(nn.Linear(2 * a, b) for a, b in zip(dims, dims[1:]))
        self.cls = nn.Linear(d, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        row, col = edge_index
        for p, lin in zip(self.pool, self.lin):
            m = F.relu(p(x))[row]
            agg = torch.zeros_like(x, dtype=m.dtype).scatter_reduce(0, col[:, None].expand_as(m), m, "amax")
            x = F.normalize(F.relu(lin(torch.cat([x, agg.to(x.dtype)], 1))), dim=-1)
        return self.cls(x)


class GatedGCN(nn.Module):
    """Keeps edge features beside node features."""

    def __init__(self, feats: int = 64, d: int = 70, n: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.emb_h, self.emb_e = nn.Linear(feats, d), nn.Linear(1, d)
        self.lins = nn.ModuleList(nn.ModuleList(nn.Linear(d, d) for _ in range(5)) for _ in range(n))
        self.bn_h, self.bn_e = (nn.ModuleList(nn.BatchNorm1d(d) for _ in range(n)) for _ in range(2))
        self.readout = nn.Linear(d, classes)

    def forward(self, x: Tensor, ei: Tensor) -> Tensor:
        h, e = self.emb_h(x), self.emb_e(x.new_ones(ei.size(1), 1))
        for (A, B, C, D, E), bh, be in zip(self.lins, self.bn_h, self.bn_e):
            e_hat = C(e) + D(h)[ei[0]] + E(h)[ei[1]]
            s = torch.sigmoid(e_hat)
            num, den = scatter_sum(s * B(h)[ei[0]], ei[1], h.size(0)), scatter_sum(s, ei[1], h.size(0))
            h = h + F.relu(bh(A(h) + num / (den + 1e-6)))
            e = e + F.relu(be(e_hat))
        return self.readout(h)


class ChebNet(nn.Module):
    """Polynomials of a dense Laplacian."""

    def __init__(self, feats: int = 16, d: int = 64, k: int = 5, classes: int = 7) -> None:
        super().__init__()
        self.k = k
        self.t1, self.t2 = nn.Parameter(torch.randn(k, feats, d)), nn.Parameter(torch.randn(k, d, classes))

    def cheb(self, lap: Tensor, x: Tensor, theta: Tensor) -> Tensor:
        ts = [x, lap @ x]
        for _ in range(self.k - 2):
            ts.append(2 * lap @ ts[-1] - ts[-2])
        return torch.einsum("kbnf,kfo->bno", torch.stack(ts), theta)

    def forward(self, x: Tensor) -> Tensor:
        adj = torch.exp(-torch.cdist(x.float(), x.float()))
        d = adj.sum(-1).rsqrt()
        lap = (-d[:, :, None] * adj * d[:, None]).to(x.dtype)
        return self.cheb(lap, F.relu(self.cheb(lap, x, self.t1)), self.t2).mean(1)


class EGNNLayer(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.phi_e = nn.Sequential(nn.Linear(2 * d + 1, d), nn.SiLU(), nn.Linear(d, d), nn.SiLU())
        self.phi_x, self.phi_h = (
            nn.Linear(d, 1),
            nn.Sequential(nn.Linear(2 * d, d), nn.SiLU(), nn.Linear(d, d)),
        )

    def forward(self, h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        B, N, D = h.shape
        rel = x[:, :, None] - x[:, None]
        d2 = rel.pow(2).sum(-1, keepdim=True).to(h.dtype)
        m = self.phi_e(torch.cat([h[:, :, None].expand(B, N, N, D), h[:, None].expand(B, N, N, D), d2], -1))
        x = x + (rel * self.phi_x(m)).mean(2).to(x.dtype)
        return h + self.phi_h(torch.cat([h, m.sum(2).to(h.dtype)], -1)), x


class EGNN(nn.Module):
    def __init__(self, atoms: int = 20, d: int = 64, n: int = 4) -> None:
        super().__init__()
        self.emb = nn.Embedding(atoms, d)
        self.layers = nn.ModuleList(EGNNLayer(d) for _ in range(n))
        self.energy = nn.Linear(d, 1)

    def forward(self, z: Tensor, pos: Tensor) -> Tensor:
        h = self.emb(z)
        for layer in self.layers:
            h, pos = layer(h, pos)
        return self.energy(h).sum(1)


class SchNetLike(nn.Module):
    def __init__(self, atoms: int = 100, d: int = 96, rbf: int = 50, n: int = 3) -> None:
        super().__init__()
        self.emb, self.n = nn.Embedding(atoms, d), n
        self.register_buffer("mu", torch.linspace(0, 8, rbf))
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(rbf, d), nn.Softplus(), nn.Linear(d, d)) for _ in range(n)
        )
        self.atomwise = nn.ModuleList(nn.Linear(d, d) for _ in range(2 * n))
        self.out = nn.Linear(d, 1)

    def forward(self, z: Tensor, pos: Tensor) -> Tensor:
        h = self.emb(z)
        dist = torch.cdist(pos.float(), pos.float()).to(pos.dtype)
        basis = torch.exp(-10 * (dist[..., None] - self.mu) ** 2).to(pos.dtype)
        for i in range(self.n):
            w = self.filters[i](basis)
            m = torch.einsum("bijd,bjd->bid", w, self.atomwise[2 * i](h).to(w.dtype))
            h = h + self.atomwise[2 * i + 1](F.softplus(m)).to(h.dtype)
        return self.out(h).sum((1, 2))


def knn(x: Tensor, k: int) -> Tensor:
    inner = -2 * torch.matmul(x.transpose(2, 1), x)
    xx = torch.sum(x**2, dim=1, keepdim=True)
    return (-xx - inner - xx.transpose(2, 1)).topk(k=k, dim=-1)[1]


def edge_features(x: Tensor, k: int) -> Tensor:
    B, C, N = x.shape
    idx = (knn(x, k) + torch.arange(B, device=x.device).view(-1, 1, 1) * N).view(-1)
    flat = x.transpose(2, 1).reshape(B * N, C)
    near = flat[idx].view(B, N, k, C)
    centre = flat.view(B, N, 1, C).expand(-1, -1, k, -1)
    return torch.cat((near - centre, centre), 3).permute(0, 3, 1, 2).contiguous()


class DGCNN(nn.Module):
    def __init__(self, k: int = 16, classes: int = 40) -> None:
        super().__init__()
        self.k = k
        self.conv1 = nn.Sequential(nn.Conv2d(6, 64, 1, bias=False), nn.BatchNorm2d(64), nn.LeakyReLU(0.2))
        self.conv2 = nn.Sequential(nn.Conv2d(128, 64, 1, bias=False), nn.BatchNorm2d(64), nn.LeakyReLU(0.2))
        self.conv3 = nn.Sequential(nn.Conv2d(128, 128, 1, bias=False), nn.BatchNorm2d(128), nn.LeakyReLU(0.2))
        self.conv4, self.fc = nn.Conv1d(256, 512, 1), nn.Linear(1024, classes)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.conv1(edge_features(x, self.k)).max(-1)[0]
        x2 = self.conv2(edge_features(x1, self.k)).max(-1)[0]
        x3 = self.conv3(edge_features(x2, self.k)).max(-1)[0]
        x = self.conv4(torch.cat((x1, x2, x3), 1))
        return self.fc(torch.cat([x.amax(-1), x.mean(-1)], 1))


class PointSampler(nn.Module):
    """Groups around random centres, a small network in each group, twice."""

    def __init__(self, near: int = 24, d: int = 64, classes: int = 40) -> None:
        super().__init__()
        self.near = near
        self.mlp1 = nn.Sequential(nn.Linear(6, d), nn.ReLU(), nn.Linear(d, 2 * d))
        self.mlp2 = nn.Sequential(nn.Linear(2 * d + 3, 2 * d), nn.ReLU(), nn.Linear(2 * d, 4 * d))
        self.head = nn.Linear(4 * d, classes)

    def group(self, xyz: Tensor, feats: Tensor, n: int) -> tuple[Tensor, Tensor]:
        c = xyz[:, torch.randperm(xyz.size(1), device=xyz.device)[:n]]
        idx = torch.cdist(c.float(), xyz.float()).topk(self.near, largest=False)[1]
        flat = idx.flatten(1).unsqueeze(-1)
        near = xyz.gather(1, flat.expand(-1, -1, 3)).view(*idx.shape, 3) - c[:, :, None]
        f = feats.gather(1, flat.expand(-1, -1, feats.size(-1))).view(*idx.shape, -1)
        return c, torch.cat([near, f], -1)

    def forward(self, points: Tensor) -> Tensor:
        xyz = points.transpose(1, 2)
        c1, g1 = self.group(xyz, xyz, xyz.size(1) // 2)
        f1 = self.mlp1(g1).amax(2)
        _, g2 = self.group(c1, f1.to(xyz.dtype), xyz.size(1) // 8)
        return self.head(self.mlp2(g2).amax(2).amax(1))


class DeepSets(nn.Module):
    def __init__(self, feats: int = 10, d: int = 256, classes: int = 4) -> None:
        super().__init__()
        self.gamma, self.lam = (
            nn.ModuleList([nn.Linear(feats, d), nn.Linear(d, d), nn.Linear(d, d)]),
            nn.ModuleList([nn.Linear(feats, d), nn.Linear(d, d), nn.Linear(d, d)]),
        )
        self.rho = nn.Linear(d, classes)

    def forward(self, x: Tensor) -> Tensor:
        for g, lam in zip(self.gamma, self.lam):
            x = F.elu(g(x) - lam(x.max(1, keepdim=True)[0]))
        return self.rho(x.sum(1))


class DiffPool(nn.Module):
    def __init__(self, feats: int = 32, d: int = 64, clusters: int = 32, classes: int = 6) -> None:
        super().__init__()
        self.e1, self.s1, self.e2, self.head = (
            nn.Linear(feats, d),
            nn.Linear(feats, clusters),
            nn.Linear(d, d),
            nn.Linear(d, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        adj = torch.sigmoid(x @ x.transpose(1, 2))
        z = F.relu(adj @ self.e1(x))
        s = F.softmax(adj @ self.s1(x), -1).to(z.dtype)
        x1, a1 = s.transpose(1, 2) @ z, s.transpose(1, 2) @ adj.to(z.dtype) @ s
        link = (adj - s @ s.transpose(1, 2)).pow(2).mean()
        return self.head(F.relu(a1 @ self.e2(x1)).mean(1)) + 0 * link


class GraphTransformerDense(nn.Module):
    def __init__(self, feats: int = 9, d: int = 96, heads: int = 8, n: int = 3) -> None:
        super().__init__()
        self.h = heads
        self.x_in, self.e_in = nn.Linear(feats, d), nn.Linear(4, heads)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(n))
        self.e_up = nn.ModuleList(nn.Linear(heads, heads) for _ in range(n))
        self.ff = nn.ModuleList(nn.Linear(d, d) for _ in range(n))
        self.y = nn.Linear(d, 1)

    def forward(self, x: Tensor, e: Tensor) -> Tensor:
        h, w = self.x_in(x), self.e_in(e)
        for qkv, up, ff in zip(self.qkv, self.e_up, self.ff):
            q, k, v = qkv(h).unflatten(-1, (3, self.h, -1)).unbind(2)
            s = torch.einsum("bihd,bjhd->bijh", q, k).clamp(-5, 5) * (1 + w)
            w = w + F.relu(up(s.to(w.dtype)))
            h = h + F.relu(ff(torch.einsum("bijh,bjhd->bihd", s.softmax(2).to(v.dtype), v).flatten(2)))
        return self.y(h.mean(1))
