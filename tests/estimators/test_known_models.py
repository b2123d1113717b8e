"""A text of a known model is answered by that model's trace, and no other text is."""

from __future__ import annotations

import json
import lzma
import re
from functools import lru_cache
from pathlib import Path
from typing import Dict, List

import pytest

from lab.places import GROUND_TRUTH
from slurm_gpumem.errors import ConfigError, SummaryError
from slurm_gpumem.estimators import registry
from slurm_gpumem.estimators.gpus import find_gpu
from slurm_gpumem.estimators.known import store
from slurm_gpumem.estimators.known.recognize import recognized, with_stored_trace
from slurm_gpumem.estimators.stated_input import with_input
from slurm_gpumem.estimators.types import OPTIMIZERS, PRECISIONS, TrainingJob
from slurm_gpumem.summaries.reader import read_summary
from slurm_gpumem.summaries.trace_types import Phase, Site, Trace, TracedJob
from tests.support.timing import best_cpu_s, slowness

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
MODELS = (
    "torchvision/resnet50@224",
    "torchvision/vit_b_16@224",
    "transformers/gpt2@512",
    "timm/convnext_tiny@224",
)
TOOLS = ("torchinfo_full", "torchinfo_deep", "torchinfo", "torchsummary", "print")
H200 = find_gpu("h200")


@lru_cache(maxsize=1)
def texts() -> Dict[str, Dict[str, str]]:
    """Texts of real tools for a few models."""
    found = {}
    with lzma.open(GROUND_TRUTH / "summaries.jsonl.xz", "rt") as file:
        for line in file:
            if any(f'"{name}"' in line[:200] for name in MODELS):
                row = json.loads(line)
                found[row["summary"]] = row
    return found


def cases() -> List[object]:
    return [pytest.param(m, t, id=f"{m}-{t}") for m in MODELS for t in TOOLS]


def text_of(model: str, tool: str) -> str:
    text = texts()[model].get(tool)
    if not isinstance(text, str):
        pytest.skip(f"{tool} fails on this model")
    return text


@pytest.mark.parametrize(("model", "tool"), cases())
def test_all_texts_of_a_model_get_the_same_answer(model: str, tool: str) -> None:
    job = TrainingJob(8, optimizer="adamw", precision="amp-bf16")
    first = registry.run("auto", read_summary(text_of(model, "torchinfo_full")), job, H200)
    found = registry.run("auto", read_summary(text_of(model, tool)), job, H200)
    assert (found.peak_mib, found.request_mib, found.estimator) == (
        first.peak_mib,
        first.request_mib,
        "trace",
    )
    assert any(
        said.startswith(f"recognized as {model.split('@')[0].replace('/', ' ')}")
        for said in found.assumptions
    )


