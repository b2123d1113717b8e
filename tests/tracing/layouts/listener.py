"""Somebody who listens, as agents, session buses and Slurm's controller do.

python3 listener.py LOG PORT SOCKET ... prints "ready", and writes a line to LOG for every connection.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
from typing import List


def main(log: str, port: str, paths: List[str]) -> None:
    chosen = selectors.DefaultSelector()
    tcp = socket.create_server(("127.0.0.1", int(port)))
    chosen.register(tcp, selectors.EVENT_READ, f"port {port}")
    for path in paths:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        listening = socket.socket(socket.AF_UNIX)
        # As some programs do: the kernel goes on listing the first name.
        listening.bind(path + ".new")
        os.rename(path + ".new", path)
        os.chmod(path, 0o777)
        listening.listen()
        chosen.register(listening, selectors.EVENT_READ, path)
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("\0gpumem-layout")
    abstract.listen()
    chosen.register(abstract, selectors.EVENT_READ, "abstract")
    print("ready", flush=True)
    while True:
        for key, _ in chosen.select():
            key.fileobj.accept()  # type: ignore[union-attr]
            with open(log, "a", encoding="utf-8") as file:
                file.write(f"{key.data}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
