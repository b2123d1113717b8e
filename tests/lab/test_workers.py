"""Workers that stay, and a training job inside one; in processes of their own: torch is not forked here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.needs import needs_torch

_WORKER = """
import json, time
from lab.collect.workers import Worker, end_all

def work(send, orders):
    send({"ready": True})
    for order in orders:
        if order.get("die"):
            raise RuntimeError("as told")
        send({"twice": 2 * order["n"]})

worker, mute = Worker("a", work), Worker("b", lambda send, orders: time.sleep(600))
said = [worker.hear(time.monotonic() + 100)]
for n in (1, 20):
    worker.say({"n": n})
    said.append(worker.hear(time.monotonic() + 100))
worker.say({"die": True})
said.append(worker.hear(time.monotonic() + 100))
worker.say({"n": 1})
said.append(worker.hear(time.monotonic() + 100))
said.append(mute.hear(time.monotonic() + 0.05))
end_all([worker, mute])
print(json.dumps(said))
"""

_TRAINER = """
import json, time
from lab.collect.entries import load_catalogue
from lab.collect.sample import Job
from lab.collect.trainer import steps_between, trainer
from lab.collect.workers import Worker

entry = next(e for e in load_catalogue() if e.id == "own/lenet")
worker = Worker("lenet", trainer(Job(entry, 28, 4, "adam", "fp32"), "cpu"))
row = worker.hear(time.monotonic() + 100)
begin = time.monotonic()
worker.say({"until": begin + 2})
ends = worker.hear(begin + 100)["ends"]
worker.end()
print(json.dumps([row, [end - begin for end in ends], steps_between(ends, begin, begin + 2)]))
"""


def _printed(script: str) -> Any:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_worker_answers_order_after_order_and_its_end_is_told() -> None:
    ready, two, forty, died, dead, mute = _printed(_WORKER)
    assert (ready, two, forty) == ({"ready": True}, {"twice": 2}, {"twice": 40})
    assert "as told" in died["error"]
    assert "ended" in dead["error"]
    assert mute == {"error": "time limit: no answer"}


@needs_torch
def test_a_trainer_measures_first_and_then_trains_as_long_as_it_is_told() -> None:
    row, ends, rate = _printed(_TRAINER)
    assert row["steps"] == 5
    assert row["parameters"] > 40_000
    assert ends == sorted(ends)
    assert 0 < ends[0] < 2 <= ends[-1]
    inside = [end for end in ends if end <= 2]
    assert rate["steps"] == len(inside)
    assert rate["steps_per_s"] == pytest.approx((len(inside) - 1) / (inside[-1] - inside[0]), rel=0.01)


def test_a_rate_is_taken_between_the_first_and_the_last_end_inside_the_window() -> None:
    pytest.importorskip("torch")
    from lab.collect.trainer import steps_between

    assert steps_between([0.5, 1.0, 1.5, 2.0, 9.0], 0.9, 2.1) == {"steps": 3, "steps_per_s": 2.0}
    assert steps_between([0.5, 1.0], 0.9, 2.1) == {}


_AS_USER = """
import json, os, time
from lab.collect.workers import Worker

who = lambda send, orders: send({"uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups()})
worker = Worker("a", who, {}, 65531)
print(json.dumps(worker.hear(time.monotonic() + 100)))
worker.end()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="runs a worker as another user")
def test_a_worker_runs_as_the_user_it_is_given() -> None:
    assert _printed(_AS_USER) == {"uid": 65531, "gid": 65531, "groups": []}
