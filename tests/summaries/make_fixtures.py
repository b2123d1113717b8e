"""Make the fixtures again, with the real tools: python tests/summaries/make_fixtures.py --packages DIR.

Every tool version is installed on its own into DIR and runs in a process of its own. Beside each summary we
record what the live model says (parameters, calls of leaf modules, numbers they put out), so that the tests
compare a parser with the model and not with itself. Needs torch, timm (which needs a torchvision that fits
torch) and transformers; their versions are recorded with each summary. Installing timm may replace torch by a
newer one, so use an environment of its own. For Keras 2 name a Python with tensorflow 2.15 (--keras2-python);
without it those fixtures are left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Tuple

HERE = Path(__file__).resolve().parent
FIXTURES = HERE / "fixtures"
Fact = Dict[str, Any]

VISION = ["resnet18", "mobilenetv3", "efficientnet", "densenet", "vgg", "regnet"]
SMALL = ["lstm", "unet", "shared", "frozen", "transformer", "audio"]
EVERY = "*"
ALL_COLUMNS = ("kernel_size", "input_size", "output_size", "num_params", "mult_adds")
FULL = {"depth": 20, "col_names": (*ALL_COLUMNS, "trainable"), "row_settings": ("var_names", "depth")}
ASCII = {"depth": 20, "row_settings": ("ascii_only", "var_names")}

# (distribution, version) -> [(label, options, models)]
TOOLS: Dict[Tuple[str, str], List[Tuple[str, Dict[str, Any], Any]]] = {
    ("torchinfo", "1.8.0"): [
        ("depth3", {}, EVERY),
        ("depth20", {"depth": 20}, EVERY),
        ("full", FULL, EVERY),
        ("percent", {"depth": 20, "col_names": ("params_percent", *ALL_COLUMNS)}, ["resnet18", "shared"]),
        ("ascii", ASCII, ["resnet18", "vit", "shared", "lstm"]),
        ("bare", {"depth": 20, "row_settings": ()}, ["resnet18", "unet"]),
        ("verbose", {"depth": 20, "verbose": 2}, ["vit", "lstm", "transformer", "resnet18"]),
        ("hide-recursive", {"depth": 20, "row_settings": ("hide_recursive_layers", "depth")}, ["shared"]),
        ("no-input", {"depth": 20, "no_input": True}, ["resnet18", "bert"]),
        ("batch9", {"depth": 20, "batch": 9}, ["resnet18", "bert", "swin", "lstm", "lstm-time-first"]),
        ("depth1", {"depth": 1}, ["resnet18", "vit", "gpt2"]),
    ],
    ("torchinfo", "1.7.2"): [
        ("depth3", {}, VISION[:2] + SMALL),
        ("full", FULL, VISION[:2] + SMALL + ["vit", "gpt2"]),
    ],
    ("torchinfo", "1.6.6"): [
        ("depth3", {}, VISION[:2] + SMALL),
        ("columns", {"depth": 20, "col_names": ALL_COLUMNS}, VISION[:2] + SMALL),
    ],
    ("torchinfo", "1.5.4"): [
        ("depth3", {}, VISION[:2] + SMALL),
        ("columns", {"depth": 20, "col_names": ALL_COLUMNS, "verbose": 2}, VISION[:1] + SMALL),
    ],
    ("torchinfo", "0.1.5"): [
        ("depth3", {}, VISION[:2] + SMALL),
        ("columns", {"depth": 20, "col_names": ALL_COLUMNS, "verbose": 2}, VISION[:1] + SMALL),
    ],
    ("torch-summary", "1.4.5"): [
        ("depth3", {}, [*VISION[:2], "unet", "audio"]),
        ("columns", {"depth": 20, "col_names": ALL_COLUMNS}, [*VISION[:2], "unet", "audio"]),
        ("flat", {"depth": 20, "branching": False}, ["resnet18", "unet"]),
    ],
    ("torch-summary", "1.3.0"): [("depth20", {"depth": 20}, ["resnet18", "unet"])],
    ("torchsummary", "1.5.1"): [
        ("open", {}, [*VISION, "resnet50", "vit", "swin", "convnext", "unet", "shared", "frozen", "gru",
                      "two-inputs", "transformer", "volumes", "audio", "generator"]),
        ("batch32", {"batch_size": 32}, ["resnet18", "unet"]),
    ],
    ("torchsummary", "1.4"): [("open", {}, ["resnet18", "unet"])],
    ("pytorch-model-summary", "0.1.2"): [
        ("depth1", {}, [*VISION[:2], "unet", "lstm", "frozen"]),
        ("all", {"max_depth": None, "show_parent_layers": True},
         [*VISION[:2], "unet", "lstm", "frozen", "two-inputs", "shared", "gru"]),
        ("inputs", {"max_depth": None, "show_input": True}, ["resnet18", "unet"]),
        ("hierarchy", {"max_depth": None, "show_hierarchical": True}, ["resnet18", "unet"]),
    ],
    ("pytorch-model-summary", "0.1.1"): [("depth1", {}, ["resnet18", "unet"])],
    ("modelsummary", "1.1.7"): [
        ("inputs", {}, ["resnet18", "unet", "audio"]),
        ("outputs", {"show_input": False}, ["resnet18", "unet", "audio"]),
        ("hierarchy", {"show_hierarchical": True, "show_input": False}, [*VISION, *SMALL, "vit", "swin"]),
    ],
    ("print", "torch"): [("print", {}, EVERY)],
    ("keras", "3.15.1"): [("box", {}, EVERY), ("wide", {"line_length": 140}, EVERY)],
    ("keras", "3.8.0"): [("box", {}, ["tiny", "nested"])],
    ("keras", "3.0.5"): [("box", {}, ["tiny", "nested"])],
    ("keras", "2.15.0"): [("plain", {}, EVERY), ("narrow", {"line_length": 70}, ["tiny", "nested"])],
}  # fmt: skip


def main() -> None:
    """Make all fixtures, or in a child process those of one tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--packages", type=Path, required=True, help="where tool versions are installed")
    parser.add_argument("--keras2-python", help="a Python with tensorflow 2.15")
    parser.add_argument("--only", help="renew one tool's fixtures and keep the others")
    parser.add_argument("--one", nargs=2, metavar=("TOOL", "VERSION"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        _run_tool((args.one[0], args.one[1]), args.out)
        return
    with tempfile.TemporaryDirectory() as folder:
        if args.only:
            _unpack(Path(folder), without=args.only)
        for tool, version in TOOLS:
            if args.only not in (None, tool):
                continue
            _in_child(tool, version, args.packages, Path(folder), args.keras2_python)
        _pack(Path(folder))


def _in_child(tool: str, version: str, packages: Path, out: Path, keras2: str) -> None:
    python, target = sys.executable, packages / f"{tool}=={version}"
    if (tool, version) == ("keras", "2.15.0"):
        if not keras2:
            print("keras 2.15.0: left out, no --keras2-python")
            return
        python = keras2
    elif tool != "print" and not target.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(target), f"{tool}=={version}"]
        subprocess.run(pip if tool == "keras" else [*pip, "--no-deps"], check=True)
    env = dict(
        os.environ, PYTHONPATH=os.pathsep.join([str(target), str(HERE)]), KERAS_BACKEND="torch", COLUMNS="120"
    )
    command = [python, __file__, "--packages", str(packages), "--one", tool, version, "--out", str(out)]
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    print(f"{tool} {version}: {len(list(out.glob(f'{tool}-{version}*.txt')))} summaries")
    if result.returncode:
        print(result.stderr[-3000:])


def _unpack(folder: Path, without: str) -> None:
    facts = json.loads((FIXTURES / "expected.json").read_text())
    with tarfile.open(FIXTURES / "summaries.tar.xz") as archive:
        for name, fact in facts.items():
            content = archive.extractfile(f"{name}.txt")
            if fact["tool"] != without and content is not None:
                (folder / f"{name}.txt").write_bytes(content.read())
                (folder / f"{name}.json").write_text(json.dumps(fact))


def _pack(folder: Path) -> None:
    FIXTURES.mkdir(exist_ok=True)
    facts = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    rows = [f"{json.dumps(name)}: {json.dumps(fact, sort_keys=True)}" for name, fact in facts.items()]
    (FIXTURES / "expected.json").write_text("{\n" + ",\n".join(rows) + "\n}\n")
    (FIXTURES / "README.md").write_text(_readme(facts))
    with tarfile.open(FIXTURES / "summaries.tar.xz", "w:xz", preset=9) as archive:
        for path in sorted(folder.glob("*.txt")):
            info = tarfile.TarInfo(path.name)
            info.size = path.stat().st_size
            archive.addfile(info, io.BytesIO(path.read_bytes()))


def _readme(facts: Dict[str, Fact]) -> str:
    """List the tools and the versions of what they showed."""
    counts: Dict[Tuple[str, str], int] = {}
    for fact in facts.values():
        key = (fact["tool"], fact["version"])
        counts[key] = counts.get(key, 0) + 1
    libraries = "; ".join(sorted({fact["made_with"] for fact in facts.values() if "made_with" in fact}))
    rows = [f"| {tool} | {version} | {count} |" for (tool, version), count in sorted(counts.items())]
    return "\n".join(
        [
            "# Summaries made by the real tools",
            "",
            f"{len(facts)} summaries in `summaries.tar.xz`, what the live models said in `expected.json`;",
            f"both and this page are written by `make_fixtures.py`. The models come from {libraries}.",
            "",
            "| tool | version | summaries |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _run_tool(tool: Tuple[str, str], out: Path) -> None:
    for label, options, models in TOOLS[tool]:
        source = _keras_models() if tool[0] == "keras" else _torch_models()
        for name, build in source.items():
            if models != EVERY and name not in models:
                continue
            try:
                text, fact = MAKERS[tool[0]](build, dict(options))
            except Exception as error:  # noqa: BLE001  (an old tool that cannot show a new model)
                print(f"{tool} {label} {name}: {type(error).__name__}: {error}", file=sys.stderr)
                continue
            stem = f"{tool[0]}-{tool[1]}-{label}-{name}"
            fact.update(tool=tool[0], version=tool[1], label=label, model=name)
            (out / f"{stem}.txt").write_text(text, encoding="utf-8")
            (out / f"{stem}.json").write_text(json.dumps(fact))


def _torch_models() -> Dict[str, Any]:
    from tests.summaries.fixture_models import MODELS

    return MODELS


def _facts(model: Any, inputs: Any) -> Fact:
    """Ask the live model what its summary should say."""
    import torch

    calls: List[Tuple[str, int]] = []

    def hook(module: Any, _: Any, output: Any) -> None:
        first = output[0] if isinstance(output, (tuple, list)) else output
        calls.append((type(module).__name__, first.numel() if isinstance(first, torch.Tensor) else 0))

    # MultiheadAttention uses its child's weights without calling it.
    leaves = [
        module
        for module in model.modules()
        if not any(module.children()) or isinstance(module, torch.nn.MultiheadAttention)
    ]
    handles = [leaf.register_forward_hook(hook) for leaf in leaves]
    with torch.no_grad():
        model(*inputs)
    for handle in handles:
        handle.remove()
    parameters = list(model.parameters())
    by_module = sum(
        parameter.numel() for module in model.modules() for parameter in module.parameters(recurse=False)
    )
    return {
        "name": type(model).__name__,
        "params": sum(parameter.numel() for parameter in parameters),
        # A weight that two modules share counts twice here, as in most tools.
        "params_by_module": by_module,
        "trainable": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        "batch": 4,
        "leaf_calls": len(calls),
        "elements": sum(count for _, count in calls),
        "input": [list(tensor.shape) for tensor in inputs],
        "made_with": ", ".join(
            f"{name} {metadata.version(name)}" for name in ("torch", "timm", "transformers")
        ),
    }


@contextlib.contextmanager
def _captured() -> Iterator[io.StringIO]:
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        yield text


def _torchinfo(build: Any, options: Dict[str, Any]) -> Tuple[str, Fact]:
    import torchinfo

    model, inputs = build()
    fact = _facts(model.eval(), inputs)
    batch = options.pop("batch", 4)
    if batch != 4:
        dim = 1 if model.__class__.__name__ == "LstmClassifier" and inputs[0].shape[0] == 20 else 0
        inputs = tuple(_with_batch(tensor, dim, batch) for tensor in inputs)
        fact = dict(_facts(model, inputs), batch=batch)
    if options.pop("no_input", False):
        return str(torchinfo.summary(model, verbose=0, **options)), fact
    options.setdefault("verbose", 0)
    names = options.pop("col_names", None)
    if names:
        options["col_names"] = names
    with _captured():
        result = torchinfo.summary(model, input_data=list(inputs), device="cpu", **options)
    return str(result), fact


def _with_batch(tensor: Any, dim: int, batch: int) -> Any:
    shape = list(tensor.shape)
    shape[dim] = batch
    return tensor.new_zeros(shape)


def _torch_summary(build: Any, options: Dict[str, Any]) -> Tuple[str, Fact]:
    import torchsummary

    model, inputs = build()
    fact = dict(_facts(model.eval(), inputs), batch=None)
    shapes = [tuple(tensor.shape[1:]) for tensor in inputs]
    with _captured() as text:
        result = torchsummary.summary(model, shapes[0] if len(shapes) == 1 else shapes, **options)
    return text.getvalue() or str(result), fact


def _torchsummary(build: Any, options: Dict[str, Any]) -> Tuple[str, Fact]:
    from torchsummary import summary

    model, inputs = build()
    fact = dict(_facts(model.eval(), inputs), batch=options.get("batch_size"))
    shapes = [tuple(tensor.shape[1:]) for tensor in inputs]
    options.setdefault("device", "cpu")
    with _captured() as text:
        summary(model, shapes[0] if len(shapes) == 1 else shapes, **options)
    return text.getvalue(), fact


def _pytorch_model_summary(build: Any, options: Dict[str, Any]) -> Tuple[str, Fact]:
    from pytorch_model_summary import summary

    model, inputs = build()
    return summary(model, *inputs, **options) + "\n", _facts(model.eval(), inputs)


def _modelsummary(build: Any, options: Dict[str, Any]) -> Tuple[str, Fact]:
    from modelsummary import summary

    model, inputs = build()
    fact = _facts(model.eval(), inputs)
    with _captured() as text:
        summary(model, *inputs, **options)
    return text.getvalue(), dict(fact, batch=None)


def _print(build: Any, options: Dict[str, Any]) -> Tuple[str, Fact]:
    del options
    model, inputs = build()
    return f"{model}\n", dict(_facts(model.eval(), inputs), batch=None)


def _keras_models() -> Dict[str, Callable[[], Any]]:
    import keras
    from keras import layers

    def tiny() -> Any:
        image = keras.Input((32, 32, 3))
        left = layers.Conv2D(8, 3, padding="same", activation="relu")(image)
        x = layers.Add()([left, layers.Conv2D(8, 1)(image)])
        x = layers.GlobalAveragePooling2D()(layers.BatchNormalization()(x))
        return keras.Model(image, layers.Dense(10)(x), name="tiny")

    def nested() -> Any:
        return keras.Sequential([keras.Input((32, 32, 3)), tiny(), layers.Dense(3)], name="outer")

    def lstm() -> Any:
        stack = [layers.Embedding(1000, 16), layers.Bidirectional(layers.LSTM(32)), layers.Dense(1)]
        return keras.Sequential([keras.Input((20,)), *stack], name="lstm")

    def compiled() -> Any:
        model = lstm()
        model.compile(optimizer="adam", loss="mse")
        return model

    def two_inputs() -> Any:
        first, second = keras.Input((10,), name="first"), keras.Input((4,), name="second")
        shared = layers.Dense(6, name="shared")
        x = layers.Concatenate()([shared(layers.Dense(4)(first)), shared(second)])
        return keras.Model([first, second], [layers.Dense(2, name="a")(x), layers.Dense(1, name="b")(x)])

    def frozen() -> Any:
        model = tiny()
        model.layers[1].trainable = False
        return model

    def application(name: str, **options: Any) -> Callable[[], Any]:
        return lambda: getattr(keras.applications, name)(weights=None, **options)

    return {
        "tiny": tiny,
        "nested": nested,
        "nested-open": nested,
        "lstm": lstm,
        "compiled": compiled,
        "two-inputs": two_inputs,
        "frozen": frozen,
        "resnet50": application("ResNet50"),
        "mobilenetv3": application("MobileNetV3Small"),
        "efficientnet": application("EfficientNetB0"),
        "densenet": application("DenseNet121"),
    }


def _keras(build: Any, options: Dict[str, Any]) -> Tuple[str, Fact]:
    model = build()
    if model.name == "outer" and "line_length" not in options:
        options["expand_nested"] = True
    if model.name == "tiny":
        options["show_trainable"] = True
    with _captured() as text:
        model.summary(**options)

    def count(weights: Any) -> int:
        sizes = [tuple(weight.shape) for weight in weights]
        total = 0
        for shape in sizes:
            product = 1
            for size in shape:
                product *= int(size)
            total += product
        return total

    return text.getvalue(), {
        "name": model.name,
        "params": count(model.weights),
        "params_by_module": count(model.weights),
        "trainable": count(model.trainable_weights),
        "batch": None,
        "layers": len(model.layers),
    }


MAKERS: Dict[str, Callable[[Any, Dict[str, Any]], Tuple[str, Fact]]] = {
    "torchinfo": _torchinfo,
    "torch-summary": _torch_summary,
    "torchsummary": _torchsummary,
    "pytorch-model-summary": _pytorch_model_summary,
    "modelsummary": _modelsummary,
    "print": _print,
    "keras": _keras,
}

if __name__ == "__main__":
    main()
