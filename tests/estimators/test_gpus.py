from __future__ import annotations

from pathlib import Path
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.errors import ConfigError, UnknownNameError, UsageError
from slurm_gpumem.estimators.gpus import closest_gpu, find_gpu, gpu_table, site_gpu_file
from slurm_gpumem.estimators.registry import run
from slurm_gpumem.estimators.types import TrainingJob
from slurm_gpumem.summaries.reader import read_summary

RESNET = Path(__file__).resolve().parents[2] / "docs" / "examples" / "resnet50.txt"
NOWHERE = Path("/nonexistent/gpumem-gpus.toml")


@pytest.mark.parametrize(
    ("slurm_type", "memory_mib", "entry"),
    [
        ("a100", None, "a100"),
        ("a100", 80_000, "a100-80gb"),
        ("a100", 39_936, "a100"),
        ("nvidia_a100-sxm4-40gb", None, "a100"),
        ("NVIDIA_A100_80GB_PCIe", None, "a100-80gb"),
        ("nvidia_h100_nvl", None, "h100-nvl"),
        ("h100pcie", None, "h100-pcie"),
        ("nvidia_rtx_a6000", None, "a6000"),
        ("NVIDIA RTX 6000 Ada Generation", None, "rtx6000ada"),
        ("quadro_rtx_6000", None, "rtx6000"),
        ("tesla_v100-sxm2-32gb", None, "v100-32gb"),
        ("v100", 16_000, "v100"),
        ("gh200_480gb", None, "gh200"),
        ("b200", None, "b200"),
        ("A10", None, "a10"),
        # As AutoDetect=nvml writes them: NVML's name in small letters, spaces as underscores.
        ("nvidia_geforce_rtx_4070_ti_super", None, "rtx4070tisuper"),
        ("nvidia_geforce_rtx_4060_ti", None, "rtx4060ti"),
        ("nvidia_geforce_rtx_4060_ti", 16_380, "rtx4060ti-16gb"),
        ("nvidia_rtx_a2000_12gb", None, "a2000-12gb"),
        ("nvidia_rtx_4000_sff_ada_generation", None, "rtx4000ada"),
        ("nvidia_rtx_pro_6000_blackwell_server_edition", None, "rtxpro6000"),
        ("nvidia_gh200_480gb", None, "gh200"),
        ("titan_x_(pascal)", None, "titanx"),
        ("nvidia_geforce_rtx_2060_super", None, "rtx2060super"),
        ("nvidia_a100-sxm-64gb", None, "a100-64gb"),
        ("tesla_p100-pcie-12gb", None, "p100-12gb"),
        ("tesla_v100s-pcie-32gb", None, "v100-32gb"),
        ("v100l", None, "v100-32gb"),
        ("nvidia_geforce_rtx_3090_ti", None, "rtx3090"),
        # Names that begin with a digit, as sites shorten them.
        ("3090", None, "rtx3090"),
        ("2080ti", None, "rtx2080ti"),
        ("6000_ada", None, "rtx6000ada"),
    ],
)
def test_a_slurm_type_finds_its_gpu(slurm_type: str, memory_mib: Optional[int], entry: str) -> None:
    gpu = closest_gpu(slurm_type, memory_mib, NOWHERE)
    assert gpu.entry == entry
    assert gpu.name == slurm_type
    if memory_mib:
        assert gpu.memory_mib == memory_mib


def test_an_unknown_type_takes_the_row_of_the_nearest_memory_and_says_so() -> None:
    gpu = closest_gpu("mystery", 24_000, NOWHERE)
    assert (gpu.name, gpu.memory_mib, gpu.entry, gpu.measured) == ("mystery", 24_000, "", False)
    assert "not in the table" in gpu.source
    summary = read_summary(RESNET)
    said = " ".join(run("auto", summary, TrainingJob(batch_size=8), gpu).assumptions)
    assert "GPU type mystery is not in the table; `gpumem calibrate` on such a node asks the driver" in said
    assert closest_gpu(None, None, NOWHERE).context_mib == find_gpu("h200", NOWHERE).context_mib


@given(
    st.one_of(st.text(), st.from_regex(r"[a-zA-Z0-9_.-]{1,20}")), st.one_of(st.none(), st.integers(1, 10**6))
)
def test_no_type_name_makes_it_fail(slurm_type: str, memory_mib: Optional[int]) -> None:
    gpu = closest_gpu(slurm_type, memory_mib, NOWHERE)
    assert gpu.context_mib > 0
    assert gpu.memory_mib == memory_mib or memory_mib is None


