"""Which rounds and batches of a script's loops are run: what each script counts, kept whole."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List

import pytest

from tests.support.kept import assert_kept
from tests.support.needs import needs_torch

pytestmark = needs_torch
_KEPT = Path(__file__).with_name("loops.json")

# A step takes a second, a batch a tenth of one.
SCRIPTS: Dict[str, str] = {
    "by while": """at = 0
    while at < 200: at += 1; step(); counted.append(at)""",
    "counted behind a condition": """at = 0
    while at < 50:
        if at >= 0: at += 1
        step(); counted.append(at)""",
    "endless": """while True:
        step(); counted.append(1)
        if len(counted) == 20: return""",
    "ended in the inner one": """total = 0
    while total < 90:
        for part in [1, 2, 3]: total += 1; step(); counted.append(total)""",
    "over an open one": """import itertools, types
    state = types.SimpleNamespace(at=0)
    for number in itertools.count():
        state.at += 2; step(); counted.append((number, state.at))
        if state.at >= 300 or state.at % 2 == 1: break""",
    "more changes than time": """for epoch in range(900):
        if epoch in (100, 101, 200, 300, 302, 400, 500, 600, 700, 800): counted.append("changed")
        step(); counted.append(epoch)
        if epoch >= 860: break""",
    "keeps": "for round in range(0, 120, 2): step(); keep(100); counted.append(round)",
    "without steps": """numbers = range(3, 30, 4)
    counted += [len(numbers), 7 in numbers, 8 in numbers, numbers[2], list(numbers[1:3]), numbers.stop]
    for one in range(2, 9, 3):
        all = range(1, 9, 2)
        counted.append([one, len(all), 4 in range(5), 5 in all, all[1], list(reversed(all)), all.step])""",
    "evaluates": """for epoch in range(3):
        for number, batch in enumerate(loader, 1): step(); counted.append((epoch, number, batch.tolist()))
        for batch in loader: counted.append(batch.tolist())""",
    "accumulates": """steps = 0
    for number, batch in enumerate(loader):
        if number % 4 == 3: steps += 1; step()
        counted.append((number, steps))
        if steps == 10: counted.append("saved")""",
    "asks": """def ahead():
        batches = iter(loader)
        while True:
            try: yield next(batches)
            except StopIteration: return
    for turn in 1, 2:
        for batch in ahead(): step(); counted.append(batch.tolist())
    batches = iter(loader); counted += [next(batches).tolist() for _ in [0] * 7]""",
}


def _play(code: str, path: Path, patch: pytest.MonkeyPatch, time: float, since: int) -> Dict[str, Any]:
    """Run a script's main function; what it counted, and what is said of its loops."""
    from torch.utils.data import DataLoader, dataloader

    from slurm_gpumem.tracing.follow import epochs, loop_skipper

    now, kind = [0.0], dataloader._BaseDataLoaderIter
    patch.setattr(kind, "__next__", kind.__next__)
    for module in (epochs, loop_skipper):
        patch.setattr(module, "spent", lambda: now[0])
    steps: Any = SimpleNamespace(taken=0, fast_forward=False, time_left=lambda: time - now[0])
    recorder: Any = SimpleNamespace(loads=nullcontext, live_bytes=0)
    left, notes, counted, said = [], [], [], set()  # type: Any, List[str], List[Any], Any
    unwritten: Any = SimpleNamespace(count=0, left_out=left.append)
    rounds = loop_skipper.Rounds(recorder, steps, unwritten, notes.append)
    epochs.Epochs(recorder, steps, rounds, unwritten, lambda: steps.fast_forward, notes.append).install()

    def step() -> None:
        now[0] += 1
        steps.taken += 1
        steps.fast_forward = steps.taken >= since
        rounds.stepped()
        said.add(rounds.seen())

    def keep(more: int) -> None:
        recorder.live_bytes += more

    def collate(samples: Any) -> Any:
        now[0] += 0.1
        return dataloader.default_collate(samples)

    code = f"def main(counted, step, keep, loader):\n    {code}\n"
    path.write_text(code)
    names: Dict[str, Any] = {"range": rounds.range, "enumerate": loop_skipper.kind_of_enumerate(rounds)}
    exec(compile(code, str(path), "exec"), names)
    names["main"](counted, step, keep, DataLoader(range(60), collate_fn=collate))
    return {"counted": counted, "notes": notes, "ends": rounds.early_ends, "left out": rounds.left_out,
            "unwritten": left, "collects": rounds.collects, "seen": sorted(said)}  # fmt: skip


def test_the_rounds_of_each_loop_that_are_run_are_those_that_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: Dict[str, str] = {}
    for name, code in SCRIPTS.items():
        for time, since in ((30.0, 4), (2000.0, 6), (9.0, 1)):
            with monkeypatch.context() as patch:
                found = _play(code, tmp_path / f"{name.replace(' ', '_')}.py", patch, time, since)
            shown[f"{name}, {time:g} s"] = str(found)
    assert_kept(_KEPT, shown)


