"""What is known of numbers that a trace does not have, and what is made up where code reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict

from tests.support.kept import assert_kept
from tests.support.needs import needs_torch

pytestmark = needs_torch
_KEPT = Path(__file__).with_name("unknown_numbers.json")


def _recorder(kind: str) -> Any:
    from slurm_gpumem.tracing.cuda.autocast import Autocast
    from slurm_gpumem.tracing.engine import recorder
    from slurm_gpumem.tracing.engine.recording import Guess
    from slurm_gpumem.tracing.script.script_places import ScriptPlaces
    from slurm_gpumem.tracing.script.script_recorder import ScriptRecorder

    made = ScriptRecorder if kind == "script" else recorder.Recorder
    return made(ScriptPlaces(lambda root, args: None), Autocast(), Guess(truth=True))


def _told(value: Any) -> Any:
    """Shape, type, and all that is known of a tensor; of other things what they are."""
    import torch

    from slurm_gpumem.tracing.engine import unknown_values, values

    if isinstance(value, (list, tuple)):
        return [_told(one) for one in value]
    if not isinstance(value, torch.Tensor):
        return value
    with torch._C.DisableTorchFunction():
        known = values.value_of(value) if value.device.type == "meta" else value
        known = known.to_dense() if known is not None and known.layout != torch.strided else known
        allowed = getattr(value, "_gpumem_allowed", None)
        asked = (unknown_values.choices_of, unknown_values.share_of, unknown_values.may_be_whole)
        marks = [*(ask(value) for ask in asked), hasattr(value, values.MADE_UP), str(allowed)]
        numbers = None if known is None else known.double().mul(1000).round().long().tolist()
        about = marks if value.device.type == "meta" else ()
        return f"{value.device.type} {str(value.dtype)[6:]} {tuple(value.shape)} {about} {numbers}"


def _shown(cases: Dict[str, Callable[[], Any]]) -> Dict[str, str]:
    """What each gives on the GPU, its blocks, and what was assumed."""
    from slurm_gpumem.tracing.engine.values import known_constants
    from slurm_gpumem.tracing.fake_cuda.device import FakeCuda

    shown = {}
    for name, case in cases.items():
        recorder, world = _recorder("script"), FakeCuda()
        with world, recorder, known_constants():
            told = case()
            made = [(block.operator, block.nbytes, block.category) for block in recorder.blocks]
        told = _told(told)
        for part, one in (("", told), (" made", made), (" said", [*recorder.remarks, *recorder.warnings])):
            shown[name + part] = str(one)
    return shown


def test_each_operator_that_reads_numbers_of_the_gpu_goes_on_with_those_it_went_on_with() -> None:
    import torch
    from torch.nn.utils import rnn

    aten = torch.ops.aten

    def of(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda")

    def chosen(choices: int, *rows: int) -> Any:
        return of(*rows, choices).argmax(-1)

    def gpu(*numbers: Any) -> Any:
        return torch.tensor(numbers).to("cuda")

    def left(*closed: int) -> Any:
        return of(2, 4).masked_fill(gpu(*(at in closed for at in range(4))), float("-inf"))

    def copied(**how: Any) -> Any:
        return [of(6, 4).t().to("cpu", **how), torch.ones(4, 6).t().to("cuda", **how)]

    def scaled() -> Any:
        found, scale = gpu(1.0)[0], gpu(8.0)[0]
        aten._amp_foreach_non_finite_check_and_unscale_.default([of(3)], found, scale)
        return [found, aten._amp_update_scale_.default(scale, gpu(1)[0], found, 2.0, 0.5, 3)]

    def filled() -> Any:
        scores, into, sums = of(2, 3), torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64, device="cuda")
        into.copy_(scores, non_blocking=True)
        (
            sums.scatter_(0, gpu(2, 0, 1), gpu(5, 6, 7)),
            torch.zeros(2, device="cuda").scatter_(0, gpu(1, 1), of(2)),
        )
        return [into, sums]

    def compared() -> Any:
        image, other = of(2, 3, 4), of(2, 3, 4)
        same, alike, more = image == other, chosen(4, 8) == chosen(4, 8), image == other
        more |= other > 0
        found = [same, (image != other).sum(), image == image, same.all(-1), same.sum(), same.float().mean()]
        return [*found, image == float("inf"), alike.view(2, 4).all(1), more.sum(), alike.any(), alike.sum()]

    def made_of_numbers() -> Any:
        image = of(2, 3)
        return [image.new_tensor([1, 2.5]), image.new([3, 4]), image.new(2, 3), gpu(1, 2).new([5]),
                torch.as_tensor([gpu(7)[0], 8]), image.new_tensor([[1], [0]], dtype=torch.bool)]  # fmt: skip

    shown = _shown({
        "masks": lambda: [(of(8) > 0).cpu(), (chosen(4, 8) == 1).cpu(), (chosen(4, 8) != 1).float().cpu()],
        "indices": lambda: [chosen(5, 7).cpu(), of(6, 4).softmax(-1).cpu(), of(3, 1).softmax(1).cpu()],
        "copies to another type": lambda: copied(dtype=torch.half),
        "copies that nobody waits for": lambda: copied(dtype=torch.half, non_blocking=True),
        "filled": filled,
        "truths": lambda: [torch.equal(gpu(1, 2), gpu(1, 2)), torch.equal(gpu(1, 2), gpu(1, 3)),
                           torch.equal(of(2), of(2)), torch.allclose(gpu(1.0), gpu(2.0))],
        "pieces": lambda: torch.split(of(10, 2), of(3).long().tolist()),
        "packed": lambda: [*rnn.pack_padded_sequence(of(2, 7, 3), of(2).long().cpu(), True)[:2],
                           *rnn.pack_padded_sequence(of(5, 2, 3), of(2).long().cpu())[:2],
                           *rnn.pack_padded_sequence(of(2, 5, 3), gpu(4, 2).cpu(), True)[:2]],
        "scaled": scaled,
        "by a known mask": lambda: of(3, 4).masked_select(gpu(True, False, True, True)),
        "cut out": lambda: of(2, 9).masked_select(of(2, 9) > 0).view(2, 4),
        "each once": lambda: chosen(4, 9).unique(return_inverse=True, return_counts=True),
        "in a row": lambda: of(5).unique_consecutive(),
        "rows and places": lambda: [of(4, 5, 6)[:, of(5) > 0],
                                    of(4, 5)[gpu(True, False, True, True), gpu(1, 2, 3)]],
        "repeated": lambda: of(3).repeat_interleave(of(3).long()),
        "one word": lambda: [chosen(1000, 3) == 2, chosen(1000, 3) != 2, (chosen(1000, 3) == 2).any(),
                             chosen(6, 3) == 2, chosen(7, 3) == 2],
        "compared": compared,
        "drawn": lambda: [left(0).argmax(-1), left(1, 2).max(-1), left(0, 1, 2).argmax(1), left(0).argmax(0),
                          left(0).max(0), left(0).argmax(), left(0, 1, 2, 3).argmax(-1)],
        "drawn by chance": lambda: [left(0).softmax(-1).multinomial(1), left(1).exp().multinomial(3, True)],
        "made of numbers": made_of_numbers,
    })  # fmt: skip
    assert_kept(_KEPT, shown)


def test_what_lies_on_the_cpu_in_a_model_s_trace_is_computed_as_without_it() -> None:
    import torch

    from slurm_gpumem.tracing.engine.data_dependent_shapes import boxes_kept

    aten, data = torch.ops.aten, torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0]])
    mask = data > 0

    def case() -> Any:
        into, found, scale = torch.zeros(2, 3), torch.zeros(()), torch.ones(())
        gradients = [data.clone()]
        aten._amp_foreach_non_finite_check_and_unscale_.default(gradients, found, torch.tensor(0.5))
        aten._amp_update_scale_.default(scale, torch.zeros((), dtype=torch.int32), found, 2.0, 0.5, 1)
        left = aten._nested_tensor_from_mask_left_aligned.default(data[None], mask.any(1)[None])
        found_at = [
            data[mask],
            data.masked_select(mask),
            mask.nonzero(),
            data.to_sparse(),
            data.split([1, 2], 1),
        ]
        return [
            into.copy_(data),
            torch.equal(data, into),
            data.sum().item(),
            gradients,
            scale,
            left,
            found_at,
        ]

    plain = _told(case())
    recorder = _recorder("model")
    with recorder:
        assert _told(case()) == plain
    kept = boxes_kept(recorder, aten.sum.default, (data.to("meta"),), {})
    assert boxes_kept(recorder, lambda boxes: boxes.sum().item(), (data,), {}) == 6
    assert _told(kept) == "meta int64 (2,) [None, None, False, False, 'None'] None"
    assert [(one.nbytes, one.category) for one in recorder.blocks[-5:]] == [
        (16, "workspace"), (24, "workspace"), (16, "workspace"), (16, "workspace"), (16, ""),
    ]  # fmt: skip
    assert recorder.events[-4:] == [
        ~number for number in range(len(recorder.blocks) - 5, len(recorder.blocks) - 1)
    ]
    assert list(recorder.remarks) == ["how many boxes nms keeps depends on data; took all"]
