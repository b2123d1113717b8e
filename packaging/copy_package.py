"""copy_package.py SITELIB BIN: the Python code and its commands, as a wheel would install them.

For packages of another Python than the one that builds them: the code is the same, only its folder differs.
What is copied is what setup.cfg says of the wheel. Run at the top of the sources.
"""

from __future__ import annotations

import configparser
import shutil
import sys
from pathlib import Path
from typing import Iterable

_COMMAND = """\
#!/usr/bin/python3
import sys

from {module} import {function}

sys.exit({function}())
"""


def main(sitelib: Path, commands: Path) -> None:
    """Copy the package and write the commands."""
    config = configparser.ConfigParser()
    config.read("setup.cfg")
    for folder in [Path("slurm_gpumem"), *sorted(Path("slurm_gpumem").rglob("*/"))]:
        if (folder / "__init__.py").exists():
            _copy(folder.glob("*.py"), sitelib)
    for module, patterns in config["options.package_data"].items():
        folder = Path(*module.split("."))
        for pattern in patterns.split():
            _copy(folder.glob(pattern), sitelib)
    commands.mkdir(parents=True, exist_ok=True)
    for line in config["options.entry_points"]["console_scripts"].strip().splitlines():
        name, place = (word.strip() for word in line.split("="))
        module, function = place.split(":")
        path = commands / name
        path.write_text(_COMMAND.format(module=module, function=function))
        path.chmod(0o755)


def _copy(files: Iterable[Path], sitelib: Path) -> None:
    for path in files:
        target = sitelib / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
