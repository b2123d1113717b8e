"""Mutate real summaries at random: python -m tests.summaries.fuzz --count 10000.

A mutated summary may be refused with a message or read with warnings; anything else is a bug. The seed of a
failure is printed, and --seed N --count 1 repeats it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from typing import Any, Callable, List, Optional, Sequence, Tuple

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.summaries.reader import parse
from slurm_gpumem.summaries.types import ModelSummary
from tests.summaries.saved_summaries import saved_summaries

SLOWEST_S = 5.0
_JUNK = (
    "\x1b[31m", "\r", "\t", "\0", "\ufeff", "│", "├─", "└─", "┃", "…", "(", ")", "[", "]", "[[", ",", "-1",
    "None", "--", "(recursive)", "٣", "１２", "9" * 40, "-", "=" * 70, "_" * 70, "INFO:root:", ": 3-1",
    "[2024-05-01 10:00:00] ", "Layer (type)", "Total params: 1", "Net(", "12 x ", "x" * 5000, "Output Shape",
    "Param #", "\u2028", "\ud800",
)  # fmt: skip
Mutation = Callable[[random.Random, str], str]


def _cut(rng: random.Random, text: str) -> str:
    start = rng.randrange(len(text) + 1)
    return text[:start] if rng.random() < 0.5 else text[start:]


def _drop_lines(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    start = rng.randrange(len(lines))
    del lines[start : start + rng.randint(1, 20)]
    return "\n".join(lines)


def _swap_lines(rng: random.Random, text: str) -> str:
    lines = text.split("\n")
    first, second = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]
    return "\n".join(lines)


def _insert(rng: random.Random, text: str) -> str:
    position = rng.randrange(len(text) + 1)
    return text[:position] + rng.choice(_JUNK) + text[position:]


def _replace_character(rng: random.Random, text: str) -> str:
    if not text:
        return text
    position = rng.randrange(len(text))
    return (
        text[:position] + chr(rng.choice([rng.randrange(128), rng.randrange(0x3000)])) + text[position + 1 :]
    )


def _drop_character_everywhere(rng: random.Random, text: str) -> str:
    return text.replace(rng.choice(text), "") if text else text


def _break_lines(rng: random.Random, text: str) -> str:
    width = rng.randint(5, 100)
    return "\n".join(
        line[i : i + width] for line in text.split("\n") for i in range(0, len(line) or 1, width)
    )


def _prefix_lines(rng: random.Random, text: str) -> str:
    prefix = rng.choice(_JUNK)
    return "\n".join(prefix + line for line in text.split("\n"))


def _mix(rng: random.Random, text: str) -> str:
    other = rng.choice(list(saved_summaries().values())).text
    return text + other if rng.random() < 0.5 else _cut(rng, text) + _cut(rng, other)


MUTATIONS: Sequence[Mutation] = (
    _cut, _drop_lines, _swap_lines, _insert, _insert, _replace_character, _replace_character,
    _drop_character_everywhere, _break_lines, _prefix_lines, _mix,
)  # fmt: skip


def mutate(seed: int) -> Tuple[str, str]:
    """Return a fixture's name and its mutated text."""
    rng = random.Random(seed)
    saved = rng.choice(list(saved_summaries().values()))
    text = saved.text
    for _ in range(rng.choice((1, 1, 2, 3, 8, 40))):
        text = rng.choice(MUTATIONS)(rng, text)
    return saved.stem, text[:400_000]


def check(summary: ModelSummary) -> None:
    """Raise if the summary breaks a promise of its types."""
    assert summary.layers
    assert 0 <= summary.trainable_params <= summary.total_params
    assert summary.batch is None or summary.batch > 0
    for layer in summary.layers:
        assert layer.params >= 0
        assert layer.line > 0
        assert all(shape and all(isinstance(size, int) for size in shape) for shape in layer.outputs)
        assert all(summary.elements(shape, 7) >= 0 for shape in layer.outputs + layer.inputs)
    assert len(summary.fingerprint) == 16
    assert all(line.isprintable() for line in summary.warnings)


def run(seeds: Sequence[int], said: Optional[Callable[[int, Any], None]] = None) -> List[str]:
    """Try all seeds; return a description of each failure; tell what each is read as."""
    failures = []
    for seed in seeds:
        stem, text = mutate(seed)
        failure = failure_of(text, lambda answer, seed=seed: said and said(seed, answer))
        if failure:
            failures.append(f"seed {seed} ({stem}): {failure}")
    return failures


def failure_of(text: str, said: Optional[Callable[[Any], Any]] = None) -> Optional[str]:
    """Read one text; return what went wrong, None if it was read or refused as it should be."""
    start = time.process_time()
    answer: Any = None
    try:
        answer = parse(text, origin="fuzz")
        check(answer)
    except SummaryError as error:
        answer = error
        if not str(error).startswith("fuzz: "):
            return f"a refusal without its origin: {error}"
    except Exception:  # noqa: BLE001  (whatever else comes out is what we look for)
        return traceback.format_exc()
    taken = time.process_time() - start
    if said is not None:
        said(answer)
    return f"took {taken:.1f} s" if taken > SLOWEST_S else None


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    failures = run(range(args.seed, args.seed + args.count))
    for failure in failures[:10]:
        print(failure)
    print(f"{args.count} mutations, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
