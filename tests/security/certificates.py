"""Authorities and certificates of a test's own, made by openssl."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
#: What every certificate is for; tests dial the loopback address.
_NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


@dataclass(frozen=True)
class Certificate:
    cert: Path
    key: Path


class Authority:
    """Signs certificates; ``ca`` is what its friends trust."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.ca = folder / f"{name}.pem"
        self._key = folder / f"{name}.key"
        _openssl(
            *["req", "-x509", "-days", "2", "-subj", f"/CN={name}", *_KEY],
            *["-keyout", str(self._key), "-out", str(self.ca)],
        )

    def sign(self, name: str, names: str = _NAMES) -> Certificate:
        """A new certificate and its key, in files named after it."""
        made = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(names + "\n")
        _openssl(
            *["req", "-subj", f"/CN={name}", *_KEY],
            *["-keyout", str(made.key), "-out", str(request)],
        )
        _openssl(
            *["x509", "-req", "-days", "2", "-in", str(request), "-out", str(made.cert)],
            *["-CA", str(self.ca), "-CAkey", str(self._key), "-CAcreateserial"],
            *["-extfile", str(extensions)],
        )
        made.key.chmod(0o600)
        return made


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
