"""Try a site's Lua files with a Lua interpreter: do they load, and what does the site table say?"""

from __future__ import annotations

import os.path
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

INTERPRETERS = ("lua5.1", "lua5.4", "lua5.3", "lua5.2", "lua", "luajit")
"""Debian's Slurm links 5.1, so that one first."""

# The site's own job_submit.lua is only compiled: running it here could do anything.
_PROGRAM = r"""
local folder = arg[1]
local function broken(name, why)
  print("broken\t" .. name .. "\t" .. tostring(why):gsub("%s+", " "))
end
local chunk, why = loadfile(folder .. "/job_submit.lua")
if not chunk then broken("job_submit.lua", why) end
local loaded, gpumem = pcall(dofile, folder .. "/gpumem.lua")
if not loaded then
  broken("gpumem.lua", gpumem)
elseif type(gpumem) ~= "table" or not gpumem.after then
  broken("gpumem.lua", "is not the plug-in")
elseif not gpumem.site then
  broken("gpumem_site.lua", gpumem.site_error)
else
  for _, key in ipairs({ "mode", "gres", "shard_mib", "separator" }) do
    print("site\t" .. key .. "\t" .. tostring(gpumem.site[key]))
  end
  for name, mode in pairs(gpumem.site.modes or {}) do
    print("site\t" .. "mode of " .. name .. "\t" .. mode)
  end
  for name, gpus in pairs(gpumem.site.partitions) do
    print("partition\t" .. name)
    for _, gpu in ipairs(gpus) do
      print("gpu\t" .. name .. "\t" .. (gpu.type or "") .. "\t" .. string.format("%d", gpu.shares))
    end
  end
end
"""


# A site's own file may need a newer Lua than the first one here, and Slurm may have that one.
_COMPILES = """
for number = 2, #arg do
  local chunk, why = loadfile(arg[1] .. "/" .. arg[number])
  if not chunk then print("broken\\t" .. arg[number] .. "\\t" .. tostring(why):gsub("%s+", " ")) end
end
"""


@dataclass(frozen=True)
class LuaReport:
    """What came of loading the files."""

    broken: Tuple[Tuple[str, str], ...] = ()
    """File and why it does not load."""
    site: Mapping[str, str] = field(default_factory=dict)
    """mode, gres, shard_mib and separator of gpumem_site.lua, and "mode of NAME" of partitions."""
    partitions: Mapping[str, Tuple[Tuple[str, int], ...]] = field(default_factory=dict)
    """Type ("" for none) and shares of one GPU, for each kind of GPU of each partition."""


def try_lua(folder: Path) -> Optional[LuaReport]:
    """The report on a folder's files; None without an interpreter that answers."""
    interpreter = next((found for found in map(shutil.which, INTERPRETERS) if found), None)
    return None if interpreter is None else _ran(interpreter, _PROGRAM, "gpumem.lua", str(folder))


def try_filter(folder: Path, names: Sequence[str]) -> Optional[Mapping[str, LuaReport]]:
    """For each Lua interpreter here, which of these files it cannot compile; None without an interpreter."""
    found = dict.fromkeys(os.path.realpath(path) for path in map(shutil.which, INTERPRETERS) if path)
    reports = {
        os.path.basename(lua): _ran(lua, _COMPILES, names[0], str(folder), *names) for lua in found if names
    }
    return reports or None


def _ran(interpreter: str, program: str, blamed: str, *args: str) -> LuaReport:
    try:
        done = subprocess.run(
            [interpreter, "-", *args], input=program.encode(), capture_output=True, timeout=5.0, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return LuaReport(broken=((blamed, f"{interpreter} did not end within 5 s"),))
    if done.returncode != 0:
        return LuaReport(broken=((blamed, done.stderr.decode(errors="replace").strip()),))
    return parse_report(done.stdout.decode(errors="replace"))


def parse_report(text: str) -> LuaReport:
    """Read what the program prints."""
    broken: List[Tuple[str, str]] = []
    site: Dict[str, str] = {}
    partitions: Dict[str, List[Tuple[str, int]]] = {}
    for line in text.splitlines():
        what, *values = line.split("\t")
        if what == "broken" and len(values) == 2:
            broken.append((values[0], values[1]))
        elif what == "site" and len(values) == 2:
            site[values[0]] = values[1]
        elif what == "partition" and len(values) == 1:
            partitions.setdefault(values[0], [])
        elif what == "gpu" and len(values) == 3 and re.fullmatch("[0-9]{1,9}", values[2]):
            partitions.setdefault(values[0], []).append((values[1], int(values[2])))
    return LuaReport(tuple(broken), site, {name: tuple(gpus) for name, gpus in partitions.items()})