def test_a_mig_instance_has_its_own_memory() -> None:
    gpu = closest_gpu("a100_3g.20gb", None, NOWHERE)
    assert (gpu.entry, gpu.memory_mib, gpu.usable_mib) == ("a100", 19_968, 19_968)


def test_a_person_may_write_any_of_those_names_and_gets_the_nearest_for_a_wrong_one() -> None:
    assert find_gpu("H200", NOWHERE).name == "h200"
    assert find_gpu("rtx_2080_ti", NOWHERE).name == "rtx2080ti"
    with pytest.raises(UnknownNameError, match=r"unknown GPU 'h200x'; did you mean 'h200'\?$"):
        find_gpu("h200x", NOWHERE)
    with pytest.raises(UnknownNameError, match=r"unknown GPU 'mi300'; known: a10, "):
        find_gpu("mi300", NOWHERE)


def test_several_types_at_once_are_refused_not_guessed() -> None:
    with pytest.raises(UsageError, match=r"GPU 'rtx2060,t4': name one type"):
        find_gpu("rtx2060,t4")


def test_every_entry_is_whole_and_only_measured_ones_claim_it() -> None:
    for name, gpu in gpu_table(NOWHERE).items():
        assert gpu.memory_mib > 4096, name
        assert gpu.sms, name
        assert gpu.bandwidth_gb_s, name
        assert gpu.compute_capability, name
        assert gpu.context_bare_mib is not None, name
        assert gpu.context_conv_mib is not None, name
        assert gpu.context_bare_mib <= gpu.context_conv_mib <= gpu.context_mib, name
        assert gpu.measured == ("assumed" not in gpu.source), name


def test_the_cublas_workspace_follows_the_compute_capability() -> None:
    assert find_gpu("a100", NOWHERE).cublas_workspace_bytes == (4096 * 2 + 16 * 8) * 1024
    assert find_gpu("h100", NOWHERE).cublas_workspace_bytes == 32 * 2**20
    assert find_gpu("rtx5090", NOWHERE).cublas_workspace_bytes == 32 * 2**20


# -- The site's own entries ----------------------------------------------------------------------


def test_a_site_entry_overrides_field_by_field(tmp_path: Path) -> None:
    path = tmp_path / "gpumem-gpus.toml"
    path.write_text('[a100]\ncontext_mib = 500\nmeasured = true\nsource = "here"\n')
    gpu = find_gpu("a100", path)
    assert (gpu.context_mib, gpu.measured, gpu.source) == (500, True, "here")
    assert gpu.memory_mib == find_gpu("a100", NOWHERE).memory_mib
    assert find_gpu("h100", path) == find_gpu("h100", NOWHERE)


def test_a_site_may_name_an_entry_exactly_as_its_slurm_type(tmp_path: Path) -> None:
    path = tmp_path / "gpumem-gpus.toml"
    path.write_text("[Nvidia_Custom_Thing]\nmemory_mib = 30000\ncontext_mib = 300\n")
    assert closest_gpu("nvidia_custom_thing", 29_000, path).context_mib == 300


def test_the_site_file_stands_beside_the_site_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GPUMEM_SITE_CONFIG", raising=False)
    assert site_gpu_file() == Path("/etc/slurm/gpumem-gpus.toml")
    monkeypatch.setenv("GPUMEM_SITE_CONFIG", str(tmp_path / "gpumem.toml"))
    (tmp_path / "gpumem-gpus.toml").write_text("[a100]\ncontext_mib = 501\n")
    assert find_gpu("a100").context_mib == 501


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a100\n", "is not valid TOML"),
        ("a100 = 5\n", "must be a section"),
        ('[a100]\ncontext_mib = "big"\n', "context_mib must be a positive whole number"),
        ("[a100]\ncontext_mib = -1\n", "context_mib must be a positive whole number"),
        ("[newone]\ncontext_mib = 500\n", "needs memory_mib"),
        ('[a100]\naliases = "x"\n', "aliases must be a list of names"),
    ],
)
def test_a_wrong_site_file_is_named_with_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "gpumem-gpus.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        gpu_table(path)
    assert str(path) in str(caught.value)
