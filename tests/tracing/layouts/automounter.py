"""A small automount daemon for the kernel's autofs: mounts SOURCE/NAME on POINT/NAME when it is looked at.

python3 automounter.py indirect POINT SOURCE     or: direct POINT SOURCE (SOURCE itself on POINT)

Prints "ready" when its point is mounted, and serves until it is killed.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys

_READY, _FAIL = 0x9360, 0x9361
_MISSING_INDIRECT, _MISSING_DIRECT = 3, 5
_HEAD = struct.Struct("iiIIQIIIII")


def main(kind: str, point: str, source: str) -> None:
    os.setpgrp()
    read_end, write_end = os.pipe()
    options = f"fd={write_end},pgrp={os.getpgrp()},minproto=5,maxproto=5,{kind}"
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"automounter", point.encode(), b"autofs", 0, options.encode()):
        sys.exit(f"autofs: {os.strerror(ctypes.get_errno())}")
    os.close(write_end)
    handle = os.open(point, os.O_RDONLY | os.O_DIRECTORY)
    print("ready", flush=True)
    while True:
        packet = os.read(read_end, 4096)
        if not packet:
            return
        _, what, token, _, _, _, _, _, _, length = _HEAD.unpack_from(packet)
        name = packet[_HEAD.size : _HEAD.size + length].decode()
        inner = what == _MISSING_INDIRECT
        target = os.path.join(point, name) if inner else point
        wanted = os.path.join(source, name) if inner else source
        done = False
        if os.path.ismount(target) and inner:
            done = True  # asked for from a namespace in which it is not
        elif os.path.isdir(wanted) and what in (_MISSING_INDIRECT, _MISSING_DIRECT):
            if inner:
                os.mkdir(target)
            done = subprocess.run(["mount", "--bind", wanted, target], check=False).returncode == 0
        fcntl.ioctl(handle, _READY if done else _FAIL, token)


if __name__ == "__main__":
    main(*sys.argv[1:])
