"""Write the names that `gpumem summarize hf:NAME` knows, models/hub-names.json, from the catalogue.

python -m lab.catalogue.hub_names
"""

from __future__ import annotations

import json
from typing import Any, Dict, List

from lab.places import CATALOGUE, MODELS
from slurm_gpumem.toml_file import load_toml
from slurm_gpumem.tracing.model.request import HUB_NAMES as FILE


def content() -> str:
    """The file: one name a line, with its class and the fields of its configuration."""
    names: Dict[str, List[Any]] = {}
    for group in load_toml(CATALOGUE / "transformers.toml")["group"]:
        for name, entry in group["models"].items():
            # A name that stands in several groups means the first, its usual head.
            names.setdefault(name.lower(), [entry["build"], entry.get("args", {})])
    lines = [f"{json.dumps(name)}: {json.dumps(names[name])}" for name in sorted(names)]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    """Write it."""
    (MODELS / FILE).write_text(content())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
