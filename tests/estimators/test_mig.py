"""MIG instances by every name that sites give them, with the memory that they really have."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest

from slurm_gpumem.data import data_path
from slurm_gpumem.errors import UnknownNameError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import closest_gpu, find_gpu, gpu_table, profile_names, profiles
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.formats.mig_profiles import profile_name
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.toml_file import load_toml
from tests.cli.conftest import SUMMARY

NOWHERE = Path("/nonexistent/gpumem-gpus.toml")


@pytest.mark.parametrize(
    ("slurm_type", "entry", "mib", "sms"),
    [
        ("1g.18gb", "h200", 16_384, 16),
        ("1g.35gb", "h200", 33_280, 26),
        ("nvidia_h200_2g.35gb", "h200", 33_280, 32),
        ("3g.71gb", "h200", 71_424, 60),
        ("a100_2g.10gb", "a100", 9_850, 28),
        ("nvidia_a100_1g.5gb", "a100", 4_864, 14),
        ("a100_3g.40gb", "a100-80gb", 40_192, 42),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "a100-80gb", 40_192, 42),
        ("h100-1g.10gb", "h100", 9_850, 14),
        ("nvidia_h100_80gb_hbm3_1g.10gb", "h100", 9_850, 14),
        ("mig-1g.6gb", "a30", 5_949, 14),
        ("h100_1g.12gb", "h100-nvl", 10_874, 16),
        ("b200_1g.23gb", "b200", 20_618, 18),
        ("a100_1g.5gb.me", "a100", 4_864, 14),
    ],
)
def test_the_names_of_slurm_and_of_sites_mean_the_same_instance(
    slurm_type: str, entry: str, mib: int, sms: int
) -> None:
    gpu = closest_gpu(slurm_type, None, NOWHERE)
    assert (gpu.entry, gpu.usable_mib, gpu.sms) == (entry, mib, sms)
    assert (gpu.name, gpu.profile) == (slurm_type, profile_name(slurm_type))
    assert find_gpu(slurm_type, NOWHERE) == gpu


@pytest.mark.parametrize("slurm_type", ["1g.10gb", "a100_1g.10gb"])
def test_a_profile_of_several_gpus_has_what_all_of_them_have(slurm_type: str) -> None:
    assert closest_gpu(slurm_type, None, NOWHERE).usable_mib == 9_728


@pytest.mark.parametrize("slurm_type", ["5g.99gb", "a100_1g.18gb", "2c.3g.20gb"])
def test_an_unknown_profile_is_an_unknown_type_and_a_person_is_asked_for_another(slurm_type: str) -> None:
    gpu = closest_gpu(slurm_type, None, NOWHERE)
    assert (gpu.entry, gpu.profile) == ("", profile_name(slurm_type))
    with pytest.raises(UnknownNameError, match="unknown MIG profile"):
        find_gpu(slurm_type, NOWHERE)


@pytest.mark.parametrize("whole", ["h200", "nvidia_a100-sxm4-80gb", "rtx_2080_ti", "3090", "", None])
def test_a_whole_gpu_is_no_instance(whole: Optional[str]) -> None:
    assert profile_name(whole) is None
    assert closest_gpu(whole, None, NOWHERE).profile == ""


def test_rates_are_those_of_the_slice_and_the_context_that_of_the_whole_gpu() -> None:
    whole, part = find_gpu("h200", NOWHERE), find_gpu("h200_1g.18gb", NOWHERE)
    assert part.tflops == pytest.approx([rate * 16 / 132 for rate in whole.tflops])
    assert part.bandwidth_gb_s == pytest.approx((whole.bandwidth_gb_s or 0) * 16 / 140, rel=0.01)
    assert (part.context_mib, part.utilization_measured) == (whole.context_mib, False)


def test_an_estimate_on_an_instance_says_that_nobody_measured_there(tmp_path: Path) -> None:
    summary, job = read_summary(SUMMARY), TrainingJob(batch_size=32)
    estimate = registry.run("structural", summary, job, find_gpu("h200_1g.18gb", NOWHERE))
    auto = registry.run("corrected", summary, job, find_gpu("h200_1g.18gb", NOWHERE))
    assert estimate.peak_mib > 0
    assert any("not measured on MIG" in warning for warning in auto.warnings)
    site = tmp_path / "gpumem-gpus.toml"
    site.write_text('["h200_1g.18gb"]\nmemory_mib = 16500\ncontext_mib = 500\nmeasured = true\n')
    own = find_gpu("1g.18gb", site)
    assert (own.memory_mib, own.context_mib, own.calibrated, own.sms) == (16_500, 500, True, 16)
    assert find_gpu("h200", site).context_mib == find_gpu("h200", NOWHERE).context_mib
    calibrated = registry.run("corrected", summary, job, own)
    assert not any("not measured on MIG" in warning for warning in calibrated.warnings)


def test_what_is_assumed_of_unlisted_profiles_holds_for_every_listed_one() -> None:
    whole = gpu_table(NOWHERE)
    for gpu, fields in load_toml(data_path("models", "mig.toml")).items():
        for (profile,) in (profiles(name, [gpu]) for name in profile_names([gpu])):
            by_name = int(profile.name.split(".")[1][:-2]) * 10**9 * 0.94 / 2**20
            eighths = (whole[gpu].sms or 0) // (8 if profile.most_slices == 7 else 4) * profile.slices
            assert profile.mib <= whole[gpu].memory_mib, profile
            assert profile.slices == int(profile.name[0])
            if fields["source"] == "listed":
                assert profile.mib >= by_name, profile
                assert profile.sms is not None
                assert profile.sms >= eighths
            elif gpu != "h100-pcie":
                assert profile.mib == int(by_name), profile
