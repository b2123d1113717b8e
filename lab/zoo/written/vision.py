"""Detection, video, matching and contrastive learning: heads, cost volumes, losses in forward."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class ConvBN(nn.Module):
    def __init__(self, a: int, b: int, s: int = 1) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(a, b, 3, s, 1, bias=False), nn.BatchNorm2d(b)

    def forward(self, x: Tensor) -> Tensor:
        return F.leaky_relu(self.bn(self.conv(x)), 0.1)


class FPNDetector(nn.Module):
    """Anchors at three scales, focal loss against random targets in forward."""

    def __init__(self, c: int = 32, classes: int = 20, anchors: int = 9) -> None:
        super().__init__()
        self.c1, self.c2, self.c3, self.c4 = (
            ConvBN(3, c, 2),
            ConvBN(c, 2 * c, 2),
            ConvBN(2 * c, 4 * c, 2),
            ConvBN(4 * c, 8 * c, 2),
        )
        self.lat = nn.ModuleList(nn.Conv2d(k * c, 2 * c, 1) for k in (2, 4, 8))
        self.cls_head = nn.Sequential(ConvBN(2 * c, 2 * c), nn.Conv2d(2 * c, anchors * classes, 3, padding=1))
        self.box_head = nn.Sequential(ConvBN(2 * c, 2 * c), nn.Conv2d(2 * c, anchors * 4, 3, padding=1))
        self.k = classes

    def forward(self, img: Tensor, label: Tensor) -> Tensor:
        f2 = self.c2(self.c1(img))
        f3 = self.c3(f2)
        f4 = self.c4(f3)
        p4 = self.lat[2](f4)
        p3 = self.lat[1](f3) + F.interpolate(p4, size=f3.shape[-2:])
        p2 = self.lat[0](f2) + F.interpolate(p3, size=f2.shape[-2:])
        cls = torch.cat(
            [self.cls_head(p).permute(0, 2, 3, 1).reshape(img.size(0), -1, self.k) for p in (p2, p3, p4)], 1
        )
        box = torch.cat(
            [self.box_head(p).permute(0, 2, 3, 1).reshape(img.size(0), -1, 4) for p in (p2, p3, p4)], 1
        )
        t = torch.zeros_like(cls).scatter(2, label[:, None, None].expand(-1, cls.size(1), 1), 1.0)
        p = torch.sigmoid(cls)
        ce = F.binary_cross_entropy_with_logits(cls, t, reduction="none")
        pt = p * t + (1 - p) * (1 - t)
        return (0.25 * (1 - pt) ** 2 * ce).mean() + F.smooth_l1_loss(box, torch.zeros_like(box))


class CenterPoints(nn.Module):
    def __init__(self, c: int = 48, classes: int = 10) -> None:
        super().__init__()
        self.d = nn.ModuleList([ConvBN(3, c, 2), ConvBN(c, 2 * c, 2), ConvBN(2 * c, 4 * c, 2)])
        self.u = nn.ModuleList(
            [nn.ConvTranspose2d(4 * c, 2 * c, 4, 2, 1), nn.ConvTranspose2d(2 * c, c, 4, 2, 1)]
        )
        self.heat, self.wh, self.off = nn.Conv2d(c, classes, 1), nn.Conv2d(c, 2, 1), nn.Conv2d(c, 2, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for d in self.d:
            x = d(x)
        for u in self.u:
            x = F.relu(u(x))
        heat = torch.sigmoid(self.heat(x)).clamp(0.01, 0.99)
        g = torch.exp(-torch.arange(heat.size(-1), device=x.device).to(x.dtype) / 10)
        gt = (g[:, None] * g[None]).expand_as(heat)
        neg = torch.log(1 - heat) * heat**2 * (1 - gt) ** 4
        return {"loss": -neg.mean() + self.wh(x).abs().mean() + self.off(x).abs().mean(), "heat": heat}


class MiniDETR(nn.Module):
    def __init__(self, d: int = 128, queries: int = 50, classes: int = 20) -> None:
        super().__init__()
        self.backbone = nn.Sequential(ConvBN(3, 32, 2), ConvBN(32, 64, 2), ConvBN(64, d, 2))
        self.transformer = nn.Transformer(d, 8, 2, 2, 256, batch_first=True)
        self.row, self.col = nn.Parameter(torch.rand(64, d // 2)), nn.Parameter(torch.rand(64, d // 2))
        self.query, self.cls, self.box = (
            nn.Parameter(torch.rand(queries, d)),
            nn.Linear(d, classes + 1),
            nn.Linear(d, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        f = self.backbone(x)
        B, _, H, W = f.shape
        pos = torch.cat(
            [self.col[:W].unsqueeze(0).expand(H, -1, -1), self.row[:H].unsqueeze(1).expand(-1, W, -1)], -1
        )
        h = self.transformer(
            (f + pos.permute(2, 0, 1)).flatten(2).transpose(1, 2).to(self.query.dtype),
            self.query.expand(B, -1, -1),
        )
        boxes = torch.sigmoid(self.box(h))
        cost = torch.cdist(boxes.float(), boxes.detach().float().flip(1), p=1)
        return self.cls(h).logsumexp(-1).mean() + cost.min(-1)[0].mean()


class CostVolumeFlow(nn.Module):
    """Optical flow: all shifts of one feature map against the other."""

    def __init__(self, c: int = 32, reach: int = 4) -> None:
        super().__init__()
        self.r = reach
        self.enc = nn.Sequential(ConvBN(3, c, 2), ConvBN(c, c, 2))
        k = (2 * reach + 1) ** 2
        self.f1, self.f2, self.flow = ConvBN(k + c, 96), ConvBN(96, 64), nn.Conv2d(64, 2, 3, padding=1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        fa, fb = self.enc(a), self.enc(b)
        H, W = fa.shape[-2:]
        p = F.pad(fb, [self.r] * 4)
        vol = [
            (fa * p[:, :, i : i + H, j : j + W]).mean(1)
            for i in range(2 * self.r + 1)
            for j in range(2 * self.r + 1)
        ]
        flow = self.flow(self.f2(self.f1(torch.cat([torch.stack(vol, 1), fa], 1))))
        flow = F.interpolate(flow, scale_factor=4, mode="bilinear", align_corners=False)
        ys, xs = torch.meshgrid(
            torch.linspace(-1, 1, a.size(2), device=a.device),
            torch.linspace(-1, 1, a.size(3), device=a.device),
            indexing="ij",
        )
        grid = torch.stack([xs, ys], -1) + flow.permute(0, 2, 3, 1).float() / 10
        warped = F.grid_sample(b.float(), grid, align_corners=True)
        return (warped - a).abs().mean()


class StereoVolume(nn.Module):
    def __init__(self, c: int = 16, disp: int = 16) -> None:
        super().__init__()
        self.disp = disp
        self.feat = nn.Sequential(ConvBN(3, c, 2), ConvBN(c, c, 2))
        self.r1, self.r2, self.r3 = (
            nn.Conv3d(2 * c, c, 3, padding=1),
            nn.Conv3d(c, c, 3, padding=1),
            nn.Conv3d(c, 1, 3, padding=1),
        )

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        fl, fr = self.feat(left), self.feat(right)
        vol = fl.new_zeros(fl.size(0), 2 * fl.size(1), self.disp, *fl.shape[2:])
        for d in range(self.disp):
            vol[:, : fl.size(1), d, :, d:] = fl[..., d:]
            vol[:, fl.size(1) :, d, :, d:] = fr[..., : fr.size(-1) - d]
        x = F.relu(self.r1(vol))
        x = x + F.relu(self.r2(x))
        p = F.softmax(self.r3(x).squeeze(1), 1)
        return (p * torch.arange(self.disp, device=p.device).view(1, -1, 1, 1)).sum(1).float()


class SimCLR(nn.Module):
    """Two views through one encoder, all pairs of the batch compared."""

    def __init__(self, c: int = 32, d: int = 128) -> None:
        super().__init__()
        self.f = nn.Sequential(ConvBN(3, c), ConvBN(c, 2 * c, 2), ConvBN(2 * c, 4 * c, 2))
        self.g = nn.Sequential(nn.Linear(4 * c, 4 * c), nn.ReLU(), nn.Linear(4 * c, d))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        z = F.normalize(torch.cat([self.g(self.f(v).mean((2, 3))) for v in (a, b)]).float(), dim=-1)
        sim = z @ z.t() / 0.5
        sim = sim.masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), -1e4)
        return F.cross_entropy(sim, torch.arange(len(z), device=z.device).roll(len(a)))


class ByolPair(nn.Module):
    """A slow copy of the encoder sees the other view without gradients."""

    def __init__(self, c: int = 48) -> None:
        super().__init__()
        self.online = nn.Sequential(ConvBN(3, c, 2), ConvBN(c, 2 * c, 2), ConvBN(2 * c, 4 * c, 2))
        self.target = nn.Sequential(ConvBN(3, c, 2), ConvBN(c, 2 * c, 2), ConvBN(2 * c, 4 * c, 2))
        self.predictor = nn.Sequential(
            nn.Linear(4 * c, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 4 * c)
        )

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        p1, p2 = (self.predictor(self.online(x).mean((2, 3))) for x in (x1, x2))
        with torch.no_grad():
            t1, t2 = (self.target(x).mean((2, 3)) for x in (x1, x2))
        return 2 - F.cosine_similarity(p1, t2).mean() - F.cosine_similarity(p2, t1).mean()


class TripletNet(nn.Module):
    def __init__(self, c: int = 32, d: int = 64) -> None:
        super().__init__()
        self.body = nn.ModuleList([ConvBN(3, c), ConvBN(c, c, 2), ConvBN(c, 2 * c), ConvBN(2 * c, 4 * c, 2)])
        self.embed = nn.Linear(4 * c, d)

    def embed_one(self, x: Tensor) -> Tensor:
        for b in self.body:
            x = b(x)
        return F.normalize(self.embed(x.mean((2, 3))), dim=1)

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        a, p, n = self.embed_one(anchor), self.embed_one(positive), self.embed_one(negative)
        return F.relu((a - p).pow(2).sum(1) - (a - n).pow(2).sum(1) + 0.2).mean()


class MiniCLIP(nn.Module):
    def __init__(self, vocab: int = 8000, d: int = 128) -> None:
        super().__init__()
        self.visual = nn.Sequential(ConvBN(3, 32, 2), ConvBN(32, 64, 2), ConvBN(64, d, 2))
        self.token, self.pos = nn.Embedding(vocab, d), nn.Parameter(torch.zeros(32, d))
        self.text, self.scale = (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 4, 256, batch_first=True), 2),
            nn.Parameter(torch.ones([])),
        )

    def forward(self, image: Tensor, ids: Tensor) -> Tensor:
        v = F.normalize(self.visual(image).mean((2, 3)), dim=-1)
        t = F.normalize(self.text(self.token(ids) + self.pos).mean(1), dim=-1)
        logits = self.scale.exp() * v @ t.to(v.dtype).t()
        y = torch.arange(len(v), device=v.device)
        return (F.cross_entropy(logits, y) + F.cross_entropy(logits.t(), y)) / 2


class MaskedPatches(nn.Module):
    """Three quarters of the patches are dropped before the encoder and put back as tokens."""

    def __init__(self, patch: int = 8, d: int = 192, n: int = 4, size: int = 96) -> None:
        super().__init__()
        self.p, num = patch, (size // patch) ** 2
        self.emb, self.pos, self.mask = (
            nn.Linear(3 * patch**2, d),
            nn.Parameter(torch.zeros(1, num, d)),
            nn.Parameter(torch.zeros(1, 1, d)),
        )
        self.enc = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 6, 2 * d, batch_first=True, norm_first=True) for _ in range(n)
        )
        self.dec = nn.TransformerEncoderLayer(d, 6, 2 * d, batch_first=True)
        self.pix = nn.Linear(d, 3 * patch**2)

    def forward(self, x: Tensor) -> Tensor:
        p = F.unfold(x, self.p, stride=self.p).transpose(1, 2)
        B, N, _ = p.shape
        order = torch.rand(B, N, device=x.device).argsort(1)
        keep, back = order[:, : N // 4], order.argsort(1)
        t = self.emb(p) + self.pos
        h = t.gather(1, keep.unsqueeze(-1).expand(-1, -1, t.size(-1))).to(x.dtype)
        for e in self.enc:
            h = e(h)
        full = torch.cat([h, self.mask.expand(B, N - h.size(1), -1).to(h.dtype)], 1)
        full = full.gather(1, back.unsqueeze(-1).expand(-1, -1, full.size(-1)))
        return F.mse_loss(self.pix(self.dec(full + self.pos)), p)


class TwoStreamVideo(nn.Module):
    def __init__(self, c: int = 24, classes: int = 51) -> None:
        super().__init__()
        self.slow = nn.ModuleList(
            [nn.Conv3d(3, c, (1, 5, 5), (1, 2, 2), (0, 2, 2)), nn.Conv3d(c, 2 * c, 3, (1, 2, 2), 1)]
        )
        self.fast = nn.ModuleList(
            [nn.Conv3d(3, c // 4, (5, 5, 5), (1, 2, 2), 2), nn.Conv3d(c // 4, c // 2, 3, (1, 2, 2), 1)]
        )
        self.fuse, self.fc = (
            nn.Conv3d(c // 4, c // 2, (5, 1, 1), (4, 1, 1), (2, 0, 0)),
            nn.Linear(2 * c + c // 2, classes),
        )
        self.widen = nn.Conv3d(c + c // 2, c, 1)

    def forward(self, clip: Tensor) -> Tensor:
        s, f = F.relu(self.slow[0](clip[:, :, ::4])), F.relu(self.fast[0](clip))
        s = self.widen(torch.cat([s, self.fuse(f)], 1))
        s, f = F.relu(self.slow[1](s)), F.relu(self.fast[1](f))
        return self.fc(torch.cat([s.mean((2, 3, 4)), f.mean((2, 3, 4))], 1))


class DividedVideoAttention(nn.Module):
    def __init__(self, d: int = 128, n: int = 3, classes: int = 51) -> None:
        super().__init__()
        self.patch = nn.Conv3d(3, d, (1, 8, 8), (1, 8, 8))
        self.time, self.space = (nn.ModuleList(nn.Linear(d, 3 * d) for _ in range(n)) for _ in range(2))
        self.mlp, self.head = nn.ModuleList(nn.Linear(d, d) for _ in range(n)), nn.Linear(d, classes)

    def forward(self, clip: Tensor) -> Tensor:
        x = self.patch(clip).flatten(3).permute(0, 2, 3, 1)
        for t, s, m in zip(self.time, self.space, self.mlp):
            q, k, v = t(x).chunk(3, -1)
            a = torch.einsum("btnd,bsnd->bnts", q, k).div(11).softmax(-1).to(v.dtype)
            x = x + torch.einsum("bnts,bsnd->btnd", a, v)
            q, k, v = s(x).chunk(3, -1)
            a = torch.einsum("btnd,btmd->btnm", q, k).div(11).softmax(-1).to(v.dtype)
            x = x + torch.einsum("btnm,btmd->btnd", a, v)
            x = x + F.gelu(m(x))
        return self.head(x.mean((1, 2)))


class SuperResolver(nn.Module):
    """Residual dense blocks and pixel shuffle, the perceptual loss inside."""

    def __init__(self, c: int = 32, n: int = 4, factor: int = 2) -> None:
        super().__init__()
        self.f, self.head = factor, nn.Conv2d(3, c, 3, padding=1)
        self.a, self.b = (nn.ModuleList(nn.Conv2d(c * k, c, 3, padding=1) for _ in range(n)) for k in (1, 2))
        self.tail = nn.Conv2d(c * (n + 1), 3 * factor**2, 3, padding=1)
        self.loss_net = nn.Conv2d(3, 64, 3, padding=1)

    def forward(self, low: Tensor) -> Tensor:
        x = self.head(low)
        outs = [x]
        for a, b in zip(self.a, self.b):
            y = F.relu(a(x))
            x = x + 0.2 * b(torch.cat([x, y], 1))
            outs.append(x)
        sr = F.pixel_shuffle(self.tail(torch.cat(outs, 1)), self.f)
        hr = F.interpolate(low, scale_factor=self.f, mode="bicubic", align_corners=False)
        return F.l1_loss(sr, hr) + F.mse_loss(self.loss_net(sr), self.loss_net(hr))


class StyleTransfer(nn.Module):
    """Gram matrices of several layers."""

    def __init__(self, c: int = 32) -> None:
        super().__init__()
        self.t = nn.Sequential(ConvBN(3, c), ConvBN(c, c), nn.Conv2d(c, 3, 3, padding=1))
        self.vgg = nn.ModuleList([ConvBN(3, 64), ConvBN(64, 64), ConvBN(64, 128)])
        for p in self.vgg.parameters():
            p.requires_grad_(False)

    def gram(self, x: Tensor) -> Tensor:
        f = x.flatten(2)
        return torch.bmm(f, f.transpose(1, 2)) / f.size(-1)

    def forward(self, content: Tensor, style: Tensor) -> Tensor:
        y, loss = self.t(content), torch.zeros((), device=content.device)
        a, b = y, style
        for i, layer in enumerate(self.vgg):
            a, b = layer(a), layer(b)
            loss = loss + F.mse_loss(self.gram(a), self.gram(b))
            if i == 1:
                a, b = F.max_pool2d(a, 2), F.max_pool2d(b, 2)
        return loss + F.mse_loss(y, content)
