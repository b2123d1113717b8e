"""More training steps met for the first time: transforms, own optimizers, dynamic shapes, sequences."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.tracing.fresh.fresh_a import mlp, update


def detector(big):
    """Anchors above a threshold are kept, a loop over images, numbers of objects that differ."""
    width, rows, side = (64, 16, 256) if big else (4, 2, 32)

    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            c, body = 3, []
            for i in range(4):
                body += [
                    nn.Conv2d(c, width << min(i, 2), 3, 2, 1),
                    nn.BatchNorm2d(width << min(i, 2)),
                    nn.ReLU(True),
                ]
                c = width << min(i, 2)
            self.body = nn.Sequential(*body)
            self.cls, self.box = nn.Conv2d(c, 9 * 20, 3, padding=1), nn.Conv2d(c, 9 * 4, 3, padding=1)

        def forward(self, x):
            f = self.body(x)
            b = x.shape[0]
            cls = self.cls(f).permute(0, 2, 3, 1).reshape(b, -1, 20)
            return cls, self.box(f).permute(0, 2, 3, 1).reshape(b, -1, 4)

    def step(model, batch, optimizer):
        images, boxes, labels, count = batch
        cls, box = model(images)
        loss = 0.0
        for i in range(images.shape[0]):
            n = int(count[i])
            truth, names = boxes[i, :n], labels[i, :n]
            gap = torch.cdist(box[i].detach(), truth)
            best, which = gap.min(1)
            positive = best < best.mean()
            target = torch.zeros_like(cls[i])
            target[positive, names[which[positive]]] = 1
            loss = loss + F.binary_cross_entropy_with_logits(
                cls[i], target, reduction="sum"
            ) / positive.sum().clamp(min=1)
            loss = loss + F.smooth_l1_loss(box[i][positive], truth[which[positive]])
        return update(loss / images.shape[0], optimizer)

    batch = (
        torch.randn(rows, 3, side, side),
        torch.rand(rows, 12, 4),
        torch.randint(0, 20, (rows, 12)),
        torch.randint(1, 12, (rows,)),
    )
    return Detector(), batch, step


def sparse_embeddings(big):
    """Embedding bags with sparse gradients and SparseAdam, dense layers with Adagrad."""
    items, width, rows = (500_000, 128, 16_384) if big else (50, 4, 3)

    class Clicks(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList(
                nn.EmbeddingBag(items, width, sparse=True, mode="sum") for _ in range(3)
            )
            self.top = mlp(3 * width + 13, 512, 256, 1)

        def forward(self, dense, *ids):
            return self.top(torch.cat([dense, *(t(i) for t, i in zip(self.tables, ids))], -1)).squeeze(-1)

    def step(model, batch, optimizer):
        if not hasattr(model, "opts"):
            model.opts = [
                torch.optim.SparseAdam(list(model.tables.parameters())),
                torch.optim.Adagrad(model.top.parameters()),
            ]
        dense, a, b, c, y = batch
        loss = F.binary_cross_entropy_with_logits(model(dense, a, b, c), y)
        for o in model.opts:
            o.zero_grad()
        loss.backward()
        for o in model.opts:
            o.step()
        return loss.item()

    ids = tuple(torch.randint(0, items, (rows, 10)) for _ in range(3))
    return Clicks(), (torch.randn(rows, 13), *ids, torch.rand(rows)), step


def sinkhorn(big):
    """Optimal transport in the log domain until it converges: a loop on a value that is read."""
    n, width = (2048, 128) if big else (6, 3)
    model = mlp(width, 512 if big else 4, width)

    def step(model, batch, optimizer):
        x, y = batch
        cost = torch.cdist(model(x), y).pow(2)
        f, g = torch.zeros(n, device=x.device), torch.zeros(n, device=x.device)
        for i in range(20):
            before = f
            f = -0.1 * torch.logsumexp((g[None] - cost) / 0.1, 1)
            g = -0.1 * torch.logsumexp((f[:, None] - cost) / 0.1, 0)
            if i > 10 and (f - before).abs().max().item() < 1e-9:
                break
        plan = torch.exp((f[:, None] + g[None] - cost) / 0.1)
        return update((plan * cost).sum(), optimizer)

    return model, (torch.randn(n, width), torch.randn(n, width)), step


def perceiver(big):
    width, latents, rows, length = (512, 128, 16, 4096) if big else (8, 4, 2, 12)

    class Perceiver(nn.Module):
        def __init__(self):
            super().__init__()
            self.latents = nn.Parameter(torch.randn(latents, width) * 0.02)
            self.inside = nn.Linear(64, width)
            self.cross = nn.MultiheadAttention(width, 1 if width < 16 else 8, batch_first=True)
            layer = nn.TransformerEncoderLayer(
                width, 1 if width < 16 else 8, 4 * width, batch_first=True, norm_first=True
            )
            self.body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
            self.out = nn.Linear(width, 10)

        def forward(self, x, mask):
            x = self.inside(x)
            q = self.latents.expand(x.shape[0], -1, -1)
            z = self.cross(q, x, x, key_padding_mask=mask, need_weights=False)[0]
            return self.out(self.body(z).mean(1))

    def step(model, batch, optimizer):
        x, mask, y = batch
        return update(F.cross_entropy(model(x, mask), y), optimizer)

    mask = torch.zeros(rows, length, dtype=torch.bool)
    mask[:, length - 3 :] = True
    return Perceiver(), (torch.randn(rows, length, 64), mask, torch.randint(0, 10, (rows,))), step


class Reversible(torch.autograd.Function):
    """y1 = x1 + f(x2), y2 = x2 + g(y1); inputs are computed again from outputs."""

    @staticmethod
    def forward(ctx, x, f, g, *params):
        a, b = x.chunk(2, 1)
        with torch.no_grad():
            y1 = a + f(b)
            y2 = b + g(y1)
        ctx.f, ctx.g = f, g
        y = torch.cat([y1, y2], 1)
        ctx.save_for_backward(y.detach())
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        y1, y2 = y.chunk(2, 1)
        g1, g2 = grad.chunk(2, 1)
        f, g = ctx.f, ctx.g
        with torch.enable_grad():
            y1 = y1.detach().requires_grad_(True)
            gy = g(y1)
            d1, *pg = torch.autograd.grad(gy, [y1, *g.parameters()], g2)
        x2 = y2 - gy.detach()
        g1 = g1 + d1
        with torch.enable_grad():
            x2 = x2.detach().requires_grad_(True)
            fx = f(x2)
            d2, *pf = torch.autograd.grad(fx, [x2, *f.parameters()], g1)
        return torch.cat([g1, g2 + d2], 1), None, None, *pf, *pg


def revnet(big):
    width, rows, side, depth = (128, 32, 64, 8) if big else (4, 2, 8, 2)

    def half():
        return nn.Sequential(
            nn.Conv2d(width // 2, width // 2, 3, padding=1), nn.BatchNorm2d(width // 2), nn.ReLU()
        )

    class Rev(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem = nn.Conv2d(3, width, 3, padding=1)
            self.f, self.g = (nn.ModuleList(half() for _ in range(depth)) for _ in range(2))
            self.head = nn.Linear(width, 10)

        def forward(self, x):
            x = self.stem(x)
            for f, g in zip(self.f, self.g):
                x = Reversible.apply(x, f, g, *f.parameters(), *g.parameters())
            return self.head(x.mean((2, 3)))

    def step(model, batch, optimizer):
        x, y = batch
        return update(F.cross_entropy(model(x), y), optimizer)

    return Rev(), (torch.randn(rows, 3, side, side), torch.randint(0, 10, (rows,))), step


def per_sample_grads(big):
    """Private training: vmap of grad, clipping by sample, noise."""
    width, rows = (64, 512) if big else (4, 3)
    model = nn.Sequential(
        nn.Conv2d(1, width // 2, 3, 2),
        nn.ReLU(),
        nn.Conv2d(width // 2, width, 3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * 36, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )

    def step(model, batch, optimizer):
        x, y = batch
        params = {n: p.detach() for n, p in model.named_parameters()}

        def loss_of(p, one, label):
            return F.cross_entropy(torch.func.functional_call(model, p, (one[None],)), label[None])

        grads = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(params, x, y)
        norms = torch.sqrt(sum(g.flatten(1).pow(2).sum(1) for g in grads.values()))
        factor = (1.0 / (norms + 1e-6)).clamp(max=1.0)
        for name, p in model.named_parameters():
            g = torch.einsum("b,b...->...", factor, grads[name])
            p.grad = (g + torch.randn_like(g)) / x.shape[0]
        optimizer.step()
        optimizer.zero_grad()
        return norms.median().item()

    return model, (torch.randn(rows, 1, 28, 28), torch.randint(0, 10, (rows,))), step


def pinn(big):
    """Physics: second derivatives of a network by its inputs, with jacrev and jvp."""
    width, rows = (512, 8192) if big else (8, 4)
    model = mlp(2, width, width, width, 1, act=nn.Tanh)

    def step(model, batch, optimizer):
        (p,) = batch
        p = p.detach().requires_grad_(True)
        u = model(p)
        (du,) = torch.autograd.grad(u, p, torch.ones_like(u), create_graph=True)
        (d2,) = torch.autograd.grad(du[:, 0], p, torch.ones_like(du[:, 0]), create_graph=True)
        residual = du[:, 1] + u.squeeze(-1) * du[:, 0] - 0.01 / math.pi * d2[:, 0]
        _, slope = torch.func.jvp(model, (p.detach(),), (torch.ones_like(p),))
        return update(residual.pow(2).mean() + 1e-3 * slope.pow(2).mean(), optimizer)

    return model, (torch.rand(rows, 2),), step


def checkpointed(big):
    """Blocks computed again in the backward pass, with dropout."""
    width, rows, length = (768, 16, 512) if big else (8, 2, 6)
    heads = 12 if big else 2

    def layer():
        return nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )

    model = nn.ModuleDict(
        {
            "emb": nn.Embedding(8192, width),
            "blocks": nn.ModuleList(layer() for _ in range(6)),
            "out": nn.Linear(width, 8192),
        }
    )

    def step(model, batch, optimizer):
        (x,) = batch
        h = model["emb"](x)
        for block in model["blocks"]:
            h = checkpoint(block, h, use_reentrant=False)
        return update(F.cross_entropy(model["out"](h[:, :-1]).flatten(0, 1), x[:, 1:].flatten()), optimizer)

    return model, (torch.randint(0, 8192, (rows, length)),), step


def lbfgs(big):
    """A closure that is called several times in a step."""
    width, rows = (2048, 8192) if big else (4, 5)
    model = mlp(width, width, 1)

    def step(model, batch, optimizer):
        x, y = batch
        if not hasattr(model, "opts"):
            model.opts = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=5)

        def closure():
            model.opts.zero_grad()
            loss = F.mse_loss(model(x).squeeze(-1), y)
            loss.backward()
            return loss

        return float(model.opts.step(closure))

    return model, (torch.randn(rows, width), torch.randn(rows)), step


class Muonlike(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p)
                state["m"].lerp_(p.grad, 0.05)
                x = state["m"]
                if x.ndim == 2:
                    x = x.bfloat16()
                    x = x / (x.norm() + 1e-7)
                    if x.shape[0] > x.shape[1]:
                        x = x.T
                    for _ in range(5):
                        a = x @ x.T
                        x = 3.4 * x + (-4.7 * a + 2.0 * a @ a) @ x
                    if p.shape[0] > p.shape[1]:
                        x = x.T
                p.add_(x.to(p.dtype), alpha=-group["lr"])


def muon_lm(big):
    """An own optimizer with matrix products, autocast, a tied head."""
    width, rows, length, vocab = (768, 8, 512, 16_384) if big else (8, 2, 6, 20)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.qkv, self.o = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.down = (
                nn.Linear(width, 4 * width, bias=False),
                nn.Linear(4 * width, width, bias=False),
            )

        def forward(self, x):
            b, t, _ = x.shape
            q, k, v = (
                z.view(b, t, -1, 64 if width >= 64 else 4).transpose(1, 2)
                for z in self.qkv(self.n1(x)).chunk(3, -1)
            )
            x = x + self.o(
                F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, -1)
            )
            return x + self.down(F.relu(self.up(self.n2(x))).square())

    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(vocab, width)
            self.blocks = nn.ModuleList(Block() for _ in range(6 if big else 1))

        def forward(self, x, y):
            h = self.emb(x)
            for block in self.blocks:
                h = block(h)
            logits = 15 * torch.tanh((h @ self.emb.weight.t()).float() / 15)
            return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    def step(model, batch, optimizer):
        if not hasattr(model, "opts"):
            model.opts = [Muonlike(model.blocks.parameters()), torch.optim.AdamW(model.emb.parameters())]
        x = batch[0]
        with torch.autocast(x.device.type, torch.bfloat16):
            loss = model(x[:, :-1], x[:, 1:])
        loss.backward()
        for o in model.opts:
            o.step()
            o.zero_grad(set_to_none=True)
        return loss.item()

    return Lm(), (torch.randint(0, vocab, (rows, length + 1)),), step


def maml(big):
    """Inner loops of gradient steps with functional_call, a gradient through them."""
    width, rows, tasks = (512, 512, 8) if big else (4, 3, 2)
    model = mlp(width, width, width, 5)

    def step(model, batch, optimizer):
        x, y = batch
        total = 0.0
        for task in range(tasks):
            weights = dict(model.named_parameters())
            for _ in range(3):
                loss = F.cross_entropy(torch.func.functional_call(model, weights, (x[task],)), y[task])
                grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
                weights = {n: w - 0.01 * g for (n, w), g in zip(weights.items(), grads)}
            total = total + F.cross_entropy(torch.func.functional_call(model, weights, (x[task],)), y[task])
        return update(total / tasks, optimizer)

    return model, (torch.randn(tasks, rows, width), torch.randint(0, 5, (tasks, rows))), step


def packed_rnn(big):
    """Sequences of different lengths, packed; an attention pool with masked_fill by a CPU scalar."""
    width, rows, length = (512, 128, 100) if big else (6, 3, 7)

    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(5000, width, padding_idx=0)
            self.rnn = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True, dropout=0.2)
            self.score, self.out = nn.Linear(2 * width, 1), nn.Linear(2 * width, 4)

        def forward(self, x, lengths):
            e = nn.utils.rnn.pack_padded_sequence(
                self.emb(x), lengths.cpu(), batch_first=True, enforce_sorted=False
            )
            h, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(e)[0], batch_first=True, total_length=x.shape[1])
            lowest = torch.tensor(torch.finfo(h.dtype).min)
            w = self.score(h).squeeze(-1).masked_fill(x == 0, lowest).softmax(-1)
            w = torch.where(w > 0.999, torch.tensor(0.999), w)
            return self.out((h * w[..., None]).sum(1))

    def step(model, batch, optimizer):
        x, lengths, y = batch
        return update(F.cross_entropy(model(x, lengths), y), optimizer)

    lengths = torch.randint(length // 2, length + 1, (rows,))
    lengths[0] = length
    return Packed(), (torch.randint(1, 5000, (rows, length)), lengths, torch.randint(0, 4, (rows,))), step


def unet3d(big):
    """Volumes: convolutions in three dimensions, transposed ones, instance norms, a Dice loss."""
    width, rows, side = (32, 2, 96) if big else (4, 1, 8)

    def block(a, b):
        return nn.Sequential(
            nn.Conv3d(a, b, 3, padding=1),
            nn.InstanceNorm3d(b, affine=True),
            nn.LeakyReLU(0.01, True),
            nn.Conv3d(b, b, 3, padding=1),
            nn.InstanceNorm3d(b, affine=True),
            nn.LeakyReLU(0.01, True),
        )

    class U3(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = block(1, width), block(width, 2 * width), block(2 * width, 4 * width)
            self.u2, self.u1 = (
                nn.ConvTranspose3d(4 * width, 2 * width, 2, 2),
                nn.ConvTranspose3d(2 * width, width, 2, 2),
            )
            self.d2, self.d1 = block(4 * width, 2 * width), block(2 * width, width)
            self.out = nn.Conv3d(width, 3, 1)

        def forward(self, x):
            a = self.a(x)
            b = self.b(F.max_pool3d(a, 2))
            c = self.c(F.max_pool3d(b, 2))
            x = self.d2(torch.cat([self.u2(c), b], 1))
            return self.out(self.d1(torch.cat([self.u1(x), a], 1)))

    def step(model, batch, optimizer):
        x, y = batch
        p = model(x).softmax(1)
        hot = F.one_hot(y, 3).permute(0, 4, 1, 2, 3).float()
        dice = (2 * (p * hot).sum((2, 3, 4)) + 1) / (p.sum((2, 3, 4)) + hot.sum((2, 3, 4)) + 1)
        return update(1 - dice.mean(), optimizer)

    return U3(), (torch.randn(rows, 1, side, side, side), torch.randint(0, 3, (rows, side, side, side))), step


def pointnet(big):
    """Farthest points chosen in a loop, neighbours by topk of distances."""
    points, rows, width = (1024, 64, 64) if big else (16, 2, 4)
    chosen = points // 8

    class Points(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Sequential(
                nn.Conv2d(3, width, 1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 2 * width, 1)
            )
            self.b = mlp(2 * width, 256, 40)

        def forward(self, x):
            far = torch.full(x.shape[:2], 1e10, device=x.device)
            at = torch.randint(0, points, (x.shape[0],), device=x.device)
            rows, picked = torch.arange(x.shape[0], device=x.device), []
            for _ in range(chosen):
                picked.append(at)
                far = torch.minimum(far, ((x - x[rows, at][:, None]) ** 2).sum(-1))
                at = far.argmax(-1)
            centres = torch.gather(x, 1, torch.stack(picked, 1)[..., None].expand(-1, -1, 3))
            near = torch.cdist(centres, x).topk(min(32, points), largest=False).indices
            groups = x[rows[:, None, None], near] - centres[:, :, None]
            h = self.a(groups.permute(0, 3, 1, 2)).max(-1).values.max(-1).values
            return self.b(h)

    def step(model, batch, optimizer):
        x, y = batch
        return update(F.cross_entropy(model(x), y), optimizer)

    return Points(), (torch.randn(rows, points, 3), torch.randint(0, 40, (rows,))), step


def nerf(big):
    """Rays, samples by inverse transform (searchsorted), alpha compositing with cumprod."""
    rays, samples, width = (4096, 64, 256) if big else (4, 5, 8)

    class Nerf(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.sigma, self.rgb = (
                mlp(63, width, width, width, width),
                nn.Linear(width, 1),
                mlp(width, width // 2, 3),
            )

        def forward(self, x):
            e = [x]
            for i in range(10):
                e += [(x * 2.0**i).sin(), (x * 2.0**i).cos()]
            h = F.relu(self.body(torch.cat(e, -1)))
            return self.sigma(h).squeeze(-1), torch.sigmoid(self.rgb(h))

    def render(model, o, d, t):
        sigma, rgb = model(o[:, None] + d[:, None] * t[..., None])
        gap = torch.cat([t[:, 1:] - t[:, :-1], torch.full_like(t[:, :1], 1e10)], -1)
        alpha = 1 - torch.exp(-F.relu(sigma) * gap)
        through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        w = alpha * through
        return (w[..., None] * rgb).sum(1), w

    def step(model, batch, optimizer):
        o, d, c = batch
        t = torch.linspace(2, 6, samples, device=o.device).expand(o.shape[0], -1)
        coarse, w = render(model, o, d, t)
        cdf = torch.cumsum(w.detach() / (w.detach().sum(-1, keepdim=True) + 1e-5), -1)
        u = torch.rand(o.shape[0], samples, device=o.device)
        more = torch.searchsorted(cdf, u, right=True).clamp(max=samples - 1)
        fine_t = torch.sort(torch.cat([t, t.gather(1, more)], -1), -1).values
        fine, _ = render(model, o, d, fine_t)
        return update(F.mse_loss(coarse, c) + F.mse_loss(fine, c), optimizer)

    return Nerf(), (torch.randn(rays, 3), torch.randn(rays, 3), torch.rand(rays, 3)), step


def tabular_moments(big):
    """Double precision, standardized on the fly, unique categories, weights by their counts."""
    rows, width = (200_000, 256) if big else (20, 4)
    model = mlp(32, width, width, 8).double()

    def step(model, batch, optimizer):
        x, y = batch
        x = (x - x.mean(0)) / (x.std(0) + 1e-6)
        names, counts = torch.unique(y, return_counts=True)
        weight = torch.ones(8, dtype=torch.double, device=x.device)
        weight[names] = counts.double().reciprocal()
        loss = F.cross_entropy(model(x), y, weight=weight)
        return update(loss, optimizer), len(names)

    return model, (torch.randn(rows, 32, dtype=torch.double), torch.randint(0, 8, (rows,))), step


def beam_crf(big):
    """A linear-chain CRF: forward algorithm with logsumexp, a Viterbi path with backpointers for metrics."""
    tags, rows, length, width = (32, 256, 128, 512) if big else (3, 2, 5, 4)

    class Crf(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.rnn = (
                nn.Embedding(10_000, width),
                nn.GRU(width, width // 2, batch_first=True, bidirectional=True),
            )
            self.out, self.move = nn.Linear(width, tags), nn.Parameter(torch.randn(tags, tags) * 0.1)

        def forward(self, x, y):
            e = self.out(self.rnn(self.emb(x))[0])
            alpha = e[:, 0]
            gold = e[:, 0].gather(1, y[:, :1]).squeeze(1)
            for t in range(1, x.shape[1]):
                alpha = torch.logsumexp(alpha[:, :, None] + self.move + e[:, t, None], 1)
                gold = gold + self.move[y[:, t - 1], y[:, t]] + e[:, t].gather(1, y[:, t, None]).squeeze(1)
            return (torch.logsumexp(alpha, 1) - gold).mean(), e

        @torch.no_grad()
        def decode(self, e):
            score, back = e[:, 0], []
            for t in range(1, e.shape[1]):
                score, at = (score[:, :, None] + self.move).max(1)
                score = score + e[:, t]
                back.append(at)
            path = [score.argmax(1)]
            for at in reversed(back):
                path.append(at.gather(1, path[-1][:, None]).squeeze(1))
            return torch.stack(path[::-1], 1)

    def step(model, batch, optimizer):
        x, y = batch
        loss, e = model(x, y)
        update(loss, optimizer)
        right = (model.decode(e) == y).float().mean()
        return f"{loss.item():.2f} {right:.1%}"

    return Crf(), (torch.randint(0, 10_000, (rows, length)), torch.randint(0, tags, (rows, length))), step


def amp_scaler(big):
    """fp16 with a GradScaler, accumulation over micro-batches, an average of weights with swa_utils."""
    width, rows = (64, 128) if big else (4, 4)
    c, layers = 3, []
    for i in range(4):
        layers += [
            nn.Conv2d(c, width << min(i, 2), 3, 1 + (i > 0), 1),
            nn.BatchNorm2d(width << min(i, 2)),
            nn.SiLU(),
        ]
        c = width << min(i, 2)
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 100))
    s = 64 if big else 16

    def step(model, batch, optimizer):
        x, y = batch
        if not hasattr(model, "tools"):
            object.__setattr__(
                model,
                "tools",
                (
                    torch.amp.GradScaler(x.device.type, init_scale=1024.0),
                    torch.optim.swa_utils.AveragedModel(model),
                ),
            )
        scaler, average = model.tools
        for part, labels in zip(x.chunk(2), y.chunk(2)):
            with torch.autocast(x.device.type, torch.float16 if x.device.type != "cpu" else torch.bfloat16):
                loss = F.cross_entropy(model(part), labels, label_smoothing=0.1) / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        average.update_parameters(model)
        return {"norm": norm.item(), "scale": scaler.get_scale()}

    return model, (torch.randn(rows, 3, s, s), torch.randint(0, 100, (rows,))), step


ALL = [
    detector,
    sparse_embeddings,
    sinkhorn,
    perceiver,
    revnet,
    per_sample_grads,
    pinn,
    checkpointed,
    lbfgs,
    muon_lm,
    maml,
    packed_rnn,
    unet3d,
    pointnet,
    nerf,
    tabular_moments,
    beam_crf,
    amp_scaler,
]
