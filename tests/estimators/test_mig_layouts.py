"""Layouts of MIG instances: what NVIDIA's guide and nvidia-smi allow, and nothing else."""

from __future__ import annotations

import pytest

from slurm_gpumem.data import data_path
from slurm_gpumem.estimators.mig import profile_names, profiles_of
from slurm_gpumem.estimators.mig_layouts import fits, layouts
from slurm_gpumem.toml_file import load_toml

GPUS = tuple(load_toml(data_path("models", "mig.toml")))


@pytest.mark.parametrize(
    ("gpu", "layout", "possible"),
    [
        ("a100", ("1g.5gb",) * 7, True),
        ("a100", ("1g.5gb",) * 8, False),
        ("a100", ("3g.20gb", "3g.20gb"), True),
        ("a100", ("4g.20gb", "3g.20gb"), True),
        ("a100", ("4g.20gb", "4g.20gb"), False),
        ("a100", ("2g.10gb",) * 3 + ("1g.5gb",), True),
        ("a100", ("2g.10gb",) * 4, False),
        ("a100", ("3g.20gb", "2g.10gb", "2g.10gb"), True),
        # Eight memory slices would do, but a 2g begins at 0, 2 or 4, of which a 4g takes two.
        ("a100", ("4g.20gb", "2g.10gb", "2g.10gb"), False),
        ("a100", ("1g.10gb",) * 4, True),
        ("h200", ("3g.71gb", "1g.18gb", "1g.18gb", "1g.18gb", "1g.18gb"), True),
        ("h200", ("7g.141gb", "1g.18gb"), False),
        ("h200", ("3g.40gb",), False),
        ("a30", ("2g.12gb", "1g.6gb", "1g.6gb"), True),
        ("a30", ("1g.6gb",) * 5, False),
        ("v100", ("1g.5gb",), False),
    ],
)
def test_instances_stand_beside_each_other_where_their_placements_allow_it(
    gpu: str, layout: tuple[str, ...], possible: bool
) -> None:
    assert fits(gpu, layout) is possible


@pytest.mark.parametrize("gpu", GPUS)
def test_every_layout_fits_and_nothing_can_be_added_to_it(gpu: str) -> None:
    names = profile_names([gpu])
    assert layouts(gpu)
    for layout in layouts(gpu):
        assert fits(gpu, layout), layout
        assert not any(fits(gpu, (*layout, name)) for name in names), layout


@pytest.mark.parametrize("gpu", GPUS)
def test_every_profile_of_the_table_has_a_place(gpu: str) -> None:
    for profile in profiles_of(gpu):
        assert fits(gpu, (profile.name,)), profile


@pytest.mark.parametrize("gpu", GPUS)
def test_no_layout_has_more_memory_or_multiprocessors_than_the_gpu(gpu: str) -> None:
    profiles = {profile.name: profile for profile in profiles_of(gpu)}
    for layout in layouts(gpu):
        # Sizes that are computed from profiles' names are rounded up there.
        assert sum(profiles[name].mib for name in layout) <= 1.03 * profiles[layout[0]].most_mib
        assert sum(profiles[name].slices for name in layout) <= profiles[layout[0]].most_slices
