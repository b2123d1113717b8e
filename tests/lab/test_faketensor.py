"""FakeTensorMode as the publication used it: its bars for VGG-16 come out again."""

from __future__ import annotations

from typing import List

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from lab.faketensor import image_batch, live_peak_mib  # noqa: E402

PUBLISHED_MIB = {32: 3121.3, 128: 9894.4}


def _vgg16() -> nn.Module:
    layers: List[nn.Module] = []
    before = 3
    for count, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            layers += [nn.Conv2d(before, count, 3, padding=1), nn.ReLU(True)]
            before = count
        layers.append(nn.MaxPool2d(2, 2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(25088, 4096), nn.ReLU(True), nn.Dropout()]
    layers += [nn.Linear(4096, 4096), nn.ReLU(True), nn.Dropout(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers)


@pytest.mark.parametrize("batch", sorted(PUBLISHED_MIB))
def test_it_answers_as_the_publication_does_for_vgg16(batch: int) -> None:
    with torch.device("meta"):
        model = _vgg16()
    # Weights without values: memory that is never touched.
    found = live_peak_mib(model.to_empty(device="cpu"), lambda: image_batch(batch, 224, "input"))
    assert found == pytest.approx(PUBLISHED_MIB[batch], abs=1)
