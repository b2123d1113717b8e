"""Reserved ports are free for the daemon they are for, and for nobody else."""

from __future__ import annotations

import socket

import pytest

from slurm_gpumem.devcluster import daemons
from slurm_gpumem.devcluster.daemons import PortReservation


def listen(port: int) -> socket.socket:
    daemon = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    daemon.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    daemon.bind(("", port))
    daemon.listen()
    return daemon


def test_a_daemon_can_listen_on_a_port_that_is_still_reserved() -> None:
    with PortReservation(1) as reserved, listen(reserved.ports[0]):
        socket.create_connection(("127.0.0.1", reserved.ports[0]), timeout=5).close()


def test_two_reservations_share_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    # Twelve ports for two times six: a reservation that did not hold would be found out at once.
    with PortReservation(12) as found:
        free = found.ports
    monkeypatch.setattr(daemons.random, "sample", lambda *_: free)
    with PortReservation(6) as one, PortReservation(6) as other:
        assert len({*one.ports, *other.ports}) == 12


def test_a_port_in_use_is_not_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    with PortReservation(2) as found:
        taken, free = found.ports
    with listen(taken):
        monkeypatch.setattr(daemons.random, "sample", lambda *_: [taken, free])
        with PortReservation(1) as reserved:
            assert reserved.ports == [free]
