"""A mail to a job's user, by the program that the site's slurm.conf names for mails (MailProg).

Its address is the user's own word, and the program runs as that user: it can do nothing to anybody else.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from typing import NamedTuple, Optional

from slurm_gpumem.errors import SlurmError
from slurm_gpumem.other_user import as_user
from slurm_gpumem.slurm.client import SlurmClient
from slurm_gpumem.slurm.config_show import show_config

_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+%-]*(@[A-Za-z0-9][A-Za-z0-9.-]*)?")
"""Nothing that a mail program takes for an option, a file or a command."""
_MAIL_USER = re.compile(r"^ *MailUser=(\S+)", re.MULTILINE)
_JOB_NAME = re.compile(r"^JobId=[0-9]+ .*?JobName=(\S*)")
_TIMEOUT_S = 30.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class MailError(SlurmError):
    """No mail went out; says why."""


class JobWords(NamedTuple):
    """What scontrol says of a job and its owner may have written."""

    name: str = ""
    mail_user: str = ""


def words_of(client: SlurmClient, job_name: str) -> JobWords:
    """The job's name and whom it wants mails to go to."""
    text = client.run(["scontrol", "show", "job", job_name], timeout_s=5.0)
    called, mailed = _JOB_NAME.match(text), _MAIL_USER.findall(text)
    # The last: what a user wrote into a name or comment stands before it.
    return JobWords(called[1] if called else "", mailed[-1] if mailed else "")


def send(client: SlurmClient, uid: int, words: JobWords, subject: str, body: str) -> None:
    """Hand it to the site's program, as that user; MailError or SlurmError when that does not work."""
    config = show_config(client)
    program = config.get("MailProg", "")
    address = address_of(words.mail_user, uid, config.get("MailDomain", ""))
    if not os.access(program, os.X_OK):
        raise MailError(f"MailProg {program or '(none)'} is not on this node")
    if address is None:
        raise MailError(f"{words.mail_user or uid!r} is no mail address")
    try:
        done = subprocess.run(
            [program, "-s", subject, address],
            input=body.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
            cwd="/",
            env={"PATH": _PATH, "HOME": "/", "LANG": "C.UTF-8"},
            start_new_session=True,
            **as_user(uid),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MailError(f"{program}: {error}") from None
    if done.returncode:
        raise MailError(f"{program}: exit code {done.returncode}")


def address_of(wanted: str, uid: int, domain: str) -> Optional[str]:
    """Where Slurm itself would mail to; None for what is no plain address, or an unknown user."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
    address = wanted or name
    if "@" not in address and domain not in ("", "(null)"):
        address = f"{address}@{domain}"
    return address if _ADDRESS.fullmatch(address) else None
