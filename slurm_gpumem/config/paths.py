"""Where the configuration files are: the site's, the user's, and what stands beside the site's."""

from __future__ import annotations

import os
from typing import Dict, Mapping, Optional

from slurm_gpumem.xdg import config_path

_SITE_CONFIG = "/etc/slurm/gpumem.toml"
SITE_VARIABLE = "GPUMEM_SITE_CONFIG"


def site_config_path(environ: Optional[Mapping[str, str]] = None) -> str:
    """The site's file: what GPUMEM_SITE_CONFIG names, else one beside SLURM_CONF, else in /etc/slurm."""
    env = os.environ if environ is None else environ
    beside = os.path.join(os.path.dirname(env.get("SLURM_CONF") or _SITE_CONFIG), "gpumem.toml")
    # Nodes without a slurm.conf of their own name a copy of Slurm's, which has no gpumem.toml beside it.
    return env.get(SITE_VARIABLE) or (beside if os.path.exists(beside) else _SITE_CONFIG)


def user_config_path() -> str:
    """The user's own file."""
    return config_path("gpumem.toml")


def beside_site_config(name: str, environ: Optional[Mapping[str, str]] = None) -> str:
    """Another file of the site, in the folder of its gpumem.toml."""
    return os.path.join(os.path.dirname(site_config_path(environ)), name)


def slurm_env(site_file: str) -> Dict[str, str]:
    """What Slurm's commands need in their environment to find the cluster of a site's file."""
    beside = os.path.join(os.path.dirname(site_file), "slurm.conf")
    return {} if os.environ.get("SLURM_CONF") or not os.path.isfile(beside) else {"SLURM_CONF": beside}
