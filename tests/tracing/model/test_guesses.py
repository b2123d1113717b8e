"""What is guessed of a model, its input, its loss and its data is what it was; WRITE=1 keeps a wanted change.

Libraries of models are stood in for by modules with the same tables, as neither is installed everywhere.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Callable, Dict, List

import pytest

from slurm_gpumem.errors import GpumemError
from tests.support.kept import assert_kept, plain
from tests.support.needs import needs_torch

pytestmark = needs_torch
KEPT = Path(__file__).with_name("guesses.json")


def _told(function: Callable[..., Any], *args: Any, **named: Any) -> str:
    try:
        return repr(plain(function(*args, **named)))
    except (GpumemError, IndexError) as error:
        return f"{type(error).__name__}: {error}"


def _library(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    vars(module).update(members)
    monkeypatch.setitem(sys.modules, name, module)


class _Config:
    def __init__(self, **given: Any) -> None:
        if "wrong" in given:
            raise TypeError("wrong is no size")
        self.given = given
        vars(self).update(given)

    @classmethod
    def from_dict(cls, given: Dict[str, Any]) -> _Config:
        return cls(**given)


class _Made:
    """Whatever is built: its class and its configuration."""

    config_class: Any = None

    def __init__(self, config: Any) -> None:
        self.config = config


def _transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["BertForMaskedLM", "BertForCTC", "BertModel", "GPTLMHeadModel", "T5Model", "WhisperModel"]
    kinds: Dict[str, Any] = {name: type(name, (_Made,), {}) for name in names}
    kinds["BertModel"].config_class = _Config
    kinds["T5Config"] = type("T5Config", (_Config,), {"model_type": "t5", "is_encoder_decoder": True})

    def cached(place: str, local_files_only: bool, **arguments: Any) -> Any:
        if place != "me/cached":
            raise OSError("not here")
        return _Config(model_type="bert", architectures=["BertForCTC"], size=arguments["size"])

    _library(
        monkeypatch, "transformers", __version__="4.9", **kinds,
        AutoConfig=SimpleNamespace(from_pretrained=cached),
    )  # fmt: skip

    class Mapping(Dict[str, Any]):
        pass

    by_type = {
        name: type(name, (_Config,), {"model_type": name, "architectures": None})
        for name in ("bert", "gpt", "t5", "x-lm", "none")
    }
    _library(
        monkeypatch, "transformers.models.auto.configuration_auto", CONFIG_MAPPING=by_type,
        CONFIG_MAPPING_NAMES=dict.fromkeys(["bert", "gpt", "t5", "x_lm", "none"], ""),
    )  # fmt: skip
    by_type["x_lm"] = by_type.pop("x-lm")
    _library(
        monkeypatch, "transformers.models.auto.modeling_auto",
        MODEL_FOR_MASKED_LM_MAPPING_NAMES={"bert": "BertForMaskedLM"},
        MODEL_FOR_CTC_MAPPING_NAMES={"bert": ("BertForCTC", "other"), "gpt": "Missing", "t5": ()},
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES={"gpt": "GPTLMHeadModel", "bert": "BertModel"},
        MODEL_MAPPING_NAMES={"bert": "BertModel", "gpt": "GPTLMHeadModel", "t5": "T5Model"},
    )  # fmt: skip


def test_models_of_transformers_and_timm_are_chosen_as_they_were(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from slurm_gpumem.tracing.model import hub

    _transformers(monkeypatch)
    files = {
        "ours.json": '{"model_type": "bert", "architectures": ["Missing", "BertForCTC"], "layers": 3}',
        "new.json": '{"model_type": "newer"}', "none.json": "{}", "list.json": "[]", "bad.json": "{",
        "t5.json": '{"model_type": "t5", "is_encoder_decoder": true, "pad_token_id": 7}',
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    said = {}
    places = [
        "BertModel",
        "T5Config",
        "bert",
        "BERT",
        "gpt",
        "t5",
        "x_lm",
        "none",
        "me/cached",
        "me/bert-own",
    ]
    for place in [*places, "gtp", "nothing like it", "BertModl", "absent.json", *files]:
        for head in ("", "ctc", "base", "causal-lm", "wrong"):
            for given in ({}, {"wrong": 1}):
                arguments: Dict[str, Any] = {"size": 5, **given}
                said[f"{place} {head} {given}"] = _told(hub.build_hugging_face, place, arguments, head)
    timm = SimpleNamespace(
        list_models=lambda: ["resnet18", "resnet50", "vit_tiny"],
        create_model=lambda name, pretrained, **more: (name, pretrained, more),
    )
    _library(monkeypatch, "timm", __version__="1.0", **vars(timm))
    for name in ("resnet18", "timm/resnet18.a1_in1k", "resnet1", "zzz"):
        said[f"timm {name}"] = _told(hub.build_timm, name, {"drop": 0.1})
    for cfg in (None, {}, {"input_size": (3, 224, 200)}):
        for embed in (None, SimpleNamespace(img_size=(96, 64))):
            model = SimpleNamespace(pretrained_cfg=cfg, patch_embed=embed)
            said[f"timm input {cfg} {bool(embed)}"] = _told(hub.timm_input, model)
    said["absent"] = _told(hub._library, "gpumem_absent", "hf:x")
    (tmp_path / "gpumem_broken.py").write_text("import gpumem_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    said["broken"] = _told(hub._library, "gpumem_broken", "hf:x")
    whole = {"models of libraries": "\n".join(f"{name}: {text}" for name, text in said.items())}
    assert_kept(KEPT, {name: text.replace(str(tmp_path), "DIR") for name, text in whole.items()})


CONFIGS: List[Dict[str, Any]] = [
    {}, {"max_position_embeddings": 4096}, {"n_positions": 0, "max_length": 77}, {"image_size": 96},
    {"vision_config": SimpleNamespace(image_size=(3, 64, 48), num_channels=1)}, {"num_channels": 0},
    {"num_frames": 8, "image_size": [32, 24]}, {"num_mel_bins": 128}, {"input_feat_per_channel": 40},
    {"num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 448, "max_length": 300},
    {"max_target_positions": 9000},
]  # fmt: skip
NAMES = (
    "BertForQuestionAnswering", "BertForMultipleChoice", "ViTForImageClassification", "XForCTC",
    "GPTLMHeadModel", "BertForTokenClassification", "XForAudioFrameClassification",
    "SegformerForSemanticSegmentation",
    "VideoMAEForVideoClassification", "WhisperForConditionalGeneration", "BertForNextSentencePrediction",
    "SpeechForSpeechSeq2Seq", "TModel",
)  # fmt: skip
MAINS = ("input_ids", "pixel_values", "pixel_values_videos", "input_features", "input_values", "boxes")


def test_batches_of_known_models_are_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from slurm_gpumem.tracing.model import given
    from slurm_gpumem.tracing.model.spec import (
        HUGGING_FACE,
        TIMM,
        InputSpec,
        Target,
        TraceRequest,
        parse_input,
    )

    def labelled(
        self: Any, input_ids: Any = None, labels: Any = None, start_positions: Any = None
    ) -> None: ...
    def contrasted(self: Any, pixel_values: Any = None, return_loss: Any = None) -> None: ...

    layers: List[Any] = [
        torch.nn.Embedding(9, 4), torch.nn.Linear(7, 3), torch.nn.Conv1d(2, 3, 3), torch.nn.Conv2d(4, 3, 3),
        torch.nn.Conv3d(5, 3, 3), torch.nn.GRU(6, 3), torch.nn.LayerNorm(8), torch.nn.ReLU(),
    ]  # fmt: skip
    said, wanted = {}, [(), (parse_input("128"),), (parse_input("input_ids=2,5"), parse_input("x=3"))]
    first = torch.empty(3, 4, 6, 8, device="meta")
    made = torch.zeros
    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros", lambda *shape, device, **more: made(*shape, device="meta", **more))
        for name in NAMES:
            for number, (config, main) in enumerate((c, m) for c in CONFIGS for m in MAINS):
                kind = type(name, (), {"forward": labelled if number % 3 else contrasted})
                model: Any = kind()
                model.config, model.main_input_name = SimpleNamespace(**config), main
                told = _told(given._usual_sizes, model, model.config, main)
                told += _told(given._labels, name, model.config, {main: first}, main)
                said[f"sizes {name} {number}"] = told
                if number % 11 != len(name) % 11:
                    continue
                inputs = wanted[number % 4 % 3]
                request = TraceRequest(Target(HUGGING_FACE, "x"), 3, inputs)
                said[f"{name} {number}"] = _told(lambda r=request, m=model: _shapes(given.make_batch(r, m)))
        for place, layer in enumerate(layers):
            model = torch.nn.Sequential(torch.nn.Identity(), layer)
            model.pretrained_cfg = {"input_size": (3, 64, 64)} if place % 2 else None
            for kind_, inputs, precision in (
                (TIMM, (), "fp32"), (TIMM, (), "bf16"), ("code", (), "fp32"),
                ("code", (InputSpec((-1, 5)), parse_input("m=4")), "bf16"),
            ):  # fmt: skip
                request = TraceRequest(Target(kind_, "x"), 2, tuple(inputs), precision=precision)
                told = _told(lambda r=request, m=model: _shapes(given.make_batch(r, m)))
                said[f"{place} {kind_} {precision}"] = told
    assert_kept(KEPT, {"batches": "\n".join(f"{name}: {text}" for name, text in said.items())})


def _shapes(value: Any) -> Any:
    """Tensors as their shapes, types and, where they are known, sums."""
    import torch

    if isinstance(value, torch.Tensor):
        return list(value.shape), str(value.dtype), value.requires_grad
    if isinstance(value, dict):
        return {name: _shapes(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shapes(one) for one in value]
    return _shapes(vars(value)) if hasattr(value, "__dict__") and not callable(value) else value


def test_losses_are_found_and_computed_as_they_were() -> None:
    import torch

    from slurm_gpumem.tracing.model import build, given, losses
    from slurm_gpumem.tracing.model.inputs import Inputs

    torch.manual_seed(0)
    one, other = (torch.randn((), requires_grad=True) for _ in range(2))
    whole, dead = torch.tensor(3), torch.tensor(1.5)
    image, text, rows, line = torch.randn(2, 3, 4, 4), torch.randn(2, 5, 7), torch.randn(4, 3), torch.randn(6)
    outputs: List[Any] = [
        one, image, text, rows, line, dead, {"loss": one, "logits": rows}, {"loss_box": one, "b_LOSS": other},
        {"a": one, "b": other}, {"a": one, "n": rows}, (one, other), [one, dead], (rows, one), (whole, rows),
        {"out": image}, {"n": whole, "m": rows}, SimpleNamespace(loss=one), SimpleNamespace(logits=rows),
        SimpleNamespace(last_hidden_state=text), [[whole, line]], [whole], (),
    ]  # fmt: skip
    targets: List[Any] = [
        None, torch.zeros(4).long(), torch.ones(4, 3), torch.zeros(2, 5).long(), torch.zeros(2, 4, 4).long(),
    ]  # fmt: skip
    said: Dict[str, str] = {}
    for place, output in enumerate(outputs):
        said[f"own {place}"] = _told(losses.own_loss, output)
        for kind in (None, "cross-entropy", "mse", "none", given.bce, given.sum_of_losses):
            for number, target in enumerate(targets):
                loss = losses.Loss(kind)
                try:
                    value = float(loss(output, target).sum())
                    told = f"{value:.4f} {loss.what} {loss(output, target).shape}"
                except Exception as error:  # noqa: BLE001  which it is, is kept
                    told = type(error).__name__
                said[f"{place} {getattr(kind, '__name__', kind)} {number}"] = told

    def taking(*names: str) -> Any:
        body = f"def forward(self, {', '.join(names)}): ..."
        space: Dict[str, Any] = {}
        exec(body, space)
        return type("Takes", (torch.nn.Module,), space)()

    models = [
        taking(*names.split()) for names in (
            "x", "x=None labels=None", "x targets=None", "x labels", "*xs",
            "x *,labels=None", "x y z=1", "x,/ y",
        )
    ]  # fmt: skip
    tokens = torch.zeros(3, 5).long()
    for place, model in enumerate(models):
        for number, inputs in enumerate((
            Inputs((tokens,)), Inputs((tokens, tokens)), Inputs((rows,), {"labels": tokens}),
            Inputs((), {"x": tokens}),
        )):  # fmt: skip
            name = losses.unfilled(model, inputs)
            made = losses.filled(lambda size, given=inputs: given, name or "labels")
            said[f"labels {place} {number}"] = repr([name, made and _shapes(made(3))])
        for batch in ((rows, rows), [rows, rows], (rows,), rows, (rows, rows, rows)):
            said[f"pair {place} {len(batch)}"] = str(losses.is_pair(model, batch))
    for filled in ("", "labels"):
        said[f"warnings {filled}"] = str([losses.warnings(filled, left, "mse") for left in ("", "y")])
    layer, block = torch.nn.Linear(2, 2), torch.nn.Sequential
    made_of: List[Any] = [layer, [layer], (layer, 1), {"a": layer, "b": layer}, [], None, 3, {"a": 1}]
    for place, made in enumerate(made_of):
        said[f"built {place}"] = _told(lambda m=made: type(build._checked(m, "f")).__name__)

    class Block(torch.nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.inner = block(torch.nn.Linear(size, size))

    class Small(Block): ...

    for place, blocks in enumerate((
        block(Block(4), Block(4), Small(2), Small(2), Small(2)), block(Block(4), Small(9), Small(2)),
        block(torch.nn.ModuleList([Block(3), block(Block(3))]), layer), block(Block(2)), layer,
    )):  # fmt: skip
        said[f"blocks {place}"] = str([type(found).__name__ for found in build.repeated_blocks(blocks)])
        said[f"checkpointed {place}"] = _told(build.checkpoint_blocks, blocks)
    for text_ in ("meta tensor", "FakeTensor", "item() of", "a numpy array", "no such file"):
        said[f"blames {text_}"] = str(build._blames_meta(RuntimeError(text_)))
    assert_kept(KEPT, {"losses": "\n".join(f"{name}: {text}" for name, text in said.items())})


def test_what_is_called_gets_what_it_takes() -> None:
    import torch

    from slurm_gpumem.tracing.model import given, load

    rows = torch.ones(2, 3)
    functions: Dict[str, Any] = {
        "none": lambda: 1, "one": lambda a: [a], "two": lambda a, b=2: [a, b], "any": lambda *a: a,
        "named": lambda a, *, c=3: [a, c], "all": lambda **k: k, "plain": 7, "built in": max, "class": dict,
        "needs": lambda a, b, *, c: 1,
    }  # fmt: skip
    said: Dict[str, str] = {}
    for name, function in functions.items():
        for arguments in ({}, {"b": 1}, {"c": 1, "zz": 2}):
            for positional in ((), (4,), (4, 5)):
                try:
                    told = _told(load.call, function, name, arguments, *positional)
                except (TypeError, ValueError) as error:
                    told = type(error).__name__
                said[f"call {name} {arguments} {positional}"] = told
        if callable(function):
            said[f"takes {name}"] = str(load.as_many_as_it_takes(function, 1, 2, 3))
    batches: List[Any] = [
        rows, (rows, rows), [rows], (rows, rows, rows), {"x": rows, 3: rows}, ({"x": rows}, rows),
        ((rows, rows), rows), None, 5, (), [],
    ]  # fmt: skip
    for place, batch in enumerate(batches):
        for own_step in (False, True):
            said[f"batch {place} {own_step}"] = _told(
                lambda b=batch, o=own_step: _shapes(given._from_callable(lambda size: b, "f", 3, o))
            )
    assert_kept(KEPT, {"calls": "\n".join(f"{name}: {text}" for name, text in said.items())})


class _Items:
    def __init__(self, items: List[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        return self.items[number]


def test_the_longest_and_the_largest_batches_are_those_that_they_were() -> None:
    import torch

    from slurm_gpumem.tracing.follow import largest_batches

    dice = random.Random(1)
    sizes = [dice.randrange(1, 40) for _ in range(30)]
    sets: Dict[str, Any] = {
        "texts": [{"input_ids": [0] * size} for size in sizes],
        "tensors": [{"input_ids": torch.zeros(size)} for size in sizes],
        "rows": [{"input_ids": torch.zeros(size, 2)} for size in sizes],
        "many": [[0] * (number * 7 % 2003) for number in range(2500)],
        "pairs": [(torch.zeros(size, 3), 1) for size in sizes],
        "named": [{"x": torch.zeros(size), "y": [1, 2.0]} for size in sizes],
        "words": [(torch.zeros(size), "word") for size in sizes],
        "late": [*([1] * size for size in sizes), "word"], "alike": [[1, 2]] * 5, "empty": [], "one": [[1]],
    }  # fmt: skip
    said: Dict[str, str] = {}
    for name, items in sets.items():
        for length_of in (largest_batches._tokens, largest_batches._numbers):
            told = repr(largest_batches._longest(_Items(items), 4, length_of))
            said[f"{name} {length_of.__name__}"] = told
    said["no set"] = repr(largest_batches._longest(iter([1]), 4, largest_batches._numbers))

    class Counting:
        def __init__(self) -> None:
            self.calls = 0

        def __call__(self, samples: Any) -> Any:
            self.calls += 1
            return torch.zeros(len(samples), 3 + self.calls % 5)

    def drawn(samples: Any) -> Any:
        return torch.zeros(len(samples), random.choice((3, 4, 5)))

    def drawn_by_torch(samples: Any) -> Any:
        return [torch.zeros(len(samples), int(torch.randint(2, 6, ()))), 1]

    def fails(samples: Any) -> Any:
        raise ValueError

    counting = Counting()
    for function in (counting, drawn, drawn_by_torch, fails, torch.stack):
        before, state = random.getstate(), torch.get_rng_state()
        found = largest_batches._largest(function, [torch.zeros(2)] * 3)
        said[f"largest {getattr(function, '__name__', 'counting')}"] = repr(_shapes(found))
        assert random.getstate() == before
        assert torch.equal(torch.get_rng_state(), state)
    assert counting.calls == 0
    notes: List[str] = []
    recorder = SimpleNamespace(unnoted=lambda: __import__("contextlib").nullcontext())
    repeats = iter([False, False, True, True, True, True])
    again = largest_batches._Collated(counting, recorder, lambda: next(repeats), notes.append)  # type: ignore[arg-type]
    said["given"] = repr([_shapes(again([1, 2])) for _ in range(6)] + notes)
    assert_kept(KEPT, {"largest batches": "\n".join(f"{name}: {text}" for name, text in said.items())})
