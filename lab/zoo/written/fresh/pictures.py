"""Images and points: windows by hand, sampled grids, assignment losses."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class ShiftedWindows(nn.Module):
    def __init__(self, d: int = 96, w: int = 8, n: int = 4, side: int = 128) -> None:
        super().__init__()
        self.w = w
        self.stem = nn.Conv2d(3, d, 4, 4)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(n))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(n)
        )
        self.ln = nn.ModuleList(nn.LayerNorm(d) for _ in range(2 * n))
        self.table = nn.Parameter(torch.zeros((2 * w - 1) ** 2, 4))
        c = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")).flatten(1)
        r = (c[:, :, None] - c[:, None]) + w - 1
        self.register_buffer("idx", r[0] * (2 * w - 1) + r[1])
        self.head = nn.Linear(d, 50)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        B, H, W, D = x.shape
        w = self.w
        bias = self.table[self.idx].permute(2, 0, 1)  # type: ignore[index]
        for i, (qkv, mlp) in enumerate(zip(self.qkv, self.mlp)):
            y = self.ln[2 * i](x)
            y = torch.roll(y, (-w // 2, -w // 2), (1, 2)) if i % 2 else y
            y = y.view(B, H // w, w, W // w, w, D).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, D)
            q, k, v = qkv(y).view(-1, w * w, 3, 4, D // 4).permute(2, 0, 3, 1, 4)
            a = (q * (D // 4) ** -0.5) @ k.transpose(-1, -2) + bias
            y = (a.softmax(-1) @ v).transpose(1, 2).reshape(B, H // w, W // w, w, w, D)
            y = y.permute(0, 1, 3, 2, 4, 5).reshape(B, H, W, D)
            x = x + (torch.roll(y, (w // 2, w // 2), (1, 2)) if i % 2 else y)
            x = x + mlp(self.ln[2 * i + 1](x))
        return self.head(x.mean((1, 2)))


class DeformableDetector(nn.Module):
    """Queries that sample a feature map where they want; boxes matched greedily to fixed targets."""

    def __init__(self, d: int = 128, queries: int = 100, points: int = 8, n: int = 3) -> None:
        super().__init__()
        self.back = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, d, 3, 2, 1),
            nn.BatchNorm2d(d),
            nn.ReLU(),
            nn.Conv2d(d, d, 3, 2, 1),
            nn.BatchNorm2d(d),
            nn.ReLU(),
        )
        self.q = nn.Embedding(queries, d)
        self.ref = nn.Embedding(queries, 2)
        self.offset = nn.ModuleList(nn.Linear(d, points * 2) for _ in range(n))
        self.weight = nn.ModuleList(nn.Linear(d, points) for _ in range(n))
        self.att = nn.ModuleList(nn.MultiheadAttention(d, 8, batch_first=True) for _ in range(n))
        self.ff = nn.ModuleList(nn.Linear(d, d) for _ in range(n))
        self.box, self.cls = nn.Linear(d, 4), nn.Linear(d, 21)

    def forward(self, img: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        f = self.back(img)
        B = f.size(0)
        x = self.q.weight.expand(B, -1, -1)
        ref = self.ref.weight.sigmoid() * 2 - 1
        loss = f.new_zeros(())
        for off, wgt, att, ff in zip(self.offset, self.weight, self.att, self.ff):
            x = x + att(x, x, x, need_weights=False)[0]
            grid = ref[None, :, None] + 0.1 * torch.tanh(off(x).unflatten(-1, (-1, 2)))
            s = F.grid_sample(f, grid.to(f.dtype), align_corners=False)
            x = x + ff(torch.einsum("bdqp,bqp->bqd", s, wgt(x).softmax(-1).to(s.dtype)))
            pb, pc = self.box(x).sigmoid(), self.cls(x)
            cost = torch.cdist(pb.float(), boxes.float(), 1) - pc.softmax(-1).gather(
                2, labels[:, None].expand(-1, pb.size(1), -1)
            )
            pick = cost.argmin(1)
            chosen = pb.gather(1, pick[..., None].expand(-1, -1, 4))
            loss = (
                loss
                + F.l1_loss(chosen, boxes)
                + F.cross_entropy(
                    pc.gather(1, pick[..., None].expand(-1, -1, 21)).flatten(0, 1), labels.flatten()
                )
            )
        return loss


class GridYolo(nn.Module):
    """One-stage detector: anchors, cell assignment by scatter, IoU loss by hand."""

    def __init__(self, c: int = 32, anchors: int = 3, classes: int = 20) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        i = 3
        for o in (c, 2 * c, 4 * c, 8 * c, 16 * c):
            layers += [
                nn.Conv2d(i, o, 3, 2, 1, bias=False),
                nn.BatchNorm2d(o),
                nn.LeakyReLU(0.1, True),
                nn.Conv2d(o, o // 2, 1, bias=False),
                nn.BatchNorm2d(o // 2),
                nn.LeakyReLU(0.1, True),
                nn.Conv2d(o // 2, o, 3, 1, 1, bias=False),
                nn.BatchNorm2d(o),
                nn.LeakyReLU(0.1, True),
            ]
            i = o
        self.net = nn.Sequential(*layers)
        self.a, self.k = anchors, classes
        self.out = nn.Conv2d(i, anchors * (5 + classes), 1)

    def forward(self, img: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        p = self.out(self.net(img))
        B, _, H, W = p.shape
        p = p.view(B, self.a, 5 + self.k, H, W).permute(0, 1, 3, 4, 2).float()
        bx = boxes.float().sigmoid()
        gx, gy = (bx[..., 0] * W).long(), (bx[..., 1] * H).long()
        b = torch.arange(B, device=p.device)[:, None].expand_as(gx)
        a = (bx[..., 2] * self.a).long().clamp(max=self.a - 1)
        obj = torch.zeros_like(p[..., 4])
        obj[b, a, gy, gx] = 1.0
        hit = p[b, a, gy, gx]
        xy, wh = hit[..., :2].sigmoid(), hit[..., 2:4].exp().clamp(max=4)
        lo1, hi1 = xy - wh / 2, xy + wh / 2
        lo2, hi2 = bx[..., :2] - bx[..., 2:] / 2, bx[..., :2] + bx[..., 2:] / 2
        inter = (torch.minimum(hi1, hi2) - torch.maximum(lo1, lo2)).clamp(min=0).prod(-1)
        iou = inter / (wh.prod(-1) + bx[..., 2:].prod(-1) - inter + 1e-6)
        return (
            (1 - iou).mean()
            + F.binary_cross_entropy_with_logits(p[..., 4], obj)
            + F.cross_entropy(hit[..., 5:].flatten(0, -2), labels.flatten())
        )


class MultiResolution(nn.Module):
    """Branches of several resolutions that exchange features (HRNet-like), key points by soft-argmax."""

    def __init__(self, c: int = 32, joints: int = 17, n: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, c, 3, 2, 1), nn.BatchNorm2d(c), nn.ReLU())
        w = [c, 2 * c, 4 * c]
        self.first = nn.ModuleList(nn.Conv2d(c, k, 3, 2**i, 1) for i, k in enumerate(w))
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(
                    nn.Conv2d(k, k, 3, 1, 1),
                    nn.BatchNorm2d(k),
                    nn.ReLU(),
                    nn.Conv2d(k, k, 3, 1, 1),
                    nn.BatchNorm2d(k),
                )
                for k in w
            )
            for _ in range(n)
        )
        self.mix = nn.ModuleList(nn.ModuleList(nn.Conv2d(i, o, 1) for o in w for i in w) for _ in range(n))
        self.head = nn.Conv2d(sum(w), joints, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        xs = [f(x) for f in self.first]
        for blocks, mix in zip(self.blocks, self.mix):
            xs = [F.relu(x + b(x)) for x, b in zip(xs, blocks)]  # type: ignore[call-overload]
            ys = []
            for o in range(3):
                acc: Any = 0
                for i in range(3):
                    m = mix[3 * o + i](xs[i])  # type: ignore[index]
                    acc = acc + F.interpolate(m, size=xs[o].shape[-2:], mode="bilinear", align_corners=False)
                ys.append(F.relu(acc))
            xs = ys
        up = torch.cat([F.interpolate(x, size=xs[0].shape[-2:]) for x in xs], 1)
        heat = self.head(up)
        p = heat.flatten(2).softmax(-1).view_as(heat)
        gy = torch.linspace(0, 1, heat.size(2), device=x.device, dtype=p.dtype)
        gx = torch.linspace(0, 1, heat.size(3), device=x.device, dtype=p.dtype)
        return torch.stack([(p.sum(2) * gx).sum(-1), (p.sum(3) * gy).sum(-1)], -1)


class SlowFastTiny(nn.Module):
    def __init__(self, c: int = 32, classes: int = 60) -> None:
        super().__init__()
        self.s = nn.ModuleList(
            [
                nn.Conv3d(3, c, (1, 7, 7), (1, 2, 2), (0, 3, 3)),
                nn.Conv3d(c + c // 4, 2 * c, 3, (1, 2, 2), 1),
                nn.Conv3d(2 * c + c // 2, 4 * c, 3, (1, 2, 2), 1),
            ]
        )
        self.f = nn.ModuleList(
            [
                nn.Conv3d(3, c // 8, (5, 7, 7), (1, 2, 2), (2, 3, 3)),
                nn.Conv3d(c // 8, c // 4, 3, (1, 2, 2), 1),
                nn.Conv3d(c // 4, c // 2, 3, (1, 2, 2), 1),
            ]
        )
        self.lat = nn.ModuleList(
            [
                nn.Conv3d(c // 8, c // 4, (5, 1, 1), (4, 1, 1), (2, 0, 0)),
                nn.Conv3d(c // 4, c // 2, (5, 1, 1), (4, 1, 1), (2, 0, 0)),
            ]
        )
        self.bs = nn.ModuleList(nn.BatchNorm3d(k) for k in (c, 2 * c, 4 * c))
        self.bf = nn.ModuleList(nn.BatchNorm3d(k) for k in (c // 8, c // 4, c // 2))
        self.fc = nn.Linear(4 * c + c // 2, classes)

    def forward(self, v: Tensor) -> Tensor:
        s, f = v[:, :, ::4], v
        for i in range(3):
            s, f = F.relu(self.bs[i](self.s[i](s))), F.relu(self.bf[i](self.f[i](f)))
            if i < 2:
                s = torch.cat([s, self.lat[i](f)], 1)
        return self.fc(torch.cat([s.mean((2, 3, 4)), f.mean((2, 3, 4))], 1))


class SetAbstraction(nn.Module):
    """PointNet++: farthest points one by one, a ball query by distances, grouped MLPs."""

    def __init__(self, classes: int = 40) -> None:
        super().__init__()
        self.m1 = nn.Sequential(
            nn.Conv2d(3, 64, 1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 128, 1),
            nn.BatchNorm2d(128),
            nn.ReLU(),
        )
        self.m2 = nn.Sequential(
            nn.Conv2d(131, 128, 1),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.Conv2d(128, 256, 1),
            nn.BatchNorm2d(256),
            nn.ReLU(),
        )
        self.fc = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.4), nn.Linear(128, classes))

    @staticmethod
    def farthest(x: Tensor, n: int) -> Tensor:
        B, N, _ = x.shape
        far = torch.zeros(B, dtype=torch.long, device=x.device)
        dist = torch.full((B, N), 1e4, device=x.device, dtype=x.dtype)
        out = []
        rows = torch.arange(B, device=x.device)
        for _ in range(n):
            out.append(far)
            dist = torch.minimum(dist, ((x - x[rows, far][:, None]) ** 2).sum(-1))
            far = dist.argmax(-1)
        return torch.stack(out, 1)

    def level(
        self, xyz: Tensor, feat: Tensor | None, n: int, k: int, mlp: nn.Module
    ) -> tuple[Tensor, Tensor]:
        rows = torch.arange(xyz.size(0), device=xyz.device)
        centre = xyz[rows[:, None], self.farthest(xyz, n)]
        near = torch.cdist(centre.float(), xyz.float()).topk(k, largest=False).indices
        g = xyz[rows[:, None, None], near] - centre[:, :, None]
        if feat is not None:
            g = torch.cat([g, feat[rows[:, None, None], near]], -1)
        return centre, mlp(g.permute(0, 3, 1, 2)).amax(-1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        c, f = self.level(x, None, 128, 32, self.m1)
        c, f = self.level(c, f, 32, 32, self.m2)
        return self.fc(f.amax(1))


class PointVectorAttention(nn.Module):
    def __init__(self, d: int = 64, k: int = 16, n: int = 4, parts: int = 50) -> None:
        super().__init__()
        self.k = k
        self.inp = nn.Linear(3, d)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(n))
        self.pos = nn.ModuleList(nn.Sequential(nn.Linear(3, d), nn.ReLU(), nn.Linear(d, d)) for _ in range(n))
        self.att = nn.ModuleList(nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d)) for _ in range(n))
        self.head = nn.Linear(d, parts)

    def forward(self, xyz: Tensor) -> Tensor:
        idx = torch.cdist(xyz.float(), xyz.float()).topk(self.k, largest=False).indices
        rows = torch.arange(xyz.size(0), device=xyz.device)[:, None, None]
        rel = xyz[:, :, None] - xyz[rows, idx]
        x = self.inp(xyz)
        for qkv, pos, att in zip(self.qkv, self.pos, self.att):
            q, k, v = qkv(x).chunk(3, -1)
            p = pos(rel)
            w = att(q[:, :, None] - k[rows, idx] + p).softmax(2)
            x = x + (w * (v[rows, idx] + p)).sum(2)
        return self.head(x)


class TransposedAttention(nn.Module):
    """Restormer: attention over channels, gated depthwise feed-forward; denoising."""

    def __init__(self, c: int = 48, n: int = 6, heads: int = 4) -> None:
        super().__init__()
        self.h = heads
        self.inp, self.out = nn.Conv2d(3, c, 3, 1, 1), nn.Conv2d(c, 3, 3, 1, 1)
        self.qkv = nn.ModuleList(nn.Conv2d(c, 3 * c, 1) for _ in range(n))
        self.dw = nn.ModuleList(nn.Conv2d(3 * c, 3 * c, 3, 1, 1, groups=3 * c) for _ in range(n))
        self.t = nn.ParameterList(nn.Parameter(torch.ones(heads, 1, 1)) for _ in range(n))
        self.po = nn.ModuleList(nn.Conv2d(c, c, 1) for _ in range(n))
        self.f1 = nn.ModuleList(nn.Conv2d(c, 4 * c, 1) for _ in range(n))
        self.f2 = nn.ModuleList(nn.Conv2d(4 * c, 4 * c, 3, 1, 1, groups=4 * c) for _ in range(n))
        self.f3 = nn.ModuleList(nn.Conv2d(2 * c, c, 1) for _ in range(n))

    def forward(self, img: Tensor) -> Tensor:
        x = self.inp(img)
        for i in range(len(self.qkv)):
            B, C, H, W = x.shape
            y = F.layer_norm(x.permute(0, 2, 3, 1), (C,)).permute(0, 3, 1, 2)
            q, k, v = (
                t.reshape(B, self.h, C // self.h, H * W) for t in self.dw[i](self.qkv[i](y)).chunk(3, 1)
            )
            a = (F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-1, -2)) * self.t[i]
            x = x + self.po[i]((a.softmax(-1).to(v.dtype) @ v).reshape(B, C, H, W))
            u, g = self.f2[i](self.f1[i](x)).chunk(2, 1)
            x = x + self.f3[i](F.gelu(u) * g)
        return img + self.out(x)


class NeighborhoodNet(nn.Module):
    """Attention to a window around each pixel, unfolded."""

    def __init__(self, c: int = 64, k: int = 7, n: int = 3, classes: int = 100) -> None:
        super().__init__()
        self.k = k
        self.stem = nn.Sequential(nn.Conv2d(3, c, 3, 2, 1), nn.GELU(), nn.Conv2d(c, c, 3, 2, 1))
        self.qkv = nn.ModuleList(nn.Conv2d(c, 3 * c, 1) for _ in range(n))
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(4, k * k)) for _ in range(n))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, 3 * c, 1), nn.GELU(), nn.Conv2d(3 * c, c, 1)) for _ in range(n)
        )
        self.fc = nn.Linear(c, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        B, C, H, W = x.shape
        for qkv, bias, mlp in zip(self.qkv, self.bias, self.mlp):
            q, k, v = qkv(x).chunk(3, 1)
            ku = F.unfold(k, self.k, padding=self.k // 2).view(B, 4, C // 4, self.k**2, H * W)
            vu = F.unfold(v, self.k, padding=self.k // 2).view(B, 4, C // 4, self.k**2, H * W)
            a = (q.view(B, 4, C // 4, 1, H * W) * ku).sum(2) * (C // 4) ** -0.5 + bias[None, :, :, None]
            x = x + (a.softmax(2)[:, :, None] * vu).sum(3).reshape(B, C, H, W)
            x = x + mlp(x)
        return self.fc(x.mean((2, 3)))


class LocalImplicit(nn.Module):
    """LIIF: an encoder, then a coordinate MLP queried at random points with four neighbours each."""

    def __init__(self, c: int = 64, blocks: int = 8, q: int = 1024) -> None:
        super().__init__()
        self.q = q
        self.head = nn.Conv2d(3, c, 3, 1, 1)
        self.body = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, c, 3, 1, 1), nn.ReLU(), nn.Conv2d(c, c, 3, 1, 1))
            for _ in range(blocks)
        )
        self.mlp = nn.Sequential(
            nn.Linear(9 * c + 2, 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        B, _, H, W = x.shape
        f = self.head(x)
        for b in self.body:
            f = f + b(f)
        f = F.unfold(f, 3, padding=1).view(B, -1, H, W)
        coord = torch.rand(B, self.q, 2, device=x.device, dtype=f.dtype) * 2 - 1
        out = x.new_zeros(())
        for dx in (-1, 1):
            for dy in (-1, 1):
                c = (coord + torch.tensor([dx / W, dy / H], device=x.device, dtype=f.dtype)).clamp(
                    -1 + 1e-4, 1 - 1e-4
                )
                feat = F.grid_sample(f, c[:, :, None], mode="nearest", align_corners=False)[..., 0].transpose(
                    1, 2
                )
                out = out + self.mlp(torch.cat([feat, coord - c], -1)) / 4
        gt = F.grid_sample(x, coord[:, :, None].to(x.dtype), align_corners=False)[..., 0].transpose(1, 2)
        return F.l1_loss(out, gt.to(out.dtype))
