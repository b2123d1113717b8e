from __future__ import annotations

import pytest

from lab.ground_truth import GroundTruth, load_ground_truth


@pytest.fixture(scope="session")
def ground_truth() -> GroundTruth:
    """The repository's measured runs, read once."""
    return load_ground_truth()
