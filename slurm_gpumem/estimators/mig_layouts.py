"""The ways to divide a GPU into MIG instances: which profiles fit beside each other.

An instance occupies memory slices from one of a few places on (`nvidia-smi mig -lgipp`), and two must not
overlap. A100, H100, H200, B200 and their kin have eight memory slices and seven compute slices, A30 and
RTX PRO 6000 four of each; the places are those of NVIDIA's MIG user guide.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Dict, FrozenSet, List, Mapping, Set, Tuple

from slurm_gpumem.estimators.mig import Profile, profiles_of

Layout = Tuple[str, ...]
"""Profiles of the instances of one GPU, the largest first."""

_PLACES: Mapping[int, Mapping[Tuple[int, int], Tuple[int, ...]]] = {
    8: {
        (1, 1): (0, 1, 2, 3, 4, 5, 6),
        (1, 2): (0, 2, 4, 6),
        (2, 2): (0, 2, 4),
        (3, 4): (0, 4),
        (4, 4): (0,),
        (7, 8): (0,),
    },
    4: {(1, 1): (0, 1, 2, 3), (2, 2): (0, 2), (4, 4): (0,)},
}
"""By memory slices of the GPU: compute and memory slices of a profile → where in the memory it may begin."""


@lru_cache(maxsize=64)
def layouts(gpu: str) -> Tuple[Layout, ...]:
    """The layouts of a GPU of the table to which no instance can be added, but the one of the whole GPU.

    Empty for a GPU without MIG.
    """
    profiles = {profile.name: profile for profile in profiles_of(gpu)}
    found: Set[Layout] = set()
    _extend(profiles, {name: _places(profile) for name, profile in profiles.items()}, (), frozenset(), found)
    # Placed otherwise, the same instances may leave room for one more.
    full = [layout for layout in found if not any(fits(gpu, (*layout, name)) for name in profiles)]
    divided = [layout for layout in full if len(layout) > 1]
    return tuple(sorted(divided, key=lambda layout: (len(layout), layout)))


def fits(gpu: str, layout: Layout) -> bool:
    """Whether one GPU can have all of these instances at a time."""
    profiles = {profile.name: profile for profile in profiles_of(gpu)}
    if not all(name in profiles for name in layout):
        return False
    return _placed([_places(profiles[name]) for name in layout], frozenset())


def _placed(rest: List[Tuple[FrozenSet[int], ...]], taken: FrozenSet[int]) -> bool:
    if not rest:
        return True
    return any(_placed(rest[1:], taken | place) for place in rest[0] if not place & taken)


def _extend(
    profiles: Mapping[str, Profile],
    places: Mapping[str, Tuple[FrozenSet[int], ...]],
    chosen: Layout,
    taken: FrozenSet[int],
    found: Set[Layout],
) -> None:
    free = [(name, place) for name, able in places.items() for place in able if not place & taken]
    if not free:
        found.add(tuple(sorted(chosen, key=lambda name: (-profiles[name].mib, -profiles[name].slices, name))))
        return
    # The next instance covers the first slice that any can still have: each set of places is met once.
    first = min(min(place) for _, place in free)
    for name, place in free:
        if min(place) == first:
            _extend(profiles, places, (*chosen, name), taken | place, found)


def _places(profile: Profile) -> Tuple[FrozenSet[int], ...]:
    """The sets of memory slices that an instance may occupy."""
    of_gpu = _slices_of_gpu(profile)
    size = max(1, round(profile.mib / profile.most_mib * of_gpu))
    starts = _PLACES[of_gpu].get((profile.slices, size), ())
    return tuple(frozenset(range(start, start + size)) for start in starts)


def _slices_of_gpu(profile: Profile) -> int:
    return 8 if profile.most_slices == 7 else profile.most_slices


def counted(layout: Layout) -> Dict[str, int]:
    """Instances of each profile."""
    return {name: layout.count(name) for name in dict.fromkeys(layout)}
