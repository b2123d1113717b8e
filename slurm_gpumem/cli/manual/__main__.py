"""`python -m slurm_gpumem.cli.manual DIR`: write man pages and completion below DIR, like ~/.local/share."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Dict, List, Optional

from slurm_gpumem.cli.manual import shells
from slurm_gpumem.cli.manual.commands import Command, all_programs, values_by_flag
from slurm_gpumem.cli.manual.config_page import config_page, example_file
from slurm_gpumem.cli.manual.roff import CONFIG_PAGE, command_page
from slurm_gpumem.cli.parser import Parser


def main(argv: Optional[List[str]] = None) -> int:
    """Entry point."""
    parser = Parser(prog="python -m slurm_gpumem.cli.manual", description=__doc__)
    parser.add_argument("folder", metavar="DIR", type=Path, help="such as ~/.local/share or /usr/share")
    args = parser.parse_args(argv)
    # Packages that are built twice from the same sources are the same.
    made = float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    for name, text in manual_files(made).items():
        path = args.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


def manual_files(made: float) -> Dict[str, str]:
    """Every file by its path below the folder of shared data."""
    files = {
        f"man/man5/{CONFIG_PAGE}.5": config_page(made),
        f"doc/slurm-gpumem/examples/{CONFIG_PAGE}": example_file(),
    }
    programs, values = all_programs(), values_by_flag()
    tops = [program.name for program in programs]
    for program in programs:
        pages: List[Command] = [program, *program.commands]
        for page in pages:
            others = [name for name in (*tops, CONFIG_PAGE) if name != page.name]
            files[f"man/man1/{page.name}.1"] = command_page(page, made, others)
        name = program.name
        files[f"bash-completion/completions/{name}"] = shells.bash(program, values)
    return files


if __name__ == "__main__":
    sys.exit(main())
