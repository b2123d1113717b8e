"""Training loops of libraries: the Hugging Face Trainer and Lightning count their steps themselves.

Where a loader leaves batches out, the trainer that asks for them gets its true numbers, so that it evaluates,
saves and ends at the steps that it was told to. Steps of interest are the first multiples of each of its
intervals and the last ones, those of numbers that the script's own callbacks have, and the last of all.
"""

from __future__ import annotations

import math
from types import CodeType, FrameType
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set

from slurm_gpumem.tracing.follow import counters, loops
from slurm_gpumem.tracing.own_code import is_users

_FIRST = 2
"""Steps of interest of each interval, before its last one."""
_ENDLESS = 1 << 40
_LIGHTNING = ("pytorch_lightning.loops.training_epoch_loop", "lightning.pytorch.loops.training_epoch_loop")


class Trainer(NamedTuple):
    """One that asks for a batch."""

    at: int
    """Steps that it has taken."""
    last: int
    """The step after which it ends."""
    batches: int
    """In a step."""
    intervals: Set[int]
    stops: Dict[int, int]
    """How often each interval was a reason to stop."""
    frame: FrameType
    numbers: Any
    """Of what it counts: objects, and names of their fields."""
    batches_left: int = _ENDLESS
    """In its epoch, as far as it knows."""

    @property
    def knows_its_end(self) -> bool:
        """Whether it ends by a number of steps or batches."""
        return min(self.last, self.batches_left) < _ENDLESS

    def left_out(self, left: int) -> int:
        """How many batches before the next one of interest, of those that the loader still has (0: it does
        not know); what counts them is set to what it is then."""
        left = min(left or _ENDLESS, self.batches_left)
        target = self._next_of_interest()
        rounds = min(target - self.at - 1, (left - 1) // self.batches)
        if rounds < 1 or rounds >= _ENDLESS // self.batches - 1:
            return 0
        if self.at + rounds + 1 == target:
            for interval in self.intervals:
                self.stops[interval] = self.stops.get(interval, 0) + (target % interval == 0)
        for owner, name, of_batches in self.numbers:
            setattr(owner, name, getattr(owner, name) + rounds * (self.batches if of_batches else 1))
        value = loops.known_in(self.frame).get("step")
        if type(value) is int:  # batches of the Hugging Face Trainer's epoch
            counters.advance(self.frame, {"step": counters.Counted(value, self.batches)}, rounds)
        return rounds * self.batches

    def _next_of_interest(self) -> int:
        found = {self.last}
        for interval in self.intervals:
            following = self.at - self.at % interval + interval
            if self.stops.get(interval, 0) < _FIRST:
                found.add(following)
            elif self.last < _ENDLESS and following < (last := self.last - self.last % interval):
                found.add(last)
        return min(found)


def asking(frame: Optional[FrameType], unknown: Callable[[str], None]) -> Optional[Trainer]:
    """The trainer whose training, not evaluation, asks for a batch; None where none does.

    `unknown` is told of a library whose version has other names than those that were known here.
    """
    while frame is not None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_name
        try:
            if module == "transformers.trainer":
                return _hugging_face(frame) if name in ("get_batch_samples", "_inner_training_loop") else None
            if module in _LIGHTNING and name == "advance":
                return _lightning(frame)
        except (AttributeError, KeyError):
            unknown(module.partition(".")[0])
            return None
        frame = frame.f_back
    return None


def _hugging_face(frame: FrameType) -> Trainer:
    trainer = loops.known_in(frame)["self"]
    state, args = trainer.state, trainer.args
    while "step" not in frame.f_code.co_varnames and frame.f_back is not None:
        frame = frame.f_back
    by_steps = {
        kind: getattr(state, f"{kind}_steps")
        for kind in ("logging", "save", "eval")
        if getattr(getattr(args, f"{kind}_strategy", None), "value", "") == "steps"
    }
    return Trainer(
        at=state.global_step,
        last=state.max_steps if state.max_steps > 0 else _ENDLESS,
        batches=max(1, args.gradient_accumulation_steps),
        intervals=_intervals([*by_steps.values(), *_numbers_of(trainer.callback_handler.callbacks)]),
        stops=_stops(state),
        frame=frame,
        numbers=[(state, "global_step", False)],
    )


def _lightning(frame: FrameType) -> Trainer:
    known = loops.known_in(frame)
    loop, fetcher = known["self"], known["data_fetcher"]
    trainer, progress = loop.trainer, loop.batch_progress
    batches = max(1, trainer.accumulate_grad_batches)
    module = trainer.lightning_module
    if module.automatic_optimization:
        steps = loop.automatic_optimization.optim_progress.optimizer.step
    else:
        steps = loop.manual_optimization.optim_step_progress
    own = [getattr(one, "_every_n_train_steps", 0) for one in trainer.callbacks]
    checks = trainer.val_check_batch if trainer.enable_validation else 0
    by_batches = checks // batches if isinstance(checks, int) or math.isfinite(checks) else 0
    fields = ("ready", "started", "processed", "completed")
    parts = (progress.current, progress.total)
    return Trainer(
        at=loop.global_step,
        last=loop.max_steps if loop.max_steps > 0 else _ENDLESS,
        batches=batches,
        intervals=_intervals([*own, int(by_batches), *_numbers_of([module, *trainer.callbacks])]),
        stops=_stops(loop),
        frame=frame,
        numbers=[
            *((part, name, True) for part in parts for name in fields),
            *(
                (part, name, False)
                for part in (steps.current, steps.total)
                for name in ("ready", "completed")
            ),
            (fetcher, "fetched", True),
        ],
        batches_left=_left_of(trainer.num_training_batches, progress.current.ready),
    )


def _left_of(batches: Any, ready: int) -> int:
    return int(batches) - ready if math.isfinite(batches) else _ENDLESS


def _stops(owner: Any) -> Dict[int, int]:
    found: Dict[int, int] = vars(owner).setdefault("_gpumem_stops", {})
    return found


def _intervals(values: List[Any]) -> Set[int]:
    return {int(value) for value in values if isinstance(value, (int, float)) and value >= _FIRST}


def _numbers_of(objects: Any) -> Iterator[int]:
    """Numbers in the code of the script's own callbacks and in what they hold: one may be an interval."""
    for one in objects:
        functions = [value for value in vars(type(one)).values() if hasattr(value, "__code__")]
        if any(is_users(function.__code__.co_filename) for function in functions):
            yield from (value for value in vars(one).values() if type(value) is int)
            for function in functions:
                yield from (value for value in _constants(function.__code__) if type(value) is int)


def _constants(code: CodeType) -> Iterator[Any]:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _constants(value)
        else:
            yield value