def test_a_text_that_is_generated_is_as_long_as_it_may_be_though_few_tokens_are_run() -> None:
    import torch

    from slurm_gpumem.tracing.follow.enough_steps import Steps
    from slurm_gpumem.tracing.follow.generation import Generation
    from slurm_gpumem.tracing.script.inference import Inference
    from tests.tracing.script.test_on_the_cpu import _world

    def generated(tokens: int) -> str:
        world, recorder = _world()
        inference = Inference(recorder, Steps(recorder, 1e9, 8.0), 1e9, 6.0)
        ours, ran = Generation(recorder, inference), [0]

        class Mixin(torch.nn.Linear):
            def generate(self, ids: Any, **how: Any) -> Any:
                criteria = Criteria()
                criteria.max_length = how.get("longest", ids.shape[1] + tokens)
                cache = ids[..., None].float()
                while True:
                    ran[0] += 1
                    cache, ids = torch.cat([cache, cache[:, -1:]], 1), torch.cat([ids, ids[:, -1:]], 1)
                    if criteria(ids).all() or (criteria.max_length is None and ran[0] % 40 == 0):
                        return ids

        Criteria: Any = type("Criteria", (list,), {"max_length": None})
        ours._in_criteria(SimpleNamespace(StoppingCriteriaList=Criteria))
        ours._in_utils(SimpleNamespace(GenerationMixin=Mixin))
        with world, recorder:
            model, ids = Mixin(4, 4), torch.zeros(2, 5, dtype=torch.int64, device="cuda")
            hows: List[Any] = [{}, {}, {}, {}, {"longest": 4}, {"longest": None}, {"by": {1, 2}}]
            shapes = [tuple(model.generate(ids, **how).shape) for how in hows]
        made = [len(recorder.events), recorder.peak_bytes, sum(block.nbytes for block in recorder.blocks)]
        return str([shapes, ran, inference.new_tokens, inference.passes, made])

    assert_kept(_KEPT, {f"{tokens} tokens": generated(tokens) for tokens in (1, 12, 13, 14, 60)})


def test_calls_that_grow_alike_are_answered_in_the_shapes_that_follow() -> None:
    import torch

    from slurm_gpumem.tracing.follow.enough_steps import Steps
    from slurm_gpumem.tracing.follow.fast_forward import FastForward
    from slurm_gpumem.tracing.script.inference import Inference
    from tests.tracing.script.test_on_the_cpu import _world

    ran: List[int] = []
    lengths = (*range(20, 60), 59, *range(20, 64, 3))

    class Model(torch.nn.Linear):
        def forward(self, one: Any) -> Any:
            ran.append(one.shape[1])
            return super().forward(one), one.sum(1)

    world, recorder = _world()
    steps = Steps(recorder, 1e9, 8.0)
    inference = Inference(recorder, steps, 1e9, 6.0)
    skips, called = FastForward(recorder, steps, inference), torch.nn.Module.__call__
    try:
        skips.install()
        with world, recorder, torch.no_grad():
            model = Model(4, 4).to("cuda").eval()
            torch.zeros(1 << 20, device="cuda")  # a peak that no call sets
            shapes = []
            for length in lengths:
                found = model(torch.zeros(2, length, 4, device="cuda"))
                shapes.append([tuple(one.shape) for one in found])
    finally:
        torch.nn.Module.__call__ = called
    assert shapes == [[(2, length, 4), (2, 4)] for length in lengths]
    assert_kept(_KEPT, {"growing calls": str([ran, inference.passes, skips.completed])})


def test_what_a_call_depends_on_and_leaves_is_told_of_objects_too() -> None:
    import torch

    from slurm_gpumem.tracing.follow.answers import described, kept_by

    holds, data = (
        SimpleNamespace(of=SimpleNamespace(one=torch.ones(2, 3), two=[7, "a"]), plain=None),
        torch.ones(2),
    )
    for depth, deep in enumerate(
        (described(holds), described(holds, 1), described(SimpleNamespace(a=[0] * 501)))
    ):
        assert len(deep) == (3, 3, 1)[depth]
    assert described(holds)[2][0][2] == (((2, 3), torch.float32, False), (7,), ("a",)), described(holds)
    assert described(holds, 3) == (id(holds),)
    layer = torch.nn.Linear(2, 2)
    layer.seen, layer.none = layer(data), data
    kept = kept_by(layer)
    assert kept is not None
    assert [(part is layer, name) for part, name, _ in kept] == [(True, "seen")]
    for more in ([layer(data)], {"a": layer(data)}):
        layer.more = more
        assert kept_by(layer) is None
