"""The units under a real systemd: installed from the wheel, started, killed, hung, drained, ended.

``make systemd``, or ``python -m tests.systemd.booted``. Where systemd cannot boot it says why, and
that is no failure unless ``--require`` is given.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from tests.systemd.installed import Installed
from tests.systemd.machine import CannotBootError, Machine, until

#: Long enough for a disaster to find it unfinished, at thousands of tokens per second.
_TOKENS = 2_000
#: Until a service that was killed is back, with torch to be imported.
_BACK_S = 90.0
#: Two watchdog periods and the time that a stopped process has to die of its signal, at most.
_WATCHDOG_S = 60.0
_SCHEDULER, _GATEWAY, _WORKER = (
    "aegaeon-scheduler.service",
    "aegaeon-gateway.service",
    "aegaeon-worker@0.service",
)
#: Where another release is installed beside the first one.
_NEXT = "/opt/aegaeon-next"
_SERVICES = (_SCHEDULER, _GATEWAY, _WORKER)


def services_are_ready_when_systemctl_returns(it: Installed) -> None:
    it.enable(*_SERVICES)
    for unit in _SERVICES:
        assert it.machine.shown(unit, "ActiveState") == "active", it.log(unit)
        assert it.machine.shown(unit, "NRestarts") == "0", it.log(unit)
    it.aegaeon("probe", it.ADDRESS)
    it.http("/ready")  # raises unless it is


def services_have_no_rights(it: Installed) -> None:
    for unit in _SERVICES:
        status = it.status(unit)
        assert status["CapEff"] == status["CapBnd"] == "0" * 16, (unit, status)
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert status["Uid"].split()[0] != "0"
    # What a sandbox takes away from a program is told as a warning somewhere.
    warnings = it.machine.journal("--priority=warning", "--unit=aegaeon-*")
    assert not warnings, warnings


def a_model_is_served_over_http_and_grpc(it: Installed) -> None:
    it.deploy()
    answer = it.http("/v1/completions", {"model": it.MODEL, "prompt": "a", "max_tokens": 8})
    assert answer["usage"]["completion_tokens"] == 8
    it.expected = it.ask(_TOKENS).tokens()
    assert len(it.expected) == _TOKENS


def the_worker_has_what_it_needs(it: Installed) -> None:
    found = it.machine.run("find", "/dev/shm", "-name", "*.weights*", "-o", "-path", "*aegaeon*")
    assert found, "no shared memory"
    limits = it.machine.run("cat", f"/proc/{it.pid(_WORKER)}/limits")
    line = next(line for line in limits.splitlines() if line.startswith("Max locked memory"))
    # As much as this machine's own hard limit lets the manager give.
    hard = it.machine.run("cat", "/proc/1/limits")
    own = next(line for line in hard.splitlines() if line.startswith("Max locked memory"))
    assert line.split()[3:5] == [own.split()[4]] * 2, (line, own)
    it.machine.run("test", "-s", "/var/lib/aegaeon/scheduler.json")


def a_request_survives_a_killed_worker(it: Installed) -> None:
    before = it.pid(_WORKER)
    asked = it.ask(_TOKENS)
    asked.begun()
    it.machine.run("systemctl", "kill", "--signal=KILL", _WORKER)
    assert asked.tokens() == it.expected
    until(lambda: it.pid(_WORKER) not in (0, before), _BACK_S, "it was restarted")
    assert it.machine.shown(_WORKER, "NRestarts") == "1"


def a_request_survives_a_killed_scheduler(it: Installed) -> None:
    asked = it.ask(_TOKENS)
    asked.begun()
    it.machine.run("systemctl", "kill", "--signal=KILL", _SCHEDULER)
    assert asked.tokens() == it.expected
    assert it.machine.shown(_SCHEDULER, "NRestarts") == "1"


def the_watchdog_restarts_a_scheduler_that_hangs(it: Installed) -> None:
    before, since = it.pid(_SCHEDULER), time.monotonic()
    asked = it.ask(_TOKENS)
    asked.begun()
    it.machine.run("kill", "-STOP", str(before))
    until(lambda: it.pid(_SCHEDULER) not in (0, before), _WATCHDOG_S, "it was restarted")
    print(f"    restarted {time.monotonic() - since:.1f} s after it was stopped")
    assert asked.tokens() == it.expected
    assert "atchdog timeout" in it.log(_SCHEDULER)


def another_release_takes_the_place_of_one_daemon_by_daemon(it: Installed) -> None:
    it.install(_NEXT)
    asked = it.ask(_TOKENS)
    asked.begun()
    assert not any(it.runs_in(unit, _NEXT) for unit in _SERVICES)
    it.machine.run("systemctl", "restart", _WORKER)
    it.machine.run("systemctl", "restart", _SCHEDULER)
    assert asked.tokens() == it.expected
    it.aegaeon("drain", "--address", it.ADDRESS, it.NODE, "--worker", "0")
    it.machine.run("systemctl", "restart", _WORKER, _GATEWAY)
    assert all(it.runs_in(unit, _NEXT) for unit in _SERVICES)
    assert it.ask(_TOKENS).tokens() == it.expected


def everything_is_restarted_amid_a_request(it: Installed) -> None:
    before = [it.pid(unit) for unit in _SERVICES]
    asked = it.ask(_TOKENS)
    asked.begun()
    it.machine.run("systemctl", "restart", "aegaeon.target")
    assert asked.tokens() == it.expected
    assert all(new != old for new, old in zip(map(it.pid, _SERVICES), before, strict=True))


def nothing_is_left_after_a_stop(it: Installed) -> None:
    it.machine.run("systemctl", "stop", "aegaeon.target")
    for unit in _SERVICES:
        # The target's own stop is no more than the word to stop.
        until(lambda unit=unit: it.stopped(unit), _BACK_S, f"{unit} has stopped")
        assert it.machine.shown(unit, "Result") == "success", it.log(unit)
    assert not it.machine.run("pgrep", "--uid", "aegaeon", check=False)
    assert not it.machine.run("find", "/run/aegaeon", "-type", "s")
    # Weights are kept on purpose, and nothing else is.
    kept = it.machine.run("find", "/dev/shm", "-type", "f", "-size", "+0").split()
    assert all("weight" in path for path in kept), kept


def a_start_finds_models_and_weights_again(it: Installed) -> None:
    it.machine.run("systemctl", "start", "aegaeon.target")
    until(lambda: it.served(), _BACK_S, "the model is served again")
    assert it.ask(_TOKENS).tokens() == it.expected


CHECKS: tuple[Callable[[Installed], None], ...] = (
    services_are_ready_when_systemctl_returns,
    services_have_no_rights,
    a_model_is_served_over_http_and_grpc,
    the_worker_has_what_it_needs,
    a_request_survives_a_killed_worker,
    a_request_survives_a_killed_scheduler,
    the_watchdog_restarts_a_scheduler_that_hangs,
    another_release_takes_the_place_of_one_daemon_by_daemon,
    everything_is_restarted_amid_a_request,
    nothing_is_left_after_a_stop,
    a_start_finds_models_and_weights_again,
)


def main() -> int:
    """Run all checks in order; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--require", action="store_true", help="fail where systemd cannot boot")
    options = parser.parse_args()
    try:
        with Machine() as machine:
            installed = Installed(machine)
            for check in CHECKS:
                started = time.monotonic()
                print(f"{check.__name__.replace('_', ' ')} …", flush=True)
                try:
                    check(installed)
                except BaseException:
                    print(machine.journal("--lines=80"))
                    raise
                print(f"    {time.monotonic() - started:.1f} s")
    except CannotBootError as error:
        print(f"skipped: systemd cannot boot here: {error}")
        return int(options.require)
    return 0


if __name__ == "__main__":
    sys.exit(main())
