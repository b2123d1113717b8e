"""Callbacks that write a summary at a training's first step, with which one can submit the next time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch")

from slurm_gpumem import estimate  # noqa: E402
from slurm_gpumem.adapters.first_step import without_values, write_once  # noqa: E402
from slurm_gpumem.summaries.reader import read_summary  # noqa: E402


def test_a_batch_without_values_keeps_its_shape_and_holds_no_memory() -> None:
    batch = {"x": torch.zeros(4, 3), "more": [torch.zeros(4, dtype=torch.int64), "name", 7]}
    found = without_values(batch)
    assert (found["x"].shape, found["x"].device.type) == ((4, 3), "meta")
    assert found["more"][0].dtype is torch.int64
    assert found["more"][1:] == ["name", 7]


def test_a_training_never_fails_over_a_summary(tmp_path: Path) -> None:
    def broken() -> Any:
        raise RuntimeError("no trace")

    with pytest.warns(UserWarning, match="was not written: RuntimeError: no trace"):
        assert not write_once(tmp_path / "summary.json", broken)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_lightning_writes_the_summary_of_its_training_step(tmp_path: Path, precision: str) -> None:
    lightning = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from slurm_gpumem.adapters.lightning import SummaryCallback

    class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)
            )

        def training_step(self, batch: Any, index: int) -> Any:
            x, y = batch
            loss = torch.nn.functional.cross_entropy(self.layers(x), y)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.TensorDataset(torch.zeros(64, 256), torch.zeros(64, dtype=torch.int64))
    path = tmp_path / "summary.json"
    trainer = lightning.Trainer(
        max_steps=2, accelerator="cpu", precision=precision, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, callbacks=[SummaryCallback(path)], default_root_dir=tmp_path,
    )  # fmt: skip
    model = Model()
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=32))
    assert trainer.global_step == 2
    summary = read_summary(path)
    assert summary.trace is not None
    assert summary.trace.job.batch == 32
    assert summary.trace.job.optimizer == "adamw"
    assert summary.trace.job.precision == {"32-true": "fp32", "bf16-mixed": "amp-bf16"}[precision]
    assert summary.total_params == sum(p.numel() for p in model.parameters())
    assert estimate(summary, gpu="a100").estimator == "trace"
    # The large activations are as the precision makes them.
    [relu] = {site.bytes_at(32) for site in summary.trace.sites if site.operator == "aten::relu"}
    assert relu == 32 * 1024 * {"32-true": 4, "bf16-mixed": 2}[precision]


def test_the_hugging_face_trainer_writes_the_summary_of_its_first_batch(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    from slurm_gpumem.adapters.transformers import SummaryCallback

    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=100, n_positions=32)
    model = transformers.GPT2LMHeadModel(config)
    rows = [{"input_ids": [1] * 16, "labels": [1] * 16} for _ in range(16)]
    path = tmp_path / "summary.json"
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=2, per_device_train_batch_size=4, use_cpu=True, report_to=[],
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=model, args=args, train_dataset=rows, callbacks=[SummaryCallback(path)]
    )
    trainer.train()
    assert trainer.state.global_step == 2
    summary = read_summary(path)
    assert summary.trace is not None
    assert (summary.trace.job.batch, summary.trace.job.optimizer) == (4, "adamw")
    assert summary.total_params == sum(p.numel() for p in model.parameters())
    assert "GPT2LMHeadModel" in summary.name
