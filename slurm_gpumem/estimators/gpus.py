"""The table of GPU types: models/gpus.toml, and the site's own entries over it."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from slurm_gpumem.config.paths import beside_site_config
from slurm_gpumem.data import data_file
from slurm_gpumem.errors import ConfigError, UnknownNameError, UsageError
from slurm_gpumem.estimators.types import RESERVE_MIB, Gpu
from slurm_gpumem.estimators.versions import cublas_workspace_bytes
from slurm_gpumem.formats.mig_profiles import PROFILE, profile_name
from slurm_gpumem.toml_file import load_toml

if TYPE_CHECKING:
    from pathlib import Path


# MIG instances: which profile a Slurm type names, and what one instance of it has (models/mig.toml).
#
# Sites and Slurm's AutoDetect write a profile with or without its GPU: "1g.18gb", "a100_2g.10gb",
# "nvidia_h100_80gb_hbm3_1g.10gb", "h100-1g.10gb". The same profile may be of several GPUs; where the GPU is
# not named, what holds on all of them counts.


class Profile(NamedTuple):
    """What one instance of a profile has on one GPU."""

    name: str
    """ "1g.18gb"."""
    gpu: str
    """Its entry in the GPU table."""
    mib: int
    sms: Optional[int]
    slices: int
    most_slices: int
    """Compute slices of the whole GPU."""
    most_mib: int
    """Memory of the profile that is the whole GPU."""


def gpu_in(gpu_type: str) -> str:
    """What a type with a profile says of the GPU: "nvidia_a100" of "nvidia_a100_1g.5gb"; may be empty."""
    rest = re.sub(PROFILE, " ", gpu_type)
    return re.sub(r"(?i)(?<![a-z0-9])mig(?![a-z0-9])", " ", rest).strip(" _-.:")


def profiles(name: str, gpus: Optional[Sequence[str]] = None) -> List[Profile]:
    """This profile on each GPU that has it, of `gpus` or of all."""
    return [table[name] for gpu, table in _table().items() if name in table and (gpus is None or gpu in gpus)]


def profile_names(gpus: Optional[Sequence[str]] = None) -> Tuple[str, ...]:
    """Every profile of these GPUs, or of all."""
    found = {name for gpu, table in _table().items() if gpus is None or gpu in gpus for name in table}
    return tuple(sorted(found))


@lru_cache(maxsize=1)
def _table() -> Dict[str, Dict[str, Profile]]:
    # A submission on a site without MIG asks for names only.
    from slurm_gpumem.data import data_file
    from slurm_gpumem.toml_file import load_toml

    return {gpu: _profiles(gpu, fields) for gpu, fields in load_toml(data_file("models", "mig.toml")).items()}


def _profiles(gpu: str, fields: Dict[str, Any]) -> Dict[str, Profile]:
    rows = {name: row for name, row in fields.items() if isinstance(row, dict)}
    slices, mib = max(row["slices"] for row in rows.values()), max(row["mib"] for row in rows.values())
    return {
        name: Profile(name, gpu, row["mib"], row.get("sms"), row["slices"], slices, mib)
        for name, row in rows.items()
    }


DEFAULT_GPU = "h200"
SITE_GPUS = "gpumem-gpus.toml"

_NUMBERS = (
    "memory_mib",
    "context_mib",
    "context_bare_mib",
    "context_conv_mib",
    "context_matmul_mib",
    "cublas_workspace_bytes",
    "sms",
    "bandwidth_gb_s",
    "clock_mhz",
)
# Words of Slurm types and of NVML names that say nothing about which GPU it is.
_NOISE = {"nvidia", "tesla", "geforce", "quadro", "gpu", "graphics", "generation", "edition"}
_SEVEN = 7
_MEMORY_WORD = re.compile(r"([0-9]+)(?:gb?|gib)?")
_GPU_NAME = r"rtx[ _-]?(?:pro[ _-]?|a)?[0-9]{4}|(?:mi|[a-z]{1,2})[0-9]{1,4}[a-z]{0,2}"

Entry = Dict[str, Any]


def site_gpu_file() -> Path:
    """Where the site's own entries stand: beside its gpumem.toml."""
    from pathlib import Path

    return Path(beside_site_config(SITE_GPUS))


def gpu_table(site_file: Optional[Path] = None) -> Dict[str, Gpu]:
    """All known GPU types by name; the site's entries override the package's field by field."""
    return {name: _gpu(name, entry) for name, entry in _entries(site_file).items()}


