"""Accounts, their coordinators and limits: `sacctmgr`."""

from __future__ import annotations

from typing import NamedTuple, Tuple

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.slurm.client import COMMANDS, SlurmClient

_TIMEOUT_S = 5.0


class Limit(NamedTuple):
    """TRES limits of a QOS or an association."""

    entity: str
    """What `sacctmgr modify` calls it: "qos normal", "account phys", "user anna account=phys"."""
    name: str
    """The limit as `sacctmgr ... set` takes it: "MaxTRESPerUser"."""
    tres: str


def ask_coordinators(client: SlurmClient = COMMANDS) -> Tuple[str, ...]:
    """Users who coordinate an account; none without slurmdbd."""
    try:
        text = _show(client, "account", "withcoord", "format=coordinators")
    except SlurmError:
        return ()
    names = {name.strip() for line in text.splitlines() for name in line.split(",")}
    return tuple(sorted(names - {""}))


def ask_limits(client: SlurmClient = COMMANDS) -> Tuple[Limit, ...]:
    """The limits of every QOS, account and user; SlurmError when nobody may be asked."""
    qos = _show(client, "qos", "format=Name,GrpTRES,MaxTRES,MaxTRESPU,MaxTRESPA")
    return parse_limits(qos, _show(client, "assoc", "format=Account,User,GrpTRES,MaxTRES"))


def parse_limits(qos: str, associations: str) -> Tuple[Limit, ...]:
    """Limits of the lines that `ask_limits` asks for."""
    names = ("GrpTRES", "MaxTRESPerJob", "MaxTRESPerUser", "MaxTRESPerAccount")
    found = []
    for line in qos.splitlines():
        name, *values = line.split("|")
        found += [Limit(f"qos {name}", limit, tres) for limit, tres in zip(names, values) if tres]
    for line in associations.splitlines():
        account, user, *values = [*line.split("|"), "", ""]
        entity = f"user {user} account={account}" if user else f"account {account}"
        found += [Limit(entity, limit, tres) for limit, tres in zip(names, values) if tres]
    return tuple(dict.fromkeys(found))


def _show(client: SlurmClient, *what: str) -> str:
    return client.run(["sacctmgr", "-n", "-P", "show", *what], timeout_s=_TIMEOUT_S)
