"""Synthetic data in the forms that scripts expect: files that are there, with random content."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Dict

from lab.scripts.recipes.fifth import FIFTH_RECIPES
from lab.scripts.recipes.first import FIRST_RECIPES
from lab.scripts.recipes.fourth import FOURTH_RECIPES
from lab.scripts.recipes.fresh import MORE_RECIPES
from lab.scripts.recipes.hub import HUB_RECIPES
from lab.scripts.recipes.models import MODEL_RECIPES
from lab.scripts.recipes.third import THIRD_RECIPES

RECIPES: Dict[str, Callable[[Path], None]] = {
    **FIRST_RECIPES,
    **MORE_RECIPES,
    **HUB_RECIPES,
    **MODEL_RECIPES,
    **THIRD_RECIPES,
    **FOURTH_RECIPES,
    **FIFTH_RECIPES,
}
