"""Marks for tests that need what not every machine has."""

from __future__ import annotations

import importlib.util
import os

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it acts for other users")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
"""For tests whose child processes use torch; where the test itself does, `pytest.importorskip("torch")`."""