@pytest.mark.parametrize(("model", "tool"), cases())
def test_a_text_with_one_number_changed_is_no_known_model(model: str, tool: str) -> None:
    text = text_of(model, tool)
    lines = text.splitlines()
    rows = [
        at for at, line in enumerate(lines) if re.search(r"(?:Conv2d|Linear|LayerNorm|Embedding)[-:( ]", line)
    ]
    for at in (rows[0], rows[len(rows) // 2], rows[-1]):
        # The parameters in a table, an argument in print(model).
        number = re.search(r"(?<=\])\s+(\d[\d,]*)(?:\s|$)|\w\((\d+)|features=(\d+)", lines[at])
        if number is None or (tool == "print" and "[" in lines[at]):
            continue
        group = number.lastindex or 0
        other = str(int(number[group].rstrip(",").replace(",", "")) + 8)
        changed = [*lines]
        changed[at] = lines[at][: number.start(group)] + other + lines[at][number.end(group) :]
        assert recognized(read_summary("\n".join(changed))) is None, changed[at]


@pytest.mark.parametrize(("model", "tool"), cases())
def test_a_text_with_one_layer_more_or_of_another_class_is_no_known_model(model: str, tool: str) -> None:
    lines = text_of(model, tool).splitlines()
    rows = [at for at, line in enumerate(lines) if re.search(r"(?:ReLU|GELU|LayerNorm|Dropout)[-:(]", line)]
    at = rows[len(rows) // 2]
    twice = [*lines[: at + 1], *lines[at:]]
    assert recognized(read_summary("\n".join(twice))) is None
    renamed = [*lines]
    renamed[at] = re.sub(r"ReLU|GELU|LayerNorm|Dropout", "Mish", lines[at])
    assert recognized(read_summary("\n".join(renamed))) is None


def test_another_head_is_no_known_model() -> None:
    text = text_of("torchvision/resnet50@224", "print").replace("out_features=1000", "out_features=10")
    assert recognized(read_summary(text)) is None


def test_a_small_text_is_no_sign_of_any_model() -> None:
    small = read_summary(EXAMPLES / "small-cnn.txt")
    assert len(store.key_of(small._replace(layers=small.layers[:5]))) == 0


def test_a_table_cut_at_any_depth_shows_the_same_model() -> None:
    keys = store.keys_at_depths(read_summary(text_of("transformers/gpt2@512", "torchinfo_full")))
    assert len(keys) > 3
    assert {known.name for key in keys if (known := store.find(key))} == {"transformers gpt2"}
    assert all(store.find(key) for key in keys[1:])


@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [*((optimizer, "fp32") for optimizer in OPTIMIZERS), *(("adamw", name) for name in PRECISIONS)],
)
def test_every_optimizer_and_precision_is_answered(optimizer: str, precision: str) -> None:
    summary = read_summary(EXAMPLES / "resnet50.txt")
    job = TrainingJob(4, optimizer=optimizer, precision=precision)
    trace = with_stored_trace(summary, job).trace
    assert trace is not None
    assert (trace.job.optimizer, trace.job.precision) == (optimizer, precision)
    states = sum(
        trace.sites[v].bytes[0] for v in trace.events if v >= 0 and trace.sites[v].category == "optimizer"
    )
    rule = job.optimizer_rule
    steps = max(phase.step for phase in trace.phases)
    once = summary.total_params * job.weight_bytes
    assert states == pytest.approx(once * (rule.states + steps * rule.temporaries), rel=0.01)


@pytest.mark.parametrize(
    "other", [{"checkpointing": True}, {"channels_last": True}, {"grad_accumulation": 4}]
)
def test_a_training_that_is_not_stored_is_answered_by_the_text(other: Dict[str, bool]) -> None:
    summary = read_summary(EXAMPLES / "resnet50.txt")
    found = registry.run("auto", summary, TrainingJob(8)._replace(**other), H200)
    assert found.estimator == registry.DEFAULT


def test_a_trace_that_was_packed_is_the_same_trace() -> None:
    summary = read_summary(EXAMPLES / "resnet50.txt")
    known, trace = recognized(summary), with_stored_trace(summary, TrainingJob(16)).trace
    assert known is not None
    assert trace is not None
    other = store.decode(
        json.loads(json.dumps(store.encode(trace))), known.about["params"], 16, TrainingJob(16)
    )
    assert [other.sites[v].bytes if v >= 0 else v for v in other.events] == [
        trace.sites[v].bytes if v >= 0 else v for v in trace.events
    ]


def test_a_file_that_is_packed_again_has_the_same_models_and_a_damaged_part_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = store.key_of(read_summary(EXAMPLES / "resnet50.txt"))
    known, places = store.find(key), {b"\xff" * store.KEY_BYTES: (0, 0), key: (1, 0)}
    assert known is not None
    traces = {name: json.loads(line) for name, line in known.lines.items()}
    parts = [store.packed({**known.about, "name": "another"}, {}), store.packed(known.about, traces)]
    for name, part in (("whole", parts[1]), ("damaged", b"\x03damaged")):
        (tmp_path / name).write_bytes(store.pack([parts[0], part], places))
        monkeypatch.setattr(store, "_paths", lambda name=name: iter([tmp_path / name]))
        if name == "whole":
            assert store.find(key) == known
            continue
        with pytest.raises(ConfigError, match=f"^{tmp_path}/damaged: cannot be used: .*install the package"):
            store.find(key)
    assert known._replace(lines={}).trace(TrainingJob(8)) is None
    with pytest.raises(ConfigError, match=rf"^the stored trace of {known.name} is damaged: 'sites'$"):
        known._replace(lines=dict.fromkeys(known.lines, "{}")).trace(TrainingJob(8))


def test_parameters_are_read_from_adams_two_states() -> None:
    sites = tuple(Site((size,), "aten::zeros_like", "", "optimizer") for size in (40, 8))
    phases = (Phase(0, "forward", 1), Phase(1, "optimizer", 1), Phase(5, "forward", 2))
    trace = Trace(TracedJob(4), "meta", sites, (1, 0, 0, 1, 1, 0), phases)
    assert store.parameters(trace) == [10, 2]
    assert store.parameters(trace._replace(job=TracedJob(4, precision="bf16"))) == [20, 4]
    for wrong in ((1, 0, 0, 1, -1, 0), (1, 0, 1, 1, 1, 0)):
        with pytest.raises(ValueError, match="not two for each parameter"):
            store.parameters(trace._replace(events=wrong))


def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = read_summary(EXAMPLES / "resnet50.txt")
    whole = Path(store.data_file("models", store.FILE)).read_bytes()
    for name, content in (("cut", whole[: len(whole) // 50]), ("other", b"something else"), ("empty", b"")):
        path = tmp_path / name
        path.write_bytes(content)
        monkeypatch.setattr(store, "_paths", lambda path=path: iter([path]))
        with pytest.raises(ConfigError, match=re.escape(str(path))):
            store.find(store.key_of(summary))


def test_more_models_are_found_in_a_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = read_summary(EXAMPLES / "resnet50.txt")
    shipped = store.data_file("models", store.FILE)
    (tmp_path / store.MORE).write_bytes(Path(shipped).read_bytes())
    monkeypatch.setattr(store, "FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(store, "data_file", lambda *words: str(tmp_path / "nothing"))
    assert store.find(store.key_of(summary)) is not None


@pytest.mark.timing
def test_a_lookup_takes_a_few_milliseconds() -> None:
    summary = read_summary(EXAMPLES / "vit.txt")
    key = store.key_of(summary)

    def look() -> None:
        store._find_in.cache_clear()
        assert store.find(key) is not None

    assert best_cpu_s(look, 5) < 0.01 * slowness()


def test_a_printed_known_model_is_that_of_the_stated_input() -> None:
    printed = read_summary(text_of("torchvision/resnet50@224", "print"))
    job, gpu = TrainingJob(16), find_gpu("h200")
    assumed = registry.run("auto", printed, job, gpu)
    assert any("224 x 224 pixels is assumed" in said for said in assumed.warnings)
    stated = registry.run("auto", with_input(printed, "3x224x224"), job, gpu)
    assert (stated.peak_mib, stated.estimator) == (assumed.peak_mib, assumed.estimator)
    assert not any("assumed" in said for said in stated.warnings)
    other = with_input(printed, "3x320x320")
    assert other.has_shapes
    larger = registry.run("auto", other, job, gpu)
    assert larger.estimator.startswith("corrected")
    assert larger.peak_mib > 1.5 * stated.peak_mib


def test_a_text_without_shapes_of_an_unknown_model_is_refused_unless_an_estimator_is_named() -> None:
    text = text_of("torchvision/resnet50@224", "print").replace("out_features=1000", "out_features=10")
    summary = read_summary(text)
    with pytest.raises(SummaryError, match="shows no shapes"):
        registry.refuse_guess(summary, "auto")
    registry.refuse_guess(summary, "corrected")
    registry.refuse_guess(read_summary(text_of("torchvision/resnet50@224", "print")), "auto")


def test_a_known_model_with_frozen_parameters_is_not_answered_by_a_trace_that_trains_all(
    tmp_path: Path,
) -> None:
    text = (EXAMPLES / "resnet50.txt").read_text()
    assert recognized(read_summary(EXAMPLES / "resnet50.txt")) is not None
    path = tmp_path / "head.txt"
    path.write_text(
        text.replace("Trainable params: 25,557,032", "Trainable params: 2,049,000").replace(
            "Non-trainable params: 0", "Non-trainable params: 23,508,032"
        )
    )
    summary = read_summary(path)
    assert recognized(summary) is None
    found = registry.run("auto", summary, TrainingJob(64), H200)
    assert any("frozen" in warning for warning in found.warnings)
