"""Odd models and steps, small: routers, dictionaries by tensor, sparse graphs, loops that converge.

Each function gives (model, batch, step); instead of a step, the name of a loss or None for the usual one.
"""
# ruff: noqa: E741

import copy

import torch
import torch.nn.functional as F
from torch import nn

ALL = []


def case(f):
    ALL.append(f)
    return f


def upd(l, o):
    o.zero_grad()
    l.backward()
    o.step()


@case
def mixtral_style():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.g = nn.Linear(16, 4)
            s.e = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

        def forward(s, x):
            t = x.flatten(0, 1)
            w, c = s.g(t).softmax(-1).topk(2, -1)
            out = torch.zeros_like(t)
            mask = F.one_hot(c, num_classes=4).permute(2, 1, 0)
            hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
            for i in hit:
                idx, top = torch.where(mask[i].squeeze(0))
                cur = t[None, top].reshape(-1, 16)
                out.index_add_(0, top, s.e[i](cur) * w[top, idx, None])
            return out

    return M(), torch.randn(4, 8, 16), None


@case
def dict_by_int():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.h = nn.ModuleDict({str(i): nn.Linear(8, 4) for i in range(3)})
            s.r = nn.Linear(8, 3)

        def forward(s, x):
            k = s.r(x).mean(0).argmax()
            return s.h[f"{k}"](x) + s.h[str(k.item())](x) + s.h[str(int(k))](x)

    return M(), torch.randn(4, 8), None


@case
def assert_close():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(8, 8)

        def forward(s, x):
            y = s.l(x)
            assert torch.isfinite(y).all()
            assert not torch.isnan(y).any().item()
            assert torch.allclose(y, y)
            torch._assert(y.shape[0] > 0, "x")
            assert (y.softmax(-1).sum(-1) - 1).abs().max() < 2
            return y

    return M(), torch.randn(4, 8), None


@case
def hungarian():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(8, 8)

        def forward(s, x):
            c = torch.cdist(s.l(x), x).detach().cpu()

            rows = c.tolist()
            best = min(range(len(rows[0])), key=lambda j: rows[0][j])
            i = torch.as_tensor([best], device=x.device)
            return s.l(x)[:, i[0] % 8 :]

    return M(), torch.randn(2, 6, 8), "mse"


@case
def flex_lstm_proj():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.r = nn.LSTM(8, 16, proj_size=4, batch_first=True)
            s.o = nn.Linear(4, 3)

        def forward(s, x):
            return s.o(s.r(x)[0][:, -1])

    return M(), torch.randn(4, 5, 8), None


@case
def triu_index():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(8, 8)
            s.register_buffer("idx", torch.triu_indices(6, 6, 1))

        def forward(s, x):
            y = s.l(x)
            g = y @ y.transpose(1, 2)
            return g[:, s.idx[0], s.idx[1]]

    return M(), torch.randn(2, 6, 8), None


@case
def mask_lengths():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(8, 8)

        def forward(s, x, n):
            m = torch.arange(x.shape[1], device=x.device)[None] < n[:, None]
            y = s.l(x)[m]
            return y.split(n.tolist())[0] if False else y

    return M(), (torch.randn(4, 5, 8), torch.tensor([5, 3, 2, 4])), "mse"


@case
def hessian_vec():
    def step(m, b, o):
        l = m(b).pow(2).mean()
        ps = list(m.parameters())
        g = torch.autograd.grad(l, ps, create_graph=True)
        v = [torch.randn_like(p) for p in ps]
        hv = torch.autograd.grad(sum((a * c).sum() for a, c in zip(g, v)), ps)
        for p, h in zip(ps, hv):
            p.grad = h
        o.step()

    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(4, 8), step


@case
def jac_vmap():
    def step(m, b, o):
        j = torch.func.vmap(torch.func.jacrev(lambda x: m(x)))(b)
        upd(j.pow(2).mean(), o)

    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(4, 8), step


