"""Check that every catalogue entry builds and trains, without a GPU, and note its footprint.

python -m lab.collect.survey [--only TEXT] [--jobs N] [--missing]
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Dict, List, Optional

import torch

from lab.children import Children
from lab.collect.build import import_sources
from lab.collect.entries import load_catalogue
from lab.collect.footprint import measure_footprint
from lab.places import FOOTPRINTS


def main(argv: Optional[List[str]] = None) -> int:
    """Trace all entries, write footprints.json, print what failed; 1 when something did."""
    parser = argparse.ArgumentParser(prog="python -m lab.collect.survey", description=__doc__)
    parser.add_argument("--only", default="", help="entries whose id contains this text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--missing", action="store_true", help="only entries not in the table yet")
    parser.add_argument("--limit-seconds", type=float, default=120, help="for one entry")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    table: Dict[str, Any] = json.loads(FOOTPRINTS.read_text()) if FOOTPRINTS.exists() else {}
    entries = [e for e in load_catalogue() if options.only in e.id]
    known = {e.id for e in load_catalogue()}
    table = {name: row for name, row in table.items() if name in known}
    if options.missing:
        entries = [e for e in entries if e.id not in table]
    print(import_sources(entries), file=sys.stderr)
    failed = 0
    children, queue = Children(), list(entries)
    while queue or len(children):
        while queue and len(children) < options.jobs:
            entry = queue.pop(0)
            children.start(entry.id, lambda entry=entry: measure_footprint(entry), options.limit_seconds)  # type: ignore[misc]
        for ended in children.wait(1):
            if ended.answer is None:
                failed += 1
                print(f"{ended.tag}: {ended.error[-200:]}", flush=True)
            else:
                table[ended.tag] = ended.answer
            FOOTPRINTS.write_text(
                "{\n"
                + ",\n".join(f"{json.dumps(k)}: {json.dumps(table[k])}" for k in sorted(table))
                + "\n}\n"
            )
    print(f"{len(entries)} entries, {failed} failed, {len(table)} in {FOOTPRINTS.name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
