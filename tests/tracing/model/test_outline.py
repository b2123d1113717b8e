"""Slips in names are told from the file's text, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_gpumem.errors import TargetError
from slurm_gpumem.tracing.model import outline

CODE = """
import torch.nn as nn
from other import imported

class Block(nn.Module):
    def __init__(self, width):
        pass

class Net(nn.Module):
    pass

def build(cfg, *, depth, width=3):
    return Net()

@decorated
def wrapped(cfg):
    return Net()

model_b = Net()
raise SystemExit("running this file is a mistake")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(CODE)
    return path


def test_a_misspelled_callable_gets_the_nearest_name(script: Path) -> None:
    with pytest.raises(TargetError, match=r"train.py has no 'bild'.\nDid you mean train.py:build\?"):
        outline.check(script, "bild", ())


def test_a_callable_of_no_near_name_gets_a_list(script: Path) -> None:
    with pytest.raises(TargetError, match=r"It has: Block\(width\), Net\(\), build\(cfg, depth\)"):
        outline.check(script, "xyzzy", ())


def test_missing_arguments_are_named(script: Path) -> None:
    with pytest.raises(TargetError, match=r"needs arguments: cfg and depth"):
        outline.check(script, "build", ())
    with pytest.raises(TargetError, match=r"needs an argument: depth"):
        outline.check(script, "build", ["cfg"])


@pytest.mark.parametrize("name", ["wrapped", "imported", "model_b", "Net", "Net.from_file", "nn"])
def test_what_only_running_can_tell_is_left_to_running(script: Path, name: str) -> None:
    outline.check(script, name, ())


def test_names_that_come_by_star_may_be_any(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("from models import *\n")
    outline.check(path, "anything", ())


def test_without_a_name_the_one_that_must_be_meant_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("class A:\n    pass\nclass Net(nn.Module):\n    pass\ndef get_model():\n    pass\n")
    assert outline.choose(path, "train.py") == "get_model"
    path.write_text("class A:\n    pass\nclass Net(nn.Module):\n    pass\n")
    assert outline.choose(path, "train.py") == "Net"


def test_without_a_name_and_with_a_choice_the_choice_is_shown(script: Path) -> None:
    with pytest.raises(TargetError, match="which function or class builds the model") as caught:
        outline.choose(script, "train.py")
    assert "gpumem trace -- python train.py" in str(caught.value)


def test_what_is_no_python_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("x = 1\ndef build(:\n")
    with pytest.raises(TargetError, match=r"train.py, line 2: not valid Python"):
        outline.check(path, "build", ())
