from __future__ import annotations

from slurm_gpumem.config.load import SharingPolicy
from slurm_gpumem.estimators.types import Utilization
from slurm_gpumem.submission.activity import activity_of


def test_a_share_counts_on_turns_unless_one_server_runs_everybodys_jobs() -> None:
    medium = Utilization(40.0, 16.0, 16.0, 0.03, {}, 0.8, launch_bound=False, source="trace", measured=True)
    shares = {}
    for way in ("per-user", "shared", "timeslice", "off"):
        found = activity_of(medium, 1.5, None, SharingPolicy(node_mps=way))
        assert found is not None
        shares[way] = found.share
    # Neighbours may be somebody else's: then they take turns, with a server for each user as without any.
    assert shares["per-user"] == shares["timeslice"] == shares["off"] > shares["shared"]
