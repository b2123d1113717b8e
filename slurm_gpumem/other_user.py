"""Run a program as another user: for root, who must not do in a user's name what that user could not do."""

from __future__ import annotations

import os
import pwd
from typing import Any, Dict


def as_user(uid: int) -> Dict[str, Any]:
    """Popen's words for becoming the user, with all groups: a site may keep /dev/nvidia* for one of them.

    No words where we are not root: then we are that user already, or cannot become it.
    """
    if os.geteuid() != 0:
        return {}
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return {"user": uid, "group": uid, "extra_groups": []}
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    return {"user": uid, "group": account.pw_gid, "extra_groups": groups}
