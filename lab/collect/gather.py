"""Merge what collections wrote into the committed data set.

    python -m lab.collect.gather DIR [DIR ...] --out lab/data/ground-truth

DIR holds what `collect` and `summarise` wrote (rows-*.jsonl, about-*.json, summaries.jsonl.gz). What --out
holds already is kept. The result, as `lab.ground_truth` reads it:

    rows-CONFIG.jsonl.gz   each run once for each GPU: a good row before a failed one, then the first;
                           rows disturbed by their neighbours are dropped
    summaries.jsonl.xz     one line a model and input size, the texts of the last who made them
    about.json             the list of measuring runs that the rows name
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from lab.command import exit_code
from lab.ground_truth import open_text
from slurm_gpumem.errors import UsageError
from slurm_gpumem.files import write_atomic

Row = Dict[str, Any]
_ROWS = re.compile(r"rows-(?P<config>.+?)(-\d+of\d+)?\.jsonl(\.gz|\.xz)?")
_ERROR = "_error"


@dataclass
class Gathered:
    """A data set in the making; take folders in, then write it."""

    abouts: Dict[str, Row] = field(default_factory=dict)
    rows: Dict[str, Dict[Tuple[str, str], Row]] = field(default_factory=dict)
    """Configuration → (run's key, GPU) → row."""
    summaries: Dict[str, Row] = field(default_factory=dict)
    unreadable: List[str] = field(default_factory=list)
    """Lines that a killed run left half written."""

    def take(self, folder: Path) -> None:
        """Add all that a folder holds."""
        if not folder.is_dir():
            raise UsageError(f"{folder}: is not a folder; name one that collect or summarise wrote")
        for path in sorted(folder.glob("about*.json")):
            content = json.loads(path.read_text())
            for about in content if isinstance(content, list) else [content]:
                self.abouts[about["run"]] = about
        for path in sorted(folder.glob("rows-*.jsonl*")):
            match = _ROWS.fullmatch(path.name)
            if match is None:
                raise UsageError(f"{path}: rename it to rows-CONFIG.jsonl")
            for row in self._lines(path):
                self._take_row(match["config"], row, path)
        for path in sorted(folder.glob("summaries*.jsonl*")):
            for row in self._lines(path):
                known = self.summaries.get(row["summary"], {})
                self.summaries[row["summary"]] = merge_summary(known, row)

    def _take_row(self, config: str, row: Row, path: Path) -> None:
        if row.get("spoiled"):
            return
        about = self.abouts.get(row.get("run", ""))
        if about is None:
            raise UsageError(
                f"{path}: {row['key']} names the run {row.get('run')!r}, of which no about*.json beside it "
                "tells; without it nobody knows the GPU"
            )
        rows = self.rows.setdefault(config, {})
        identity = (row["key"], str(about.get("gpu")))
        known = rows.get(identity)
        if known is None or (_failed(known) and not _failed(row)):
            rows[identity] = row

    def _lines(self, path: Path) -> Iterator[Row]:
        with open_text(path) as file:
            for number, line in enumerate(file, 1):
                try:
                    yield json.loads(line)
                except ValueError:
                    self.unreadable.append(f"{path}:{number}")

    def write(self, folder: Path) -> List[Path]:
        """Write the data set; files whose content would be the same are left alone. What was written."""
        folder.mkdir(parents=True, exist_ok=True)
        named = {row["run"] for rows in self.rows.values() for row in rows.values()}
        abouts = [self.abouts[run] for run in sorted(named)]
        texts = {"about.json": json.dumps(abouts, indent=1) + "\n"}
        for config, rows in self.rows.items():
            texts[f"rows-{config}.jsonl.gz"] = _as_lines(rows.values())
        ordered = [self.summaries[key] for key in sorted(self.summaries)]
        if ordered:
            texts["summaries.jsonl.xz"] = _as_lines(ordered)
        return [folder / name for name, text in texts.items() if _write(folder / name, text)]


def merge_summary(known: Row, new: Row) -> Row:
    """Both lines' fields, the new one's first; a tool that made a text once has not failed."""
    merged = {**known, **new}
    return {
        name: value
        for name, value in merged.items()
        if not (name.endswith(_ERROR) and name[: -len(_ERROR)] in merged)
    }


def gather(folders: Iterable[Path], out: Path) -> Gathered:
    """What `out` holds and what the folders add."""
    gathered = Gathered()
    if out.is_dir():
        gathered.take(out)
    for folder in folders:
        gathered.take(folder)
    if not gathered.rows and not gathered.summaries:
        raise UsageError(f"no rows and no summaries in {', '.join(map(str, folders))}")
    return gathered


def _failed(row: Row) -> bool:
    return bool(row.get("error") or row.get("oom"))


def _as_lines(rows: Iterable[Row]) -> str:
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def _write(path: Path, text: str) -> bool:
    if path.exists():
        with open_text(path) as file:
            if file.read() == text:
                return False
    data = text.encode()
    if path.suffix == ".gz":
        data = gzip.compress(data, 9, mtime=0)
    elif path.suffix == ".xz":
        data = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
    write_atomic(path, data, mode=None)
    return True


def main(argv: Optional[List[str]] = None) -> int:
    """Merge."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.collect.gather",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--out", type=Path, required=True, help="the data set to make or to extend")
    return exit_code(lambda: _main(parser.parse_args(argv)))


def _main(options: argparse.Namespace) -> int:
    gathered = gather(options.folders, options.out)
    written = gathered.write(options.out)
    for place in gathered.unreadable:
        print(f"{place}: not JSON, left out (a run was killed while it wrote?)", file=sys.stderr)
    for config, rows in sorted(gathered.rows.items()):
        print(f"{config}: {len(rows)} rows")
    print(f"{len(gathered.summaries)} summaries, {len(gathered.abouts)} measuring runs")
    print(f"written: {', '.join(path.name for path in written) or 'nothing, all is there'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