def find_gpu(name: str, site_file: Optional[Path] = None) -> Gpu:
    """The entry a person means by `name`; UnknownNameError when there is none."""
    if "," in name:
        raise UsageError(f"GPU {name!r}: name one type; gpumem fit compares several (--gpu A --gpu B)")
    entries = _entries(site_file)
    profile = profile_name(name)
    if profile:
        found, rows = _instances(name, profile, entries)
        if found:
            return _instance_gpu(name, found, None, entries)
        if name.strip().lower() not in entries:
            raise UnknownNameError("MIG profile", name, list(profile_names(rows)))
    matched = _match(name, None, entries)
    if matched is None:
        raise UnknownNameError("GPU", name, sorted(entries))
    return _gpu(matched, entries[matched])


def closest_gpu(type_name: Optional[str], memory_mib: Optional[int], site_file: Optional[Path] = None) -> Gpu:
    """The entry that best matches a Slurm GPU type and its memory; an unknown type is no error.

    Slurm types are free text ("a100", "nvidia_a100-sxm4-40gb"). An unknown one gets the entry of
    the nearest memory size. The result keeps Slurm's name and, where given, Slurm's memory;
    `entry` says which row it was taken from (empty for an unknown type). A MIG profile in the name
    makes it an instance of that GPU; an unknown profile is an unknown type.
    """
    entries = _entries(site_file)
    profile = profile_name(type_name)
    if profile and type_name:
        found, _ = _instances(type_name, profile, entries)
        if found:
            return _instance_gpu(type_name, found, memory_mib, entries)
    if profile and type_name and type_name.strip().lower() not in entries:
        return closest_gpu(None, memory_mib, site_file)._replace(name=type_name, profile=profile)
    matched = _match(type_name, memory_mib, entries) if type_name else None
    row = matched or _nearest_memory(memory_mib, entries)
    gpu = _gpu(row, entries[row])
    reserve_mib = gpu.reserve_mib if memory_mib is None and not profile else 0
    if matched is None:
        # Of another type's row only what every job takes is believed.
        gpu = Gpu(
            name=gpu.name,
            memory_mib=gpu.memory_mib,
            context_mib=gpu.context_mib,
            context_bare_mib=gpu.context_bare_mib,
            context_conv_mib=gpu.context_conv_mib,
            context_matmul_mib=gpu.context_matmul_mib,
            cublas_workspace_bytes=gpu.cublas_workspace_bytes,
            source=f"GPU type not in the table: context as for {gpu.name}",
        )
    return gpu._replace(
        name=type_name or gpu.name,
        memory_mib=memory_mib or gpu.memory_mib,
        reserve_mib=reserve_mib,
        profile=profile or "",
    )


@lru_cache(maxsize=256)
def family_of(name: str) -> str:
    """The package's row of a name, whatever its memory: "a100" of "NVIDIA A100-SXM4-80GB"; "" for none.

    A site's own entries do not change what the names of one GPU have in common.
    """
    matched = _match(gpu_in(name) or name, None, _package_entries())
    return matched.split("-")[0] if matched else ""


def plain_gpu(name: str) -> str:
    """What is common to the names of one GPU type: "a100" of "nvidia_a100-sxm4-40gb" and of "A100"."""
    family = family_of(name)
    if family:
        return family
    match = re.search(_GPU_NAME, name.lower().replace("nvidia", ""))
    return re.sub(r"[ _-]", "", match[0]) if match else name.lower()


# -- MIG instances -------------------------------------------------------------------------------


def _instances(
    text: str, profile: str, entries: Mapping[str, Entry]
) -> Tuple[List[Profile], Optional[List[str]]]:
    """The profile on each GPU that `text` may mean, and those GPUs; None: it names none."""
    named = gpu_in(text)
    matched = _match(named, None, entries) if named else None
    if matched is None:
        return profiles(profile), None
    # "h100_1g.12gb" is one of an H100 NVL: a name without a size may mean each of its sizes.
    family = matched.split("-")[0]
    rows = [name for name in entries if name == family or name.startswith(f"{family}-")]
    return (profiles(profile, [matched]) if matched != family else []) or profiles(profile, rows), rows


