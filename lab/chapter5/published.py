"""Which real models the dissertation estimates, how they are trained, and the figures that it prints.

Bars of figures 5.11 to 5.13 carry no numbers: what the text says of them is here, and table 6.2's memory.
Sizes, optimizers and heads are those of the authors' public workloads.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Tuple

Table = Mapping[str, Any]


class Model(NamedTuple):
    """A real model and its training."""

    name: str
    job: Table
    """As in lab/networks/jobs.py, without a batch."""
    measured: Mapping[int, int]
    """Batch → MB of a GPU in table 6.2."""


def _image(source: str, build: str, size: int = 224, **args: Any) -> Table:
    return {"source": source, "family": "cnn", "build": build, "task": "image", "size": size, "args": args,
            "optimizer": "adam", "precision": "fp32"}  # fmt: skip


def _cifar(build: str) -> Table:
    job = {**_image("timm", build, 32, num_classes=100), "name": f"{build}_cifar100"}
    return {**job, "task_args": {"classes": 100}, "optimizer": "adamw"}


def _text(build: str, name: str, task: str, **args: Any) -> Table:
    return {"source": "transformers", "family": "text", "build": build, "name": name, "task": task,
            "size": 512, "args": args, "optimizer": "adamw", "precision": "fp32"}  # fmt: skip


_BERT, _XLNET = "BertForMaskedLM", "XLNetForSequenceClassification"
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
FIGURES: Tuple[Model, ...] = (
    Model("vgg16", _image("torchvision", "vgg16"), {32: 8222, 64: 13642, 128: 24408}),
    Model("resnet50", _image("torchvision", "resnet50"), {32: 5262, 64: 8536, 128: 15120}),
    Model("Xception", _image("timm", "legacy_xception"), {32: 7202, 64: 11520, 128: 22978}),
    Model("mobilenet_v2", _image("torchvision", "mobilenet_v2"), {32: 4544, 64: 7224, 128: 12578}),
    Model("efficientnet_b0", _image("torchvision", "efficientnet_b0"), {32: 4958, 64: 7844, 128: 13832}),
    Model(
        "inception",
        _image("torchvision", "inception_v3", 299, aux_logits=False),
        {32: 6346, 64: 10560, 128: 19018},
    ),
    Model("BERT_base", _text(_BERT, "bert-base-mlm", "lm", vocab_size=28996), {32: 20774}),
    Model("BERT_large", _text(_BERT, "bert-large-mlm", "lm", vocab_size=28996, **_LARGE), {8: 13568}),
    Model("xlnet_base", _text(_XLNET, "xlnet-base", "text", d_model=768, n_layer=12, n_head=12, d_inner=3072),
          {8: 9718}),
    Model("xlnet_large", _text(_XLNET, "xlnet-large", "text"), {4: 14546}),
    Model("gpt2_large", _text("GPT2LMHeadModel", "gpt2-large", "lm", n_embd=1280, n_layer=36, n_head=20),
          {8: 27902, 4: 27902}),
)  # fmt: skip
"""The last three ran on two GPUs: xlnet's have such a batch each, gpt2_large's share one of 8."""
LIGHT: Tuple[Model, ...] = (
    Model("efficientnet_b0, CIFAR", _cifar("efficientnet_b0"), {32: 1858, 64: 1912, 128: 2054}),
    Model("resnet18, CIFAR", _cifar("resnet18"), {32: 1960, 64: 1966, 128: 2006}),
    Model("resnet34, CIFAR", _cifar("resnet34"), {32: 2152, 64: 2168, 128: 2190}),
    Model("mobilenetv3 S, CIFAR", _cifar("mobilenetv3_small_100"), {32: 1784, 64: 1790, 128: 1824}),
)
"""Table 6.2's models below its line, which are in no figure."""


class Said(NamedTuple):
    """What the text says of a bar: estimated less actual memory."""

    model: str
    batch: int
    estimator: str
    gb: float


SAID: Tuple[Said, ...] = (
    Said("vgg16", 128, "faketensor", -14.6),
    Said("vgg16", 128, "gpumemnet", -0.5),
    Said("inception", 128, "gpumemnet", -3.1),
    Said("gpt2_large", 8, "horus-authors", 100.0),
    Said("gpt2_large", 8, "gpumemnet", 20.0),
)