@case
def ensemble_stack():
    def step(m, b, o):
        ms = [nn.Linear(8, 2).to(b.device) for _ in range(3)]
        p, bf = torch.func.stack_module_state(ms)
        base = copy.deepcopy(ms[0]).to("meta")
        out = torch.func.vmap(
            lambda pp, bb, x: torch.func.functional_call(base, (pp, bb), (x,)), in_dims=(0, 0, None)
        )(p, bf, m(b))
        upd(out.pow(2).mean(), o)

    return nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 8), step


@case
def cpu_offload_opt():
    def step(m, b, o):
        l = m(b).mean()
        o.zero_grad()
        l.backward()
        cpu = [p.grad.cpu() for p in m.parameters()]
        with torch.no_grad():
            for p, g in zip(m.parameters(), cpu):
                p.copy_((p.cpu() - 0.1 * g).to(p.device))

    return nn.Sequential(nn.Linear(8, 8)), torch.randn(4, 8), step


@case
def tensor_subclass_ema():
    def step(m, b, o):
        if not hasattr(m, "avg"):
            object.__setattr__(m, "avg", {k: v.detach().clone() for k, v in m.state_dict().items()})
        upd(m(b).mean(), o)
        for k, v in m.state_dict().items():
            if v.dtype.is_floating_point:
                m.avg[k].mul_(0.9).add_(v, alpha=0.1)
        m.load_state_dict(m.avg)

    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), torch.randn(4, 8), step


@case
def dist_kl():
    def step(m, b, o):
        mu, lv = m(b).chunk(2, -1)
        q = torch.distributions.Normal(mu, (0.5 * lv).exp())
        z = q.rsample()
        p = torch.distributions.MultivariateNormal(
            torch.zeros(4, device=b.device), torch.eye(4, device=b.device)
        )
        upd(-(p.log_prob(z) - q.log_prob(z).sum(-1)).mean(), o)
        return z.mean().item()

    return nn.Linear(8, 8), torch.randn(4, 8), step


@case
def early_stop_loop():
    def step(m, b, o):
        best = float("inf")
        bad = 0
        for _ in range(5):
            l = m(b).pow(2).mean()
            upd(l, o)
            v = l.item()
            if v < best:
                best = v
                bad = 0
            else:
                bad += 1
            if bad > 2:
                break
        return f"{best:.4f} {l:.3e} {l}"

    return nn.Linear(8, 8), torch.randn(4, 8), step


@case
def gcn_given():
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(8, 8)

        def forward(s, x, adj):
            return torch.sparse.mm(adj, s.l(x))

    i = torch.randint(0, 6, (2, 20))

    def step(m, b, o):
        x, a = b
        upd(m(x, a).mean(), o)

    return M(), (torch.randn(6, 8), torch.sparse_coo_tensor(i, torch.ones(20), (6, 6)).coalesce()), step


@case
def csr():
    def step(m, b, o):
        x, a = b
        upd((a @ m(x)).mean(), o)

    return nn.Linear(8, 8), (torch.randn(6, 8), torch.eye(6).to_sparse_csr()), step


@case
def set_data():
    def step(m, b, o):
        upd(m(b).mean(), o)
        for p in m.parameters():
            p.data = p.data.clamp(-1, 1)
            p.data[0] = 0
        if (m.weight.abs() > 10).any():
            raise ValueError("diverged")

    return nn.Linear(8, 8), torch.randn(4, 8), step


@case
def scheduler_clip():
    def step(m, b, o):
        if not hasattr(m, "s"):
            object.__setattr__(m, "s", torch.optim.lr_scheduler.ReduceLROnPlateau(o))
        l = m(b).mean()
        o.zero_grad()
        l.backward()
        n = nn.utils.clip_grad_norm_(m.parameters(), 1.0, error_if_nonfinite=True)
        nn.utils.clip_grad_value_(m.parameters(), 1.0)
        o.step()
        m.s.step(l)
        return round(n.item(), 2), int(l * 100)

    return nn.Linear(8, 8), torch.randn(4, 8), step