def _instance_gpu(
    name: str, found: List[Profile], memory_mib: Optional[int], entries: Mapping[str, Entry]
) -> Gpu:
    """An instance as a GPU: its own memory and part of the rates, context and workspaces of the whole one.

    Where several GPUs have the profile, the least memory and multiprocessors count, and the largest context.
    """
    whole = [_gpu(profile.gpu, entries[profile.gpu]) for profile in found]
    at = max(range(len(found)), key=lambda index: whole[index].context_mib)
    gpu, profile = whole[at], found[at]
    sms = min(_multiprocessors(one, of) for one, of in zip(found, whole))
    share = sms / (gpu.sms or sms)
    instance = gpu._replace(
        name=name,
        memory_mib=memory_mib or min(one.mib for one in found),
        sms=sms,
        tflops=tuple(rate * share for rate in gpu.tflops),
        bandwidth_gb_s=gpu.bandwidth_gb_s and round(gpu.bandwidth_gb_s * profile.mib / profile.most_mib),
        utilization_measured=False,
        calibrated=False,
        workspaces_measured=False,
        source=f"{profile.name} of {profile.gpu}; context of the whole GPU",
        reserve_mib=0,
        profile=profile.name,
    )
    own = entries.get(name.strip().lower()) or (
        entries.get(f"{profile.gpu}_{profile.name}") if len(found) == 1 else None
    )
    if own is None:
        return instance
    # The site measured on an instance: its fields hold, the rest is part of the whole GPU's.
    measured = _gpu(profile.gpu, {**entries[profile.gpu], **own})
    return measured._replace(
        name=name,
        memory_mib=memory_mib or measured.memory_mib,
        sms=measured.sms if "sms" in own else sms,
        tflops=measured.tflops if "tflops" in own else instance.tflops,
        bandwidth_gb_s=measured.bandwidth_gb_s if "bandwidth_gb_s" in own else instance.bandwidth_gb_s,
        utilization_measured=own.get("utilization_measured", False) is True,
        workspaces_measured=own.get("workspaces_measured", False) is True,
        reserve_mib=0,
        profile=profile.name,
    )


def _multiprocessors(profile: Profile, gpu: Gpu) -> int:
    """As listed; else by slices, of which a GPU with seven has one more that no instance gets."""
    slices = profile.most_slices + (1 if profile.most_slices == _SEVEN else 0)
    return profile.sms or (gpu.sms or 0) // slices * profile.slices


# -- Reading -------------------------------------------------------------------------------------


def _entries(site_file: Optional[Path]) -> Dict[str, Entry]:
    """Each GPU's fields: defaults, then the package's, then the site's."""
    defaults, entries = _package_tables()["defaults"], _package_entries()
    path = beside_site_config(SITE_GPUS) if site_file is None else os.fspath(site_file)
    if os.path.exists(path):
        for name, fields in load_toml(path).items():
            key = name.lower()
            _check(path, key, fields, known=key in entries)
            entries[key] = {**entries.get(key, defaults), **fields, "calibrated": True}
    return entries


def _package_entries() -> Dict[str, Entry]:
    tables = _package_tables()
    return {name: {**tables["defaults"], **fields} for name, fields in tables.items() if name != "defaults"}


@lru_cache(maxsize=1)
def _package_tables() -> Dict[str, Entry]:
    """The package's own file, read once: a submission asks for several GPUs."""
    return load_toml(data_file("models", "gpus.toml"))


