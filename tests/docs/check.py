"""Run the commands of README, docs/ and the simulator's page; show where what they print differs.

    python -m tests.docs.check [--write] [--slow] [PAGE ...]

The exit code is 1 when something differs; --write puts what was printed into the pages.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path
from typing import List, Optional, Tuple

from tests.docs.desk import ROOT, run_page, to_run
from tests.docs.pages import Part, Screen, comparable, read_page, trimmed, with_output


def all_pages() -> List[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "lab" / "docs" / "simulate.md"]


def new_text(text: str, parts: List[Part]) -> str:
    """The page as its commands would have it; what differs from run to run only is left as it is."""
    found = [(step, trimmed(output)) for step, output in run_page(parts)]
    changed = [
        (step, output)
        for step, output in found
        if trimmed(step.shown) and comparable(output) != comparable(step.shown)
    ]
    return with_output(text, changed)


def check(path: Path, *, slow: bool = False) -> Tuple[str, str, List[Screen]]:
    """The page as it is, as it would be, and the screens that were left as they are."""
    text = path.read_text(encoding="utf-8")
    parts = to_run(read_page(text), slow=slow)
    left = [part for part in parts if isinstance(part, Screen) and part.not_run]
    return text, new_text(text, parts), left


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.docs.check", description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: all of them")
    parser.add_argument("--write", action="store_true", help="update the pages")
    parser.add_argument("--slow", action="store_true", help="also run what takes minutes")
    options = parser.parse_args(argv)
    differ = []
    for path in options.pages or all_pages():
        text, new, left = check(path, slow=options.slow)
        name = str(path.resolve().relative_to(ROOT))
        for screen in left:
            print(f"{name}:{screen.line}: not run: {screen.not_run}")
        if new != text:
            differ.append(name)
            names = (name, f"{name} as printed now")
            print(*difflib.unified_diff(text.split("\n"), new.split("\n"), *names, lineterm=""), sep="\n")
            if options.write:
                path.write_text(new, encoding="utf-8")
        sys.stdout.flush()
    if not differ:
        print("all screens that were run are up to date")
        return 0
    print(f"{'updated' if options.write else 'different'}: {', '.join(differ)}")
    return 0 if options.write else 1


if __name__ == "__main__":
    sys.exit(main())
