"""What each operator holds on a GPU beside its results, forward and backward; kept whole."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, Dict

from tests.support.kept import assert_kept, plain
from tests.support.needs import needs_torch

pytestmark = needs_torch
KEPT = Path(__file__).with_name("cuda_operators.json")
# t: a weight or activation of this shape; n: numbers; h, b: in half precision; last: channels last.
# A result has gradients that lie as it does, or as the one that is given with it.
CASES = """
where(n(6, 5, of=uint8), t(6, 5), t(6, 5)); where(n(6, 5, of=bool), t(6, 5), t(5))
_sample_dirichlet(t(7, 4).detach()); _dirichlet_grad(t(7, 4).detach(), t(7, 4).detach(), t(7, 4).detach())
[F.dropout(t(30, 7), p, on) * 2 for p, on in ((0.5, True), (1.0, True), (0.0, True), (0.5, False))]
[F.softmax(made(9, 70).t(), 1, dtype=wide) for made in (h, b) for wide in (None, float32)]
[F.log_softmax(made(9, 70).t(), 1, dtype=wide) for made in (h, b) for wide in (None, float32)]
[F.rms_norm(one(4, 6, 8), (6, 8), two(6, 8)) for one, two in ((b, t), (t, b), (t, t))]
F.rms_norm(t(4, 8), (8,)); aten._safe_softmax(t(9, 70), -1); F.group_norm(t(*images), 2)
F.group_norm(t(*images), 2, t(8), t(8)); F.group_norm(last(t(*images)), 2, None, t(8))
F.layer_norm(t(8, 6, 4).transpose(0, 1), (4,), t(4), t(4)); norm(t(*images)), last(t(*images))
norm(last(t(*images))), t(*images); norm(b(*images)), last(b(*images))
norm(last(b(*images))), b(*images); F.layer_norm(t(70000, 48), (48,), t(48), t(48))
F.one_hot(n(7), 9); F.one_hot(tensor([2, 0, 6]).to("meta")); nn.LSTMCell(3, 4)(t(5, 3), (t(5, 4), t(5, 4)))[0]
nn.GRUCell(3, 4)(t(5, 3), t(5, 4)); nn.GRUCell(3, 4, False)(t(5, 3), t(5, 4))
nn.LSTMCell(3, 4, False)(t(5, 3), (t(5, 4), t(5, 4)))[0]
F.ctc_loss(t(20, 4, 13), n(4, 11), (20,) * 4, (5, 9, 7, 8)); F.ctc_loss(t(20, 4, 13), n(29), n(4), n(4))
[F.ctc_loss(t(20, 4, 13), n(4, 11), tensor([20] * 4), tensor([5, 9, 7, 8]), 0, r) for r in ("sum", "none")]
[_grouped_mm(one, b(8, 5).detach(), n(3)) for one in (b(6, 8).detach(), b(4, 6, 8).detach())]
[_grouped_mm(one, b(4, 8, 5).detach(), n(3)) for one in (b(6, 8).detach(), b(4, 6, 8).detach())]
F.mse_loss(t(9, 7), t(9, 7)); F.mse_loss(t(9, 7), t(9, 7), reduction="none")
F.smooth_l1_loss(h(9, 7), h(9, 7)); F.binary_cross_entropy_with_logits(t(9, 7), t(9, 7).detach())
t(9, 70).logsumexp(1); t(9, 7, 5).roll((1, 2, 3), (0, 1, 2)); F.bilinear(t(9, 5), t(9, 6), t(7, 5, 6), t(7))
F.unfold(t(*images), 3); F.fold(t(3, 72, 80), (12, 10), 3); F.fold(t(3, 72, 1), (12, 10), 3, stride=20)
t(5, 5000).sort()[0]; t(5000, 5).sort(0)[0]; t(5000).sort()[0]; t(5, 4096).sort()[0]; t(2, 1000000).sort()[0]
t(2, 999999).sort()[0]; h(128, 5000).sort()[0]; h(127, 5000).sort(stable=True)[0]
F.embedding(n(100, 31), t(50, 40)); F.embedding(n(96, 32), t(50, 40))
F.embedding_bag(n(80, 50), t(50, 40), mode="mean"); t(50, 40)[n(30)]
t(9, 8, 7, 6)[n(30), :, n(30)]; t(40, 50).t()[n(30)], t(40, 30).detach().t()
t(50, 40).index_put((n(9),), t(40), True); [t(900, 30).sum(0), b(900, 30).std(0), t(30, 900).mean(1)]
[n(900, 30, of=bool).sum(0), t(90, 30).norm(dim=0), t(90, 30).var(1)]; linalg.solve(t(40, 40), t(40, 3))
[linalg.cholesky(t(*side)) for side in sides]; [linalg.inv(t(*side)) for side in sides]
[linalg.eigh(t(*side)) for side in sides]; [linalg.svdvals(t(*side)) for side in sides]
[linalg.qr(t(*side)) for side in sides]; [linalg.slogdet(t(*side)) for side in sides]
[linalg.eigvals(t(*side)) for side in sides]; linalg.eigh(t(1024, 1024).detach())[1]
cholesky_solve(t(40, 3), t(40, 40)); fft.fft2(t(3, 40000, 2).transpose(1, 2)).real
[fft.irfft(fft.rfft(t(3, long, 2), dim=1), dim=1) for long in (96, 131, 127, 65538)]
aten._fft_c2c(n(3, 4, of=complex64), [], 0, True); F.conv2d(t(3, 0, 12, 10), t(4, 0, 3, 3))
autograd.grad(F.conv2d(pictures, t(5, 4, 3, 3)).pow(2).sum(), pictures, create_graph=True)[0]
[F.scaled_dot_product_attention(made(2, 4, 66, 64), *[made(2, 4, 70, 64)] * 2) for made in (h, t)]
F.conv2d(t(*images), t(6, 4, 3, 3), t(6), 2, 1, 1, 2); F.conv_transpose1d(t(3, 8, 12), t(8, 4, 3), stride=2)
F.conv2d(last(t(*images)), t(6, 8, 3, 3), t(6)), t(3, 6, 10, 8)
F.max_pool2d(last(t(*images)), 2), t(3, 8, 6, 5); F.interpolate(t(3, 8, 12), None, 2, "linear")
F.conv2d(t(*images), t(8, 1, 3, 3), groups=8), last(t(3, 8, 10, 8))
[F.interpolate(t(*images), None, 2, how) for how in ("nearest", "bilinear", "bicubic")]
[F.interpolate(last(t(*images)), None, 2, how) for how in ("nearest", "bilinear", "bicubic")]
nn.LSTM(8, 16)(t(6, 4, 8))[0]; nn.LSTM(8, 16).eval()(t(6, 4, 8))[0]; nn.LSTM(8, 16).bfloat16()(b(6, 4, 8))[0]
nn.LSTM(8, 16, 2, dropout=0.5)(packed(t(17, 8)))[0].data; nn.LSTM(8, 16)(packed(t(17, 8)))[0].data
nn.LSTM(8, 200, 2, bidirectional=True).half()(packed(h(17, 8)))[0].data; nn.RNN(8, 400, 2)(t(6, 4, 8))[0]
nn.LSTM(900, 200, proj_size=24)(t(6, 4, 900))[0]; nn.GRU(8, 200, 2)(t(6, 4, 8))[0]
nn.GRU(8, 16, 2, batch_first=True, dropout=0.5, bidirectional=True)(t(6, 4, 8))[0]
nn.RNN(8, 16, bidirectional=True)(packed(t(17, 8)))[0].data
with autocast: [nn.LSTM(8, 16)(t(6, 4, 8))[0], b(6, 4).sum(1), softmax(b(6, 4), 1, None), t(6, 4) @ t(4, 6)]
"""
ON_THE_CPU = """
_dirichlet_grad(t.detach(), t.detach() + 1, t.detach() + 2); F.fold(t[None, :4], (3, 4), 2); fft.rfft(t).abs()
F.ctc_loss(t[:, None].log_softmax(-1), tensor([[1, 2]]), (6,), (2,)); where(t > 1, t, 0); linalg.cholesky(t)
t.cholesky_solve(t); F.smooth_l1_loss(t, t.t()); (t[:, [0, 0]] ** 2).sort(0)[0]
"""


def _each(cases: str) -> Any:
    return (" ".join(case.split()) for case in cases.replace("\n", ";").split(";") if case)


def _recorder(autocast: Any) -> Any:
    from slurm_gpumem.tracing.engine.recorder import Recorder
    from slurm_gpumem.tracing.engine.recording import Guess
    from slurm_gpumem.tracing.script.script_places import ScriptPlaces

    return Recorder(ScriptPlaces(lambda root, args: None), autocast, Guess(truth=True))


def _names() -> Dict[str, Any]:
    import torch
    from torch.nn import functional as F

    def made(*shape: int, of: Any = torch.float32) -> Any:
        return torch.empty(shape, dtype=of, device="meta", requires_grad=of.is_floating_point)

    def norm(data: Any) -> Any:
        weight = made(8, of=data.dtype)
        return F.batch_norm(data, made(8).detach(), made(8).detach(), weight, weight, True)

    def packed(rows: Any) -> Any:
        return torch.nn.utils.rnn.PackedSequence(rows, torch.tensor([4, 4, 3, 3, 2, 1], device="cpu"))

    return {**vars(torch), "F": F, "aten": torch.ops.aten, "t": made, "norm": norm, "packed": packed,
            "n": lambda *shape, of=torch.int64: made(*shape, of=of), "pictures": made(3, 4, 40, 40),
            "h": lambda *shape: made(*shape, of=torch.half),
            "b": lambda *shape: made(*shape, of=torch.bfloat16),
            "last": lambda data: data.detach().to(memory_format=torch.channels_last).requires_grad_(),
            "images": (3, 8, 12, 10), "sides": ((40, 40), (3, 40, 40))}  # fmt: skip


def _run(case: str, autocast: Any, names: Dict[str, Any]) -> str:
    import torch
    from torch.utils import _pytree as pytree

    from slurm_gpumem.tracing.cuda.substitutes import cuda_substitutes

    whole, halves = case.replace("with autocast: ", ""), case.startswith("with")
    recorder = _recorder(autocast)
    with torch.device("meta") if "nn." in case else nullcontext(), recorder, cuda_substitutes(recorder):
        recorder.enter("forward", 2)
        with torch.autocast("cuda", torch.bfloat16, halves):
            found = eval(whole, names)
        found, given = found if isinstance(found, tuple) else (found, None)
        results = [one for one in pytree.tree_leaves(found) if isinstance(one, torch.Tensor)]
        trained = [one for one in results if one.requires_grad]
        recorder.enter("backward", 2)
        if trained:
            each = [torch.empty_like(one) if given is None else given for one in trained]
            torch.autograd.backward(trained, each)
    lies = [(list(one.shape), str(one.dtype), one.stride()) for one in results]
    words = [list(recorder.remarks), list(recorder.warnings), recorder.uses_conv, recorder.uses_matmul]
    return repr(plain([lies, recorder.blocks, recorder.events, words, recorder.kernels.by_step]))


def test_operators_hold_what_they_did() -> None:
    from slurm_gpumem.tracing.cuda.autocast import autocast_on_meta

    with autocast_on_meta() as autocast:
        assert_kept(KEPT, {case: _run(case, autocast, _names()) for case in _each(CASES)})


def test_operators_on_the_cpu_give_real_numbers_under_a_trace() -> None:
    import torch

    from slurm_gpumem.tracing.cuda.autocast import Autocast

    square = torch.rand(6, 6, generator=torch.Generator().manual_seed(3))
    square = (square @ square.t() + torch.eye(6)).requires_grad_()

    def worked() -> Any:
        found = [eval(case, {**_names(), "t": square}) for case in _each(ON_THE_CPU)]
        return [*found, *torch.autograd.grad([one.sum() for one in found if one.requires_grad], square)]

    expected = worked()
    with _recorder(Autocast()):
        found = worked()
    assert [torch.equal(one, other) for one, other in zip(found, expected)] == [True] * len(expected)
