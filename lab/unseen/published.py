"""Figures 5.11 to 5.13 in numbers: training jobs on an A100 of 40 GB and what three estimators said of them.

MiB to the nearest hundred. FakeTensor gave no answer for Transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Tuple


@dataclass(frozen=True)
class Published:
    """One group of bars."""

    name: str
    batch: int
    actual: int
    gpumemnet: int
    faketensor: Optional[int]
    horus: int
    text: str = ""
    """Key of the model's texts among the measured runs; "" for a model that is traced for this page."""
    build: str = ""
    """Class of transformers,"""
    args: Mapping[str, Any] = field(default_factory=dict)
    """and its configuration."""

    @property
    def optimizer(self) -> str:
        """Adam for images, AdamW for text."""
        return "adamw" if self.build else "adam"


LENGTH = 512
"""Tokens of every Transformer's sample."""
_BERT = {"vocab_size": 28996}
_LARGE_BERT = {
    **_BERT,
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
_XLNET = {"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072}
_LARGE_XLNET = {"d_model": 1024, "n_layer": 24, "n_head": 16, "d_inner": 4096}
_MASKED, _CLASSES, _NEXT = "BertForMaskedLM", "XLNetForSequenceClassification", "GPT2LMHeadModel"

CNNS: Tuple[Published, ...] = (
    Published("vgg16", 32, 8200, 16000, 3100, 21500, "torchvision/vgg16@224"),
    Published("vgg16", 128, 24400, 24000, 9900, 82100, "torchvision/vgg16@224"),
    Published("resnet50", 32, 5300, 16000, 2700, 7900, "torchvision/resnet50@224"),
    Published("resnet50", 128, 15100, 24000, 10700, 28900, "torchvision/resnet50@224"),
    Published("xception", 32, 7200, 16000, 4200, 8500, "timm/legacy_xception@224"),
    Published("xception", 128, 23000, 24000, 16600, 31500, "timm/legacy_xception@224"),
    Published("mobilenet_v2", 32, 4500, 8000, 2400, 3600, "torchvision/mobilenet_v2@224"),
    Published("mobilenet_v2", 128, 12600, 16000, 9700, 12000, "torchvision/mobilenet_v2@224"),
    Published("efficientnet_b0", 32, 5000, 8000, 2700, 3900, "torchvision/efficientnet_b0@224"),
    Published("efficientnet_b0", 128, 13800, 16000, 10900, 13000, "torchvision/efficientnet_b0@224"),
    Published("inception_v3", 32, 6300, 8000, 1600, 6000, "timm/inception_v3@299"),
    Published("inception_v3", 128, 19000, 16000, 6300, 21300, "timm/inception_v3@299"),
)
TRANSFORMERS: Tuple[Published, ...] = (
    Published("BERT_base", 32, 20800, 32000, None, 17500, build=_MASKED, args=_BERT),
    Published("BERT_large", 8, 13600, 24000, None, 13300, build=_MASKED, args=_LARGE_BERT),
    Published("xlnet_base", 8, 9700, 16000, None, 3700, build=_CLASSES, args=_XLNET),
    Published("xlnet_large", 4, 14500, 16000, None, 5300, build=_CLASSES, args=_LARGE_XLNET),
    Published(
        "gpt2_large", 8, 27900, 48000, None, 127700,
        build=_NEXT, args={"n_embd": 1280, "n_layer": 36, "n_head": 20},
    ),
    Published(
        "gpt2_xl", 2, 36200, 48000, None, 22800,
        build=_NEXT, args={"n_embd": 1600, "n_layer": 48, "n_head": 25},
    ),
)  # fmt: skip
