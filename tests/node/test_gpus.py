from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpumem.devcluster import ledger
from slurm_gpumem.node.gpus import NodeGpu, parse_numbers, pick, proc_gpus, standin_gpus

INFORMATION = """Model: \t\t NVIDIA A100-SXM4-40GB
IRQ:   \t\t 286
GPU UUID: \t {uuid}
Video BIOS: \t 92.00.45.00.03
Bus Type: \t PCIe
Bus Location: \t 0000:{bus}:00.0
Device Minor: \t {minor}
GPU Excluded:\t No
"""


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0", (0,)),
        ("0,2-4", (0, 2, 3, 4)),
        ("3,1", (3, 1)),
        ("1,1", (1,)),
        ("", ()),
        ("0;rm", ()),
        ("-1", ()),
        ("a", ()),
        ("0\n1", ()),
    ],
)
def test_slurms_list_of_gpus_is_read(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_numbers(text) == numbers


@given(st.text(max_size=40))
def test_no_text_breaks_the_reader_of_gpu_lists(text: str) -> None:
    assert all(isinstance(number, int) for number in parse_numbers(text))


def test_proc_maps_device_numbers_to_uuids_whatever_the_bus_order(tmp_path: Path) -> None:
    for bus, minor in (("07", 1), ("47", 0)):
        folder = tmp_path / f"0000:{bus}:00.0"
        folder.mkdir()
        (folder / "information").write_text(INFORMATION.format(uuid=f"GPU-{bus}aa-bb", bus=bus, minor=minor))
    assert proc_gpus(tmp_path) == (
        NodeGpu(0, "GPU-47aa-bb", "NVIDIA A100-SXM4-40GB"),
        NodeGpu(1, "GPU-07aa-bb", "NVIDIA A100-SXM4-40GB"),
    )


def test_a_uuid_that_the_driver_does_not_know_yet_sends_us_to_nvml(tmp_path: Path) -> None:
    (tmp_path / "0000:07:00.0").mkdir()
    text = INFORMATION.format(uuid="GPU-????????-????-????-????-????????????", bus="07", minor=0)
    (tmp_path / "0000:07:00.0" / "information").write_text(text)
    assert proc_gpus(tmp_path) == ()


def test_without_a_driver_there_are_no_gpus(tmp_path: Path) -> None:
    assert proc_gpus(tmp_path / "missing") == ()


def test_a_job_gets_its_gpus_in_slurms_order() -> None:
    gpus = [NodeGpu(number, f"GPU-{number:04x}") for number in range(4)]
    assert [gpu.number for gpu in pick(gpus, {"SLURM_JOB_GPUS": "3,1,9"})] == [3, 1]


def test_uuids_in_slurms_list_are_understood_too() -> None:
    gpus = [NodeGpu(number, f"GPU-{number:04x}") for number in range(4)]
    assert [
        gpu.number for gpu in pick(gpus, {"SLURM_JOB_GPUS": "GPU-0003,GPU-0001,GPU-0003,GPU-ffff,MIG-0001"})
    ] == [3, 1]
    assert pick(gpus, {"SLURM_JOB_GPUS": "GPU-0003;rm"}) == ()


def test_stand_in_gpus_are_the_nodes_own_and_keep_their_uuids(tmp_path: Path) -> None:
    ledger.create(
        tmp_path, {"n1": [ledger.StandIn(1024), ledger.StandIn(2048)], "n11": [ledger.StandIn(4096)]}
    )
    first = standin_gpus(tmp_path, "n1")
    assert [(gpu.number, gpu.memory_mib) for gpu in first] == [(0, 1024), (1, 2048)]
    assert first == standin_gpus(tmp_path, "n1")
    assert not {gpu.uuid for gpu in first} & {gpu.uuid for gpu in standin_gpus(tmp_path, "n11")}
