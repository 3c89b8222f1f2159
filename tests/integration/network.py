"""Two machines as far as the network is concerned: namespaces with a cable between them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

#: Of the cable, so that a transfer of a few MB takes a while.
RATE = "160mbit"


@dataclass(frozen=True)
class Network:
    """Namespaces ``a`` and ``b``. This one reaches both, and they reach each other by the cable."""

    number: int

    def command(self, node: str) -> list[str]:
        """What runs a program there."""
        return ["ip", "netns", "exec", self.name(node)]

    def host(self, node: str) -> str:
        """Its address, for everybody."""
        return f"{self._subnet}.{4 if node == 'a' else 8}"

    def name(self, node: str) -> str:
        return f"aegaeon-{self.number}{node}"

    def cut(self) -> None:
        """Pull the cable out."""
        self._there("a", "link set cable down")

    def mend(self) -> None:
        """Put it in again."""
        self._there("a", "link set cable up")
        self._there("a", f"route replace {self.host('b')}/32 dev cable")

    def build(self) -> None:
        for node in "ab":
            _ip(f"netns add {self.name(node)}")
            self._there(node, "link set lo up")
            near, far = f"ag{self.number}{node}", f"ag{self.number}{node}p"
            _ip(f"link add {near} type veth peer name {far}")
            _ip(f"link set {far} netns {self.name(node)}")
            self._there(node, f"link set {far} name outside up")
            _ip(f"link set {near} up")
            _ip(f"addr add {self._subnet}.1/32 peer {self.host(node)}/32 dev {near}")
            self._there(node, f"addr add {self.host(node)}/32 peer {self._subnet}.1/32 dev outside")
        _ip(
            f"link add cable netns {self.name('a')} type veth "
            f"peer name cable netns {self.name('b')}"
        )
        for node, other in ("ab", "ba"):
            self._there(node, "link set cable up")
            self._there(node, f"route add {self.host(other)}/32 dev cable")
            limit = f"qdisc add dev cable root tbf rate {RATE} burst 128kb latency 50ms"
            _run(["tc", "-netns", self.name(node), *limit.split()])

    def remove(self) -> None:
        for node in "ab":
            subprocess.run(
                ["ip", "netns", "del", self.name(node)], check=False, capture_output=True
            )

    @property
    def _subnet(self) -> str:
        return f"10.{64 + self.number % 100}.{self.number // 100 % 200}"

    def _there(self, node: str, words: str) -> None:
        _ip(f"-netns {self.name(node)} {words}")


def _ip(words: str) -> None:
    _run(["ip", *words.split()])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr}")


@contextmanager
def network() -> Iterator[Network | None]:
    """A network, or None where this machine permits none."""
    made = Network(os.getpid() % 20_000)
    try:
        if os.geteuid() or not all(map(shutil.which, ("ip", "tc"))):
            yield None
            return
        try:
            made.build()
        except OSError:
            yield None
            return
        yield made
    finally:
        made.remove()
