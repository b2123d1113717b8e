"""Well-known Hugging Face names as a class and its sizes, from the catalogue that the package carries."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Optional, Tuple

_ENDINGS = ("-uncased", "-cased", "-hf", "-base")


def known_model(name: str) -> Optional[Tuple[str, Dict[str, Any]]]:
    """(class, configuration fields) of a name like "bert-large-uncased" or "gpt2-medium"; None if unknown."""
    plain = name.split("/")[-1].lower()
    models = _models()
    for known in (plain, *(plain[: -len(end)] for end in _ENDINGS if plain.endswith(end))):
        if known in models:
            return models[known]
    return None


def _models() -> Dict[str, Tuple[str, Dict[str, Any]]]:
    import slurm_gpumem.lab.catalogue as catalogue
    from slurm_gpumem.toml_file import load_toml

    found: Dict[str, Tuple[str, Dict[str, Any]]] = {}
    for group in load_toml(Path(catalogue.__file__).with_name("transformers.toml"))["group"]:
        for name, entry in group["models"].items():
            found.setdefault(name.lower(), (entry["build"], dict(entry.get("args", {}))))
    return found
