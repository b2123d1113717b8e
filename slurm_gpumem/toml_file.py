"""Read a TOML file on any Python from 3.9 on, with errors for people."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, Union

from slurm_gpumem.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def load_toml(path: Union[str, os.PathLike[str]]) -> Dict[str, Any]:
    """The file's tables; ConfigError names the file and the line when it is not TOML."""
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from None
