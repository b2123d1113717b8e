"""Texts that are no summary, as the command refuses them; test_odd_files.py has what is said of each kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slurm_gpumem.errors import SummaryError
from slurm_gpumem.summaries.reader import parse
from tests.summaries.saved_summaries import Saved, select


def test_the_command_refuses_with_exit_code_2_and_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import torch\n")
    command = [sys.executable, "-m", "slurm_gpumem.cli.gpumem", "estimate", str(path), "--batch-size", "8"]
    code = "import sys; from slurm_gpumem.cli.gpumem import main; sys.exit(main(sys.argv[1:]))"
    result = subprocess.run([command[0], "-c", code, *command[3:]], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.startswith("gpumem: train.py: which function or class builds the model?\n")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("saved", select(tool="keras"), ids=lambda saved: saved.stem)
def test_a_keras_summary_is_named_and_refused(saved: Saved) -> None:
    with pytest.raises(SummaryError, match="a Keras summary: estimates are for PyTorch"):
        parse(saved.text, origin="x")
