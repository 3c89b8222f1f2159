"""Aegaeon on such a machine, installed as docs/operations.md says, and what is asked of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from tests.integration.text_model import text_model
from tests.repo.checkout import build_wheel
from tests.systemd.machine import Machine

_PYTHON = f"/opt/python/bin/python{sysconfig.get_python_version()}"
_FETCH = """
import sys, urllib.request
body = sys.argv[2].encode() or None
headers = {"Content-Type": "application/json"}
asked = urllib.request.Request("http://127.0.0.1:8000" + sys.argv[1], body, headers)
print(urllib.request.urlopen(asked, timeout=60).read().decode())
"""
#: A CPU's pool, and little of everything.
_WORKER_ENV = (
    "AEGAEON_WORKER_FLAGS=--scheduler unix:/run/aegaeon/scheduler.sock "
    "--listen unix:/run/aegaeon/worker-0.sock --node-id machine --cpu-num-slabs 4 "
    "--cpu-slab-bytes 4194304 --model-cache-bytes 67108864 --device-memory-bytes 67108864 "
    "--threads 1\n"
)
_ANSWER_S = 180.0


class Asked:
    """A request on its way, made by `ask.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begun(self) -> None:
        """Returns once it has its first tokens."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == "begun\n", line + self._process.stdout.read()

    def tokens(self) -> list[int]:
        """All of them, at its end."""
        out, _ = self._process.communicate(timeout=_ANSWER_S)
        assert self._process.returncode == 0, out
        tokens: list[int] = json.loads(out.splitlines()[-1])
        return tokens


class Installed:
    """The package in ``/opt/aegaeon``, its units, and a model in ``/srv/shared``."""

    ADDRESS = "unix:/run/aegaeon/scheduler.sock"
    MODEL = "tiny"
    NODE = "machine"

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        #: Tokens of an undisturbed request.
        self.expected: list[int] = []
        shared = machine.shared
        self._wheel = build_wheel(shared / "source", shared / "dist").name
        self._folder = ""
        text_model(self.MODEL, shared)
        shutil.copy(Path(__file__).with_name("ask.py"), shared)
        machine.run("chmod", "-R", "a+rX", "/srv/shared")
        self.install("/opt/aegaeon")
        machine.run("sh", "-c", f"printf '%s' '{_WORKER_ENV}' > /etc/aegaeon/worker.env")

    def install(self, folder: str) -> None:
        """Make an environment with the package, and units that run what is there."""
        run = self.machine.run
        self._folder = folder
        run(_PYTHON, "-m", "venv", folder)
        pip = (self._program("pip"), "install", "--quiet", "--no-index", "--no-deps")
        run(*pip, f"/srv/shared/dist/{self._wheel}")
        # Dependencies are those of the development environment: they are gigabytes.
        site = f"{folder}/lib/python{sysconfig.get_python_version()}/site-packages"
        run("sh", "-c", f"echo /opt/packages > {site}/dependencies.pth")
        run(self._program("aegaeon"), "install-service")
        run("systemd-sysusers")
        run("systemctl", "daemon-reload")

    def enable(self, *units: str) -> None:
        """As the documentation says; returns when all of them are ready."""
        self.machine.run("systemctl", "enable", "--now", "aegaeon.target", *units)

    def aegaeon(self, *arguments: str) -> str:
        """A command, as the user of the services."""
        return self.machine.run(self._program("aegaeon"), *arguments, user="aegaeon")

    def deploy(self) -> None:
        """Serve the model."""
        path = f"/srv/shared/{self.MODEL}"
        self.aegaeon("deploy", "--address", self.ADDRESS, self.MODEL, "--path", path)

    def served(self) -> bool:
        """Whether the model takes requests."""
        models = self.http("/v1/models")["data"]
        return any(model["id"] == self.MODEL for model in models)

    def http(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the gateway answers."""
        text = "" if body is None else json.dumps(body)
        answer: dict[str, Any] = json.loads(
            self.machine.run(self._program("python"), "-c", _FETCH, path, text)
        )
        return answer

    def ask(self, new_tokens: int) -> Asked:
        """Send a request over gRPC."""
        program = [self._program("python"), "/srv/shared/ask.py", self.ADDRESS, self.MODEL]
        return Asked(self.machine.start(*program, str(new_tokens), user="aegaeon"))

    def pid(self, unit: str) -> int:
        """Of its daemon, inside; 0 while there is none."""
        return int(self.machine.shown(unit, "MainPID"))

    def runs_in(self, unit: str, folder: str) -> bool:
        """Whether its daemon is that of an environment."""
        command = self.machine.run("cat", f"/proc/{self.pid(unit)}/cmdline").split("\0")
        return any(word.startswith(f"{folder}/bin/") for word in command)

    def stopped(self, unit: str) -> bool:
        """Whether nothing of it runs any more."""
        return self.machine.shown(unit, "ActiveState") in ("inactive", "failed")

    def status(self, unit: str) -> dict[str, str]:
        """What the kernel says of its daemon."""
        text = self.machine.run("cat", f"/proc/{self.pid(unit)}/status")
        pairs = (line.partition(":") for line in text.splitlines())
        return {name: value.strip() for name, _, value in pairs}

    def log(self, unit: str) -> str:
        """Its lines in the journal."""
        return self.machine.journal(f"--unit={unit}", "--lines=60")

    def _program(self, name: str) -> str:
        return f"{self._folder}/bin/{name}"
