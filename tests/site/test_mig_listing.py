"""gres lines of MIG instances from what the driver lists; recorded texts in nvidia-smi's layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm_gpumem.site.doctor.check_nodes import parse_gres_conf
from slurm_gpumem.site.nodes import Instance, ask_instances, parse_instances, parse_nvidia_smi
from slurm_gpumem.site.setup.plan import SitePlan
from slurm_gpumem.site.setup.render import gres_lines, lua_table, node_gres

LISTING = """\
+---------------------------------------------------------+
| GPU instances:                                          |
| GPU   Name               Profile  Instance   Placement  |
|                            ID       ID       Start:Size |
|=========================================================|
|   1  MIG 1g.18gb           19        9          2:1     |
+---------------------------------------------------------+
|   1  MIG 1g.18gb           19       11          3:1     |
+---------------------------------------------------------+
|   1  MIG 3g.71gb            9        2          4:4     |
+---------------------------------------------------------+
"""
MINORS = "config 1\nmonitor 2\n" + "".join(
    f"gpu1/gi{gi}/access {number}\ngpu1/gi{gi}/ci0/access {number + 1}\n"
    for gi, number in ((9, 219), (11, 237), (2, 156))
)
CARDS = "NVIDIA H200, 143771\nNVIDIA H200, 143771\n"


def test_a_card_with_instances_is_its_instances_and_the_other_stays_whole() -> None:
    group = parse_nvidia_smi(CARDS, "n1", parse_instances(LISTING, MINORS))
    assert group is not None
    plan = SitePlan((group,))
    whole = "gpu:h200:1,gpu:h200_1g.18gb:2,gpu:h200_3g.71gb:1"
    assert node_gres(plan, group) == f"{whole},shard:139"
    assert node_gres(replace(plan, version=(22, 5)), group) == f"{whole},shard:h200:139"
    caps = "/dev/nvidia1,/dev/nvidia-caps/nvidia-cap"
    assert gres_lines(plan, with_gpus=True) == [
        "NodeName=n1 Name=gpu Type=h200 File=/dev/nvidia0",
        f"NodeName=n1 Name=gpu Type=h200_1g.18gb MultipleFiles={caps}219,/dev/nvidia-caps/nvidia-cap220",
        f"NodeName=n1 Name=gpu Type=h200_1g.18gb MultipleFiles={caps}237,/dev/nvidia-caps/nvidia-cap238",
        f"NodeName=n1 Name=gpu Type=h200_3g.71gb MultipleFiles={caps}156,/dev/nvidia-caps/nvidia-cap157",
        "NodeName=n1 Name=shard Type=h200 Count=139 File=/dev/nvidia0",
    ]


def test_the_plug_in_is_told_of_the_instances_apart_from_what_is_shared() -> None:
    group = parse_nvidia_smi(CARDS, "n1", parse_instances(LISTING, MINORS))
    assert group is not None
    table = lua_table(SitePlan((group,)))
    assert '["*"] = { { type = "h200_1g.18gb", memory_mib = 16384 }, { type = "h200_3g.71gb"' in table
    assert table.count("shares =") == 1


def test_a_node_with_instances_only_has_no_shares() -> None:
    listing = LISTING + LISTING.replace("|   1 ", "|   0 ")
    group = parse_nvidia_smi(CARDS, "n1", parse_instances(listing, MINORS))
    assert group is not None
    assert node_gres(SitePlan((group,)), group) == "gpu:h200_1g.18gb:4,gpu:h200_3g.71gb:2"


@pytest.mark.parametrize(
    ("minors", "files"),
    [("", ()), ("gpu1/gi9/access 219\n", ()), (MINORS + "gpu1/gi9/ci1/access 221\n", ())],
)
def test_an_instance_without_files_of_its_own_gets_none(minors: str, files: tuple) -> None:
    assert parse_instances(LISTING, minors)[0] == Instance(1, "1g.18gb", files)


@pytest.mark.parametrize("text", ["", "No MIG-enabled devices found.\n", "| GPU instances: |\n", "\x00|||\n"])
def test_what_lists_no_instance_is_none(text: str) -> None:
    assert parse_instances(text, MINORS) == ()


def test_a_machine_without_nvidia_smi_has_no_instances(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ask_instances() == ()


def test_an_instance_of_several_files_counts_once_in_gres_conf() -> None:
    group = parse_nvidia_smi(CARDS, "n1", parse_instances(LISTING, MINORS))
    assert group is not None
    read = parse_gres_conf("\n".join(gres_lines(SitePlan((group,)), with_gpus=True)))
    assert (read.units("n1", "gpu"), read.units("n1", "shard")) == (4, 139)
