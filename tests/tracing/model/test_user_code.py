"""What a request names in a user's code, found, called and refused, without starting a process."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, ClassVar, Dict, List

import pytest

pytest.importorskip("torch", reason="no PyTorch here")

import torch
from torch import nn

from slurm_gpumem.errors import TargetError
from slurm_gpumem.tracing.model import (
    build,
    given,
    inputs,
    live,
    load,
    loop,
    losses,
    optimizers,
    outline,
    request,
)
from slurm_gpumem.tracing.model.inputs import Inputs
from slurm_gpumem.tracing.model.spec import (
    FILE,
    HUGGING_FACE,
    MODULE,
    TIMM,
    Target,
    TraceRequest,
    parse_target,
)
from slurm_gpumem.tracing.model.training import failure
from tests.support.kept import assert_kept

HERE = Path(__file__).parent
NOT_LOADED = "pretrained weights were not loaded: memory does not depend on their values"
FOUND = (
    "gpumem_pkg/sub/net.py:name", "gpumem_nets:Net.build", "gpumem_nets:", "math:", "gpumem_pkg:", "math:zzz",
    "gpumem_nets:Nett", "gpumem_nets:Net.biuld", "gpumem_net:", "gpumem_zzz:x", "gpumem_needs:",
    "net.txt:Net",
)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A user's folder, with libraries in it like timm; what is imported from it is forgotten again."""
    for part in (HERE / "libraries.txt").read_text().split("# == ")[1:]:
        name, _, text = part.partition("\n")
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    for name in ("argv", "path", "meta_path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith(("gpumem_", "timm", "transformers")):
            del sys.modules[name]


def _request(**more: Target) -> TraceRequest:
    return TraceRequest(Target(FILE, "/x/train.py", "build"), 4, **more)  # type: ignore[arg-type]


def test_what_a_request_names_is_found_or_refused_to_the_word(place: Path) -> None:
    def found(named: str) -> Any:
        where, _, attribute = named.rpartition(":")
        made, label = load.find_callable(
            Target(FILE if "." in Path(where).name else MODULE, where, attribute)
        )
        return getattr(made, "__qualname__", made), label, sys.argv

    def optimizer(name: str) -> Any:
        named = Target(FILE, "gpumem_nets.py", name)
        return given.given_optimizer(_request(optimizer_callable=named))([free.bias])

    free, none = nn.Linear(1, 1), nn.Linear(1, 1).requires_grad_(False)
    empty = torch.optim.SGD([free.bias], lr=1.0)
    empty.param_groups[0]["params"].clear()
    names = ((HUGGING_FACE, "/a/bert/config.json"), (HUGGING_FACE, "config.json"), (TIMM, "x"), (FILE, "x"))
    asked: Dict[str, Callable[[], Any]] = {  # what is said of each is in user_code.json
        "no file": lambda: outline.check(place / "gone.py", "x", ()),
        "names that are made": lambda: outline.check(place / "made.py", "net", ()),
        "a base that is called": lambda: outline.check(place / "odd.py", "A", ()),
        "an optimizer": lambda: optimizer("adam").defaults["lr"],
        "no optimizer": lambda: optimizer("other"),
        "no step": lambda: given.given_step(_request(step_callable=Target(MODULE, "gpumem_nets", "number"))),
        "an optimizer of nothing": lambda: optimizers.check(empty, free),
        "nothing to train": lambda: optimizers.check("adam", none),
        "unknown optimizer": lambda: optimizers.check("adamm", free),
        "unknown loss": lambda: losses.Loss("mses"),
        "by name or code": lambda: [request.name_or_code(text, ("adam",), "x") for text in ("Adam", "a.b:c")],
        "neither": lambda: request.name_or_code("adom", ("adam",), "optimizer"),
        "compared with": lambda: [request.compared_with(text) for text in (None, "", "scalar", "3,4")],
        "no batch size": lambda: inputs.require_size([3], None),
        "too small": lambda: [inputs.require_size([], 1), inputs.require_size([], 0)],
        "a batch by name": lambda: inputs.as_inputs({"x": 1}, 2),
        "a directory": lambda: parse_target(str(place / "gpumem_pkg")),
        "names of models": lambda: [Target(*name).library_name for name in names],
        "our own word": lambda: failure(TargetError("as it is"), "tracing", _request()),
    }  # fmt: skip
    asked.update({name: partial(found, name) for name in FOUND})
    said: Dict[str, str] = {}
    for name, ask in asked.items():
        try:
            said[name] = repr(ask()).replace(str(place), "…")
        except Exception as error:  # noqa: BLE001 - what is raised is what is looked at
            said[name] = f"{type(error).__name__}: {error}".replace(str(place), "…")
    assert_kept(HERE / "user_code.json", said)


def test_a_loss_gets_as_much_as_it_takes_and_a_class_is_made_first(place: Path) -> None:
    places = [Target(MODULE, "gpumem_nets", name) for name in ("alone", "Mse")]
    alone, made = (given.given_loss(_request(loss_callable=place)) for place in places)
    two, three = torch.tensor([2.0, 2.0]), torch.tensor([5.0, 5.0])
    assert (alone(two, three), alone(two, None), made(two, three)) == (4.0, 4.0, 9.0)
    assert (alone.__name__, made.__name__) == ("gpumem_nets:alone", "gpumem_nets:Mse")
    assert losses.Loss(lambda out, target: two.sum())(object(), None) == 4.0
    assert losses.filled(lambda size: Inputs((3,)), "labels") is None
    assert losses.unfilled(SimpleNamespace(forward=3), Inputs()) is None  # type: ignore[arg-type]


class Net(nn.Linear):
    """Says how it was called."""

    calls: ClassVar[List[Any]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append((len(x), self.training, torch.is_grad_enabled()))
        return super().forward(x)


def test_a_step_that_only_returns_its_loss_is_finished_and_evaluation_comes_from_the_second_on() -> None:
    def plan(**more: Any) -> loop.Plan:
        model = Net(1, 1, bias=False)
        nn.init.ones_(model.weight)
        sgd = torch.optim.SGD(model.parameters(), lr=0.25)
        one = lambda size: Inputs((torch.ones(size, 1),))  # noqa: E731
        return loop.Plan(model, one, lambda out, _: out.sum(), sgd, (1, 2), **more)

    Net.calls.clear()
    training = [(1, True, True), (2, True, True)]
    own, usual = plan(step=lambda model, batch, _: {"loss": model(*batch).sum()}), plan(evaluate=True)
    assert [next(own.model.parameters()).item() for _ in loop.steps(own)] == [1.0, 0.75, 0.25]
    assert (next(own.model.parameters()).grad, Net.calls) == (None, training)
    assert list(loop.steps(usual)) == [1, 2, 3]
    assert Net.calls[2:] == [*training, *[(2, False, False)] * 2]
    assert usual.model.training
    one, many = torch.ones((), requires_grad=True), torch.ones(2, requires_grad=True)
    assert [loop.loss_in(value) is one for value in (one, [one], many, one.detach())] == [
        True,
        True,
        False,
        False,
    ]
    assert (loop.loss_in(many), loop.loss_in(one.detach()), loop.as_given(Inputs(kwargs={"x": 1}))) == (
        None,
        None,
        {"x": 1},
    )


def test_blocks_are_checkpointed_by_the_librarys_own_switch_and_only_while_they_train() -> None:
    asked: List[Any] = []
    ours, timms = SimpleNamespace(supports_gradient_checkpointing=True), SimpleNamespace()
    ours.gradient_checkpointing_enable = lambda **given: asked.append(given)
    timms.set_grad_checkpointing = asked.append
    said = [build.checkpoint_blocks(one) for one in (ours, timms)]
    assert said == ["checkpointing: transformers' own", "checkpointing: timm's own"]
    assert asked == [{"gradient_checkpointing_kwargs": {"use_reentrant": False}}, True]
    kind: Any = type("DataParallel", (Net,), {})
    model = nn.Sequential(kind(1, 1), kind(1, 1))
    for block in model:
        block.add_module("module", Net(1, 1))
    assert live.unwrapped(model[0]) is model[0].module
    assert build.checkpoint_blocks(model) == "checkpointing: each of the 2 DataParallel blocks"
    for training, calls in ((True, 4), (False, 2)):
        Net.calls.clear()
        model.train(training)(torch.ones(1, 1)).sum().backward()
        assert Net.calls == [(1, training, True)] * calls
    several = build.Several({"size": 3, "net": model, "teacher": nn.Linear(1, 1)})
    assert torch.equal(several(torch.ones(1, 1)), model(torch.ones(1, 1)))


def test_pretrained_weights_are_not_loaded_and_a_model_has_what_its_configuration_says(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", None)
    monkeypatch.setattr(nn.Module, "load_state_dict", nn.Module.load_state_dict)
    notes: List[str] = []
    build.without_downloads(notes.append)
    layer = nn.Linear(1, 1, bias=False)
    assert layer.load_state_dict(torch.hub.load_state_dict_from_url("x")) == ([], [])
    layer.load_state_dict({"weight": torch.full((1, 1), 7.0)})
    assert layer.weight.item() == 7.0
    import transformers
    from transformers.models.auto.auto_factory import _BaseAutoModelClass as Auto

    asked = {"depth": 2, "trust_remote_code": True, **dict.fromkeys(build._OF_WEIGHTS, "auto")}
    tiny = transformers.Tiny.from_pretrained("hub/tiny", torch_dtype=torch.float16, **asked)
    assert (tiny.config, tiny.weight.dtype) == (("hub/tiny", 2, True), torch.float16)
    auto = Auto.from_pretrained("hub/tiny", config="mine", dtype="auto", attention=1, **asked)
    assert (auto.config, auto.given) == ("mine", {"depth": 2, "attention": 1})

    def built(target: Target) -> Any:
        builder = build.Builder(TraceRequest(target, 4), notes.append, notes.append)
        return builder.build() if target.kind == FILE else builder._made()

    assert built(Target(TIMM, "hub/tiny", "", {"depth": 3})) == (None, "tiny", False, {"depth": 3})
    (place / "config.json").write_text('{"model_type": "tiny", "width": 2}')
    assert built(Target(HUGGING_FACE, "config.json")).config.given == {"model_type": "tiny", "width": 2}
    assert built(Target(FILE, str(place / "gpumem_nets.py"), "layer"))[1] == "cpu"
    chosen = ["head masked-lm (Tiny) was chosen", "importing gpumem_nets.py", "building the model"]
    assert notes == [*[NOT_LOADED] * 4, *chosen]
