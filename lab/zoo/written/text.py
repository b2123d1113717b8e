"""Text and control: readers, taggers, memory, policies."""

from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class KimCNN(nn.Module):
    def __init__(self, vocab: int = 30000, d: int = 200, filters: int = 128, classes: int = 5) -> None:
        super().__init__()
        self.static, self.tuned = nn.Embedding(vocab, d), nn.Embedding(vocab, d)
        self.static.weight.requires_grad = False
        self.convs = nn.ModuleList(nn.Conv2d(2, filters, (k, d)) for k in (3, 4, 5))
        self.fc = nn.Linear(3 * filters, classes)

    def forward(self, x: Tensor) -> Tensor:
        e = torch.stack([self.static(x), self.tuned(x)], 1)
        hs = [
            F.max_pool1d(F.relu(c(e)).squeeze(3), e.size(2) - k + 1).squeeze(2)
            for c, k in zip(self.convs, (3, 4, 5))
        ]
        return self.fc(F.dropout(torch.cat(hs, 1), 0.5, self.training))


class BiDAF(nn.Module):
    """The similarity of every word of the text with every word of the question."""

    def __init__(self, vocab: int = 20000, d: int = 100) -> None:
        super().__init__()
        self.e, self.ctx = nn.Embedding(vocab, d), nn.LSTM(d, d, batch_first=True, bidirectional=True)
        self.w = nn.Linear(6 * d, 1, bias=False)
        self.model = nn.LSTM(8 * d, d, batch_first=True, bidirectional=True)
        self.start, self.end = nn.Linear(10 * d, 1), nn.Linear(10 * d, 1)

    def forward(self, text: Tensor, question: Tensor, start: Tensor, end: Tensor) -> Tensor:
        h, u = self.ctx(self.e(text))[0], self.ctx(self.e(question))[0]
        a = h.unsqueeze(2).expand(-1, -1, u.size(1), -1)
        b = u.unsqueeze(1).expand(-1, h.size(1), -1, -1)
        s = self.w(torch.cat([a, b, a * b], -1)).squeeze(-1)
        c2q = s.softmax(-1).to(u.dtype) @ u
        q2c = (s.max(-1)[0].softmax(-1).unsqueeze(1).to(h.dtype) @ h).expand_as(h)
        g = torch.cat([h, c2q, h * c2q, h * q2c], -1)
        m = torch.cat([g, self.model(g.to(h.dtype))[0]], -1)
        return F.cross_entropy(self.start(m).squeeze(-1), start) + F.cross_entropy(
            self.end(m).squeeze(-1), end
        )


class HierarchicalAttention(nn.Module):
    def __init__(self, vocab: int = 25000, d: int = 100, hid: int = 64, classes: int = 5) -> None:
        super().__init__()
        self.e = nn.Embedding(vocab, d)
        self.w, self.s = (
            nn.GRU(d, hid, batch_first=True, bidirectional=True),
            nn.GRU(2 * hid, hid, batch_first=True, bidirectional=True),
        )
        self.wa, self.sa = nn.Linear(2 * hid, 2 * hid), nn.Linear(2 * hid, 2 * hid)
        self.wc, self.sc = nn.Parameter(torch.randn(2 * hid)), nn.Parameter(torch.randn(2 * hid))
        self.fc = nn.Linear(2 * hid, classes)

    def pool(self, h: Tensor, lin: nn.Module, c: Tensor) -> Tensor:
        a = torch.softmax((torch.tanh(lin(h)) * c).sum(-1), 1)
        return (a.unsqueeze(-1) * h).sum(1).to(h.dtype)

    def forward(self, docs: Tensor) -> Tensor:
        B, S, W = docs.shape
        words = self.w(self.e(docs.view(B * S, W)))[0]
        sents = self.pool(words, self.wa, self.wc).view(B, S, -1)
        return self.fc(self.pool(self.s(sents)[0], self.sa, self.sc))


class BiLSTMCRF(nn.Module):
    """The forward algorithm over tags, step by step."""

    def __init__(self, vocab: int = 15000, d: int = 128, tags: int = 20) -> None:
        super().__init__()
        self.e, self.rnn, self.emit = (
            nn.Embedding(vocab, d),
            nn.LSTM(d, d, batch_first=True, bidirectional=True),
            nn.Linear(2 * d, tags),
        )
        self.trans = nn.Parameter(torch.randn(tags, tags))

    def forward(self, words: Tensor, tags: Tensor) -> Tensor:
        emit = self.emit(self.rnn(self.e(words))[0]).float()
        trans, a = self.trans.float(), emit[:, 0]
        gold = emit[:, 0].gather(1, tags[:, :1]).squeeze(1)
        for t in range(1, words.size(1)):
            a = torch.logsumexp(a.unsqueeze(2) + trans + emit[:, t].unsqueeze(1), 1)
            gold = (
                gold + emit[:, t].gather(1, tags[:, t, None]).squeeze(1) + trans[tags[:, t - 1], tags[:, t]]
            )
        return (torch.logsumexp(a, -1) - gold).mean()


