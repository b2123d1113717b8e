from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.recovery.log_verdict import judge_log
from slurm_gpumem.recovery.patterns import Kind
from slurm_gpumem.recovery.task_epilog import Measured, verdict_on
from tests.support.timing import best_cpu_s, slowness

TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU 0 has a total capacity of "
    "12.00 GiB of which 1.20 GiB is free. Including non-PyTorch memory, this process has {} GiB memory in "
    "use."
)


@given(st.text(max_size=3000))
def test_any_text_is_judged_and_none_is_a_surprise(text: str) -> None:
    found = judge_log(text)
    assert found.kind is None or (found.kind in Kind and len(found.line) <= 160)


@given(
    st.lists(st.sampled_from(["Traceback (most recent call last):", "  File x", TORCH, "KeyError: 1", ""]))
)
def test_what_is_named_last_decides(lines: list[str]) -> None:
    found = judge_log("\n".join(lines))
    named = [line for line in lines if line in (TORCH, "KeyError: 1")]
    if named and named[-1] == TORCH:
        assert found.kind is Kind.OOM


@pytest.mark.timing
@pytest.mark.parametrize("line", ["x" * 60_000, "CUDA " * 12_000, "cuda error " * 6000, " " * 60_000])
def test_no_line_makes_it_slow(line: str) -> None:
    texts = ("\n".join([line] * 3), line.replace(" ", "\n"))
    assert best_cpu_s(lambda: [judge_log(text) for text in texts], 2) < 1.0 * slowness()


def test_what_was_held_and_asked_for_is_read_from_pytorchs_own_words() -> None:
    assert judge_log(TORCH.format("2.00", "10.80")).need_mib == 13107


def test_a_forged_line_does_not_stand_against_a_measurement() -> None:
    forged = judge_log("CUDA error: out of memory")
    idle = Measured(peak_mib=0.0, limit_mib=12_288, samples=60, fresh=True)
    assert verdict_on(forged, idle) is None
    assert verdict_on(forged, idle._replace(fresh=False)) == "oom"
    assert verdict_on(judge_log(TORCH.format("0.10", "1.00")), idle) is None
    assert verdict_on(judge_log(TORCH.format("2.00", "10.80")), idle) == "oom"


def test_a_fault_is_a_neighbours_only_in_company() -> None:
    found = judge_log("RuntimeError: CUDA error: an illegal memory access was encountered")
    assert verdict_on(found, Measured(), hit_too=()) is None
    assert verdict_on(found, Measured(), hit_too=(12,)) == "neighbour"


def test_a_job_that_the_node_ended_ran_out_whatever_its_log_says() -> None:
    overran = Measured(peak_mib=9000.0, limit_mib=4096, samples=3, fresh=True, overran=True)
    for text in ("", "RuntimeError: CUDA error: the MPS client has been terminated by the server"):
        assert verdict_on(judge_log(text), overran) == "oom"


def test_memory_that_another_job_took_is_the_neighbours_doing_unless_its_own_share_was_too_small() -> None:
    # PyTorch says what it held and what it asked for: 10 GiB of 12.
    refused, wordless = judge_log(TORCH.format("2.00", "8.00")), judge_log("CUDA error: out of memory")
    crowded = Measured(peak_mib=8192.0, limit_mib=12_288, samples=60, fresh=True, crowded=True)
    assert verdict_on(refused, crowded) == verdict_on(wordless, crowded) == "neighbour"
    assert verdict_on(refused, crowded._replace(crowded=False)) == "oom"
    assert verdict_on(judge_log(TORCH.format("4.10", "8.00")), crowded) == "oom"
    assert verdict_on(wordless, crowded._replace(peak_mib=12_000.0)) == "oom"