def _check(path: str, name: str, fields: object, *, known: bool) -> None:
    """A site's entry is written by people: say what is wrong with it, and where."""
    if not isinstance(fields, dict):
        raise ConfigError(f"{path}: {name!r} must be a section with a GPU's fields, like [{name}]")
    for field in _NUMBERS:
        value = fields.get(field, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{path}: [{name}] {field} must be a positive whole number, not {value!r}")
    factor = fields.get("host_factor", 1.0)
    if not isinstance(factor, (int, float)) or isinstance(factor, bool) or not 0.01 <= factor <= 100:
        raise ConfigError(f"{path}: [{name}] host_factor must be a number like 1.2, not {factor!r}")
    rates = fields.get("tflops", [1.0] * 3)
    if not isinstance(rates, list) or len(rates) != 3 or not all(_is_rate(rate) for rate in rates):
        raise ConfigError(
            f"{path}: [{name}] tflops must be three numbers (fp32, TF32, half precision), not {rates!r}"
        )
    scales = fields.get("workspace_scale", [1.0] * 3)
    if not isinstance(scales, list) or len(scales) != 3 or not all(_is_scale(scale) for scale in scales):
        raise ConfigError(
            f"{path}: [{name}] workspace_scale must be three numbers from 0.1 to 10 (fp32, fp16, bf16), "
            f"not {scales!r}"
        )
    aliases = fields.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise ConfigError(f"{path}: [{name}] aliases must be a list of names, not {aliases!r}")
    if not known and "memory_mib" not in fields:
        raise ConfigError(
            f"{path}: [{name}] is a new GPU type and needs memory_mib (as nvidia-smi prints it)"
        )


def _is_rate(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_scale(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0.1 <= value <= 10


def _gpu(name: str, entry: Mapping[str, Any]) -> Gpu:
    capability = str(entry.get("compute_capability", ""))
    numbers = {key: entry[key] for key in _NUMBERS if key in entry}
    return Gpu(
        name=name,
        **{"cublas_workspace_bytes": cublas_workspace_bytes(capability), **numbers},
        compute_capability=capability,
        tflops=tuple(entry.get("tflops", ())),
        host_factor=float(entry.get("host_factor", 1.0)),
        utilization_measured=entry.get("utilization_measured", False) is True,
        entry=name,
        measured=entry.get("measured", False) is True,
        calibrated=entry.get("calibrated", False) is True and entry.get("measured", False) is True,
        workspaces_measured=entry.get("workspaces_measured", False) is True,
        workspace_scale=tuple(entry.get("workspace_scale", ())),
        source=str(entry.get("source", "")),
        reserve_mib=RESERVE_MIB,
    )


# -- Matching ------------------------------------------------------------------------------------


def _match(text: str, memory_mib: Optional[int], entries: Mapping[str, Entry]) -> Optional[str]:
    """The entry that `text` names; among memory sizes the one of `memory_mib` or of the text's own "80gb"."""
    lowered = text.strip().lower()
    words = [w for w in re.split(r"[^a-z0-9]+", lowered) if w and w not in _NOISE]
    # A site may name an entry exactly as its Slurm type, noise and all.
    named, rest = (lowered, []) if lowered in entries else _longest_name(words, entries)
    if named is None:
        return None
    siblings = [name for name in entries if name == named or name.startswith(f"{named}-")]
    if memory_mib is None:
        memory_mib = _memory_in(rest)
    if memory_mib is None:
        return named
    # Slurm's memory may leave out what the site reserves: the nearest size is the one meant.
    return min(siblings, key=lambda name: abs(entries[name]["memory_mib"] - memory_mib))


def _longest_name(words: List[str], entries: Mapping[str, Entry]) -> Tuple[Optional[str], List[str]]:
    """The longest name or alias that the words begin with, from any word on, and the words after it."""
    names = {_letters(name): name for name in entries}
    for name, entry in entries.items():
        for alias in entry.get("aliases", ()):
            names.setdefault(_letters(alias), name)
    names.pop("", None)
    best: Tuple[int, Optional[str], List[str]] = (0, None, [])
    for start in range(len(words)):
        joined = ""
        for end in range(start, len(words)):
            joined += words[end]
            if joined in names and len(joined) > best[0]:
                best = (len(joined), names[joined], words[end + 1 :])
        # "a100sxm4", "h10080gb": a name and more in one word.
        for spelled, name in names.items():
            glued = words[start][len(spelled) :]
            if words[start].startswith(spelled) and len(spelled) > best[0] and _is_suffix(glued):
                best = (len(spelled), name, [glued, *words[start + 1 :]])
    return best[1], best[2]


def _letters(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _is_suffix(text: str) -> bool:
    return re.fullmatch(r"(?:sxm|pcie|nvl|hbm)[0-9a-z]*|[1-9][0-9]{0,2}gb?", text) is not None


def _memory_in(words: List[str]) -> Optional[int]:
    """MiB of the first word that reads like a memory size ("80gb", "40"); "sxm4" or "3g" do not."""
    for word in words:
        found = _MEMORY_WORD.fullmatch(word)
        if found and int(found[1]) >= 8:
            return int(found[1]) * 1024
    return None


def _nearest_memory(memory_mib: Optional[int], entries: Mapping[str, Entry]) -> str:
    if memory_mib is None:
        return DEFAULT_GPU
    return min(entries, key=lambda name: abs(entries[name]["memory_mib"] - memory_mib))