class MemN2N(nn.Module):
    def __init__(self, vocab: int = 5000, d: int = 64, hops: int = 3) -> None:
        super().__init__()
        self.A = nn.ModuleList(nn.Embedding(vocab, d) for _ in range(hops + 1))
        self.H = nn.Linear(d, d)

    def forward(self, story: Tensor, query: Tensor) -> Tensor:
        u = self.A[0](query).sum(1)
        for a, c in zip(self.A, self.A[1:]):
            m, o = a(story).sum(2), c(story).sum(2)
            p = torch.softmax((m * u.unsqueeze(1)).sum(-1), -1)
            u = self.H(u) + (p.unsqueeze(-1) * o).sum(1).to(u.dtype)
        return u @ self.A[-1].weight.t()


class DecomposableEntailment(nn.Module):
    def __init__(self, vocab: int = 30000, d: int = 200, classes: int = 3) -> None:
        super().__init__()
        self.e, self.proj = nn.Embedding(vocab, d), nn.Linear(d, d)
        self.f, self.g, self.h = nn.Linear(d, d), nn.Linear(2 * d, d), nn.Linear(2 * d, classes)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = self.proj(self.e(a)), self.proj(self.e(b))
        s = torch.bmm(F.relu(self.f(a)), F.relu(self.f(b)).transpose(1, 2))
        beta, alpha = s.softmax(-1).to(b.dtype) @ b, s.softmax(1).transpose(1, 2).to(a.dtype) @ a
        v1 = F.relu(self.g(torch.cat([a, beta], -1))).sum(1)
        v2 = F.relu(self.g(torch.cat([b, alpha], -1))).sum(1)
        return self.h(torch.cat([v1, v2], -1).to(a.dtype))


class SkipGram(nn.Module):
    def __init__(self, vocab: int = 100000, d: int = 128) -> None:
        super().__init__()
        self.center, self.context = nn.Embedding(vocab, d), nn.Embedding(vocab, d)

    def forward(self, c: Tensor, o: Tensor, neg: Tensor) -> Tensor:
        v = self.center(c)
        pos = F.logsigmoid((v * self.context(o)).sum(-1))
        bad = F.logsigmoid(-torch.einsum("bd,bnd->bn", v, self.context(neg))).sum(-1)
        return -(pos + bad).mean()


class GatedConvLM(nn.Module):
    def __init__(self, vocab: int = 20000, d: int = 256, n: int = 6) -> None:
        super().__init__()
        self.e, self.out = nn.Embedding(vocab, d), nn.Linear(d, vocab)
        self.c = nn.ModuleList(nn.Conv1d(d, 2 * d, 4) for _ in range(n))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.e(ids).transpose(1, 2)
        for c in self.c:
            a, b = c(F.pad(x, (3, 0))).chunk(2, 1)
            x = x + a * torch.sigmoid(b)
        return self.out(x.transpose(1, 2))


class FNetText(nn.Module):
    def __init__(self, vocab: int = 16000, d: int = 256, n: int = 4) -> None:
        super().__init__()
        self.e, self.out = nn.Embedding(vocab, d), nn.Linear(d, vocab)
        self.ff = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d)) for _ in range(n)
        )
        self.n1, self.n2 = (nn.ModuleList(nn.LayerNorm(d) for _ in range(n)) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.e(ids)
        for ff, n1, n2 in zip(self.ff, self.n1, self.n2):
            x = n1(x + torch.fft.fft(torch.fft.fft(x.float(), dim=-1), dim=-2).real.to(x.dtype))
            x = n2(x + ff(x))
        return self.out(x)


class DecisionTransformer(nn.Module):
    def __init__(self, state: int = 17, act: int = 6, d: int = 128, n: int = 3) -> None:
        super().__init__()
        self.s, self.a, self.r = nn.Linear(state, d), nn.Linear(act, d), nn.Linear(1, d)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(d, 4, 4 * d, batch_first=True, norm_first=True) for _ in range(n)
        )
        self.head = nn.Linear(d, act)

    def forward(self, s: Tensor, a: Tensor, r: Tensor) -> Tensor:
        B, T, _ = s.shape
        x = torch.stack([self.r(r), self.s(s), self.a(a)], 2).view(B, 3 * T, -1)
        mask = torch.full((3 * T, 3 * T), float("-inf"), device=s.device, dtype=self.head.weight.dtype).triu(
            1
        )
        for b in self.blocks:
            x = b(x, src_mask=mask)
        return F.mse_loss(torch.tanh(self.head(x[:, 1::3])), a)


