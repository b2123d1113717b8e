"""The network of small-cnn.txt as code, to be traced: gpumem why docs/examples/small_cnn.py:SmallCnn."""

import torch
from torch import nn


class SmallCnn(nn.Module):
    """Two convolutions and a linear layer, for images of 32 x 32."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1),
            nn.BatchNorm2d(128),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(1),
        )
        self.classifier = nn.Linear(128, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Class scores of a batch of images."""
        return self.classifier(self.features(x).flatten(1))
