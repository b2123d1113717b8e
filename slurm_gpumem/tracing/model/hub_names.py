"""Well-known Hugging Face names as a class and its sizes: models/hub-names.json."""

from __future__ import annotations

import json
from typing import Any, Dict, Optional, Tuple

from slurm_gpumem.data import data_path

FILE = "hub-names.json"
_ENDINGS = ("-uncased", "-cased", "-hf", "-base")


def known_model(name: str) -> Optional[Tuple[str, Dict[str, Any]]]:
    """(class, configuration fields) of a name like "bert-large-uncased" or "gpt2-medium"; None if unknown."""
    plain = name.split("/")[-1].lower()
    models = json.loads(data_path("models", FILE).read_text())
    for known in (plain, *(plain[: -len(end)] for end in _ENDINGS if plain.endswith(end))):
        if known in models:
            built, fields = models[known]
            return built, fields
    return None