class DuelingDQN(nn.Module):
    """Online and target network in one forward, the target without gradients."""

    def __init__(self, actions: int = 18) -> None:
        super().__init__()
        self.c = nn.ModuleList([nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3)])
        self.v, self.a = nn.Linear(3136, 1), nn.Linear(3136, actions)
        self.tc = nn.ModuleList([nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3)])
        self.tq = nn.Linear(3136, actions)

    def forward(self, s: Tensor, s2: Tensor, act: Tensor) -> Tensor:
        x = s
        for c in self.c:
            x = F.relu(c(x))
        x = x.flatten(1)
        a = self.a(x)
        q = (self.v(x) + a - a.mean(1, keepdim=True)).gather(1, act[:, None]).squeeze(1)
        with torch.no_grad():
            y = s2
            for c in self.tc:
                y = F.relu(c(y))
            t = 1 + 0.99 * self.tq(y.flatten(1)).max(1)[0]
        return F.smooth_l1_loss(q, t)


class WorldModel(nn.Module):
    """Recurrent state-space model imagined over the sequence."""

    def __init__(self, obs: int = 64, act: int = 4, h: int = 200, z: int = 30) -> None:
        super().__init__()
        self.h, self.z = h, z
        self.enc, self.gru, self.pre = nn.Linear(obs, 256), nn.GRUCell(h, h), nn.Linear(z + act, h)
        self.prior, self.post = nn.Linear(h, 2 * z), nn.Linear(h + 256, 2 * z)
        self.dec, self.reward = (
            nn.Sequential(nn.Linear(h + z, 512), nn.ELU(), nn.Linear(512, obs)),
            nn.Linear(h + z, 1),
        )

    def forward(self, obs: Tensor, act: Tensor) -> Tensor:
        e, B = F.elu(self.enc(obs)), obs.size(0)
        h, z, kl, feats = obs.new_zeros(B, self.h), obs.new_zeros(B, self.z), 0, []
        for t in range(obs.size(1)):
            h = self.gru(F.elu(self.pre(torch.cat([z, act[:, t]], -1))).to(h.dtype), h)
            pm, ps = self.prior(h.to(obs.dtype)).chunk(2, -1)
            qm, qs = self.post(torch.cat([h.to(e.dtype), e[:, t]], -1)).chunk(2, -1)
            ps, qs = F.softplus(ps) + 0.1, F.softplus(qs) + 0.1
            z = (qm + qs * torch.randn_like(qs)).to(obs.dtype)
            kl = kl + (torch.log(ps / qs) + (qs**2 + (qm - pm) ** 2) / (2 * ps**2)).sum(-1).mean()
            feats.append(torch.cat([h.to(obs.dtype), z], -1))
        f = torch.stack(feats, 1)
        return F.mse_loss(self.dec(f), obs) + kl / obs.size(1) + self.reward(f).pow(2).mean()


class ImpalaPolicy(nn.Module):
    def __init__(self, c: int = 16, actions: int = 15) -> None:
        super().__init__()
        w = [3, c, 2 * c, 2 * c]
        self.conv = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in zip(w, w[1:]))
        self.res = nn.ModuleList(nn.Conv2d(b, b, 3, padding=1) for b in w[1:] for _ in range(4))
        self.pi, self.vf = nn.Linear(256, actions), nn.Linear(256, 1)
        self.fc = nn.Linear(2 * c * 64, 256)

    def forward(self, obs: Tensor, act: Tensor, adv: Tensor) -> Tensor:
        x = obs
        for i, c in enumerate(self.conv):
            x = F.max_pool2d(c(x), 3, 2, 1)
            for j in (0, 2):
                x = x + self.res[4 * i + j + 1](F.relu(self.res[4 * i + j](F.relu(x))))
        h = F.relu(self.fc(F.relu(x).flatten(1)))
        logp = F.log_softmax(self.pi(h), -1)
        v = self.vf(h).squeeze(1)
        ent = -(logp.exp() * logp).sum(-1).mean()
        return (
            -(logp.gather(1, act[:, None]).squeeze(1) * adv).mean()
            + 0.5 * (v - adv).pow(2).mean()
            - 0.01 * ent
        )


class ContrastivePredictive(nn.Module):
    def __init__(self, d: int = 128, ahead: int = 6) -> None:
        super().__init__()
        self.enc = nn.ModuleList(
            nn.Conv1d(1 if i == 0 else d, d, k, s, p)
            for i, (k, s, p) in enumerate(((10, 5, 3), (8, 4, 2), (4, 2, 1), (4, 2, 1)))
        )
        self.ar, self.w = nn.GRU(d, d, batch_first=True), nn.ModuleList(nn.Linear(d, d) for _ in range(ahead))

    def forward(self, wav: Tensor) -> Tensor:
        x = wav
        for c in self.enc:
            x = F.relu(c(x))
        z = x.transpose(1, 2)
        c, _ = self.ar(z)
        loss = torch.zeros((), device=wav.device)
        for k, w in enumerate(self.w, 1):
            s = torch.einsum("btd,ctd->tbc", w(c[:, :-k]), z[:, k:].to(c.dtype))
            y = torch.arange(z.size(0), device=z.device).expand(s.size(0), -1)
            loss = loss + F.cross_entropy(s.flatten(0, 1).float(), y.flatten())
        return loss / len(self.w)
