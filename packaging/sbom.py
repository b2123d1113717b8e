"""sbom.py FOLDER: what the files of a release are and need, as CycloneDX 1.5; nothing of others is inside."""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import re
import sys
import time
import uuid
from pathlib import Path
from typing import Dict, List

from slurm_gpumem import __version__

_ROOT = Path(__file__).resolve().parents[1]
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*([^;]*)(?:;\s*(.*))?")


def requirements() -> List[Dict[str, object]]:
    """The Python packages that ours needs, and those that it uses where they are installed."""
    config = configparser.ConfigParser()
    config.read(_ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    listed = [("required", config["options"]["install_requires"])]
    listed += [("optional", extras[name]) for name in ("torch", "report")]
    found: List[Dict[str, object]] = []
    for scope, lines in listed:
        for line in lines.split("\n"):
            match = _REQUIREMENT.match(line.strip())
            if match is None:
                continue
            name, version, where = match.groups()
            rules = {"versions": version.strip() or "any", "marker": where or ""}
            properties = [{"name": f"python:{key}", "value": text} for key, text in rules.items() if text]
            purl = f"pkg:pypi/{name.lower()}"
            about = {"type": "library", "bom-ref": purl, "name": name, "purl": purl, "scope": scope}
            found.append({**about, "properties": properties})
    return found


def bill(folder: Path) -> Dict[str, object]:
    """The whole document."""
    made = int(os.environ["SOURCE_DATE_EPOCH"])
    purl = f"pkg:pypi/slurm-gpumem@{__version__}"
    files = [
        {
            "type": "file",
            "bom-ref": path.name,
            "name": path.name,
            "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
        }
        for path in sorted(folder.iterdir())
        if path.is_file() and ".cdx.json" not in path.name
    ]
    needed = requirements()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{purl}?made={made}')}",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(made)),
            "component": {
                "type": "application",
                "bom-ref": purl,
                "name": "slurm-gpumem",
                "version": __version__,
                "purl": purl,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": [*needed, *files],
        "dependencies": [{"ref": purl, "dependsOn": [str(one["bom-ref"]) for one in needed]}],
    }


if __name__ == "__main__":
    print(json.dumps(bill(Path(sys.argv[1])), indent=1))
