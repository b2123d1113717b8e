from __future__ import annotations

from slurm_gpumem.config.load import SharingPolicy
from slurm_gpumem.estimators.types import Utilization
from slurm_gpumem.submission.share.activity import activity_of, weigh_activity


def test_a_share_counts_on_turns_unless_one_server_runs_everybodys_jobs() -> None:
    medium = Utilization(40.0, 16.0, 16.0, 0.03, {}, 0.8, launch_bound=False, source="trace", measured=True)
    shares = {}
    for way in ("per-user", "shared", "timeslice", "off"):
        found = activity_of(medium, 1.5, None, SharingPolicy(node_mps=way))
        assert found is not None
        shares[way] = found.share
    # Neighbours may be somebody else's: then they take turns, with a server for each user as without any.
    assert shares["per-user"] == shares["timeslice"] == shares["off"] > shares["shared"]


def test_a_higher_limit_that_changes_nothing_is_said_to_do_so() -> None:
    busy = Utilization(90.0, 36.0, 36.0, 0.03, {}, 0.8, launch_bound=False, source="trace", measured=True)
    policy = SharingPolicy(node_mps="per-user", max_slowdown=2.0)
    for own in (3.0, 10.0):
        (found,), (warning,) = weigh_activity([busy], own, ["gpu"], policy)
        assert found is not None
        assert found.share == 0.9
        assert warning.startswith(f"max-slowdown {own:g} asks for no less than the site's 2")
    assert weigh_activity([busy], 1.5, ["gpu"], policy)[1] == []
    assert weigh_activity([busy], None, ["gpu"], policy)[1] == []
