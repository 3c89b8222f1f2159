"""What one process is told about security; files are named here, secrets never are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from aegaeon.config.load import load_config
from aegaeon.errors import ConfigError

#: A token of a client's own, for programs that get their secrets from the environment.
TOKEN_VARIABLE = "AEGAEON_TOKEN"
#: Before the name of a field, in capitals, in the environment.
_PREFIX = "AEGAEON_"


@dataclass(frozen=True)
class SecuritySettings:
    """Frozen. A field that is not given on the command line comes from the environment
    (``AEGAEON_TLS_CA`` and so on), else from the YAML file's ``security`` section."""

    #: PEM certificate chain of this process, for those who connect to it and those it dials.
    tls_cert: Path | None = None
    #: Its private key.
    tls_key: Path | None = None
    #: PEM certificates of the authorities that sign the other parts' certificates. With it, TCP
    #: connections to others are encrypted and checked, and others must show a certificate.
    tls_ca: Path | None = None
    #: Name that other parts' certificates have, where it is not the host of their address.
    tls_server_name: str | None = None
    #: Serve clients without a certificate of ``tls_ca`` as well; their tokens tell who they are.
    tls_any_client: bool = False
    #: File with the bearer token that this process sends to others.
    token_file: Path | None = None
    #: File with the keys that this process accepts, made by ``aegaeon keys``.
    keys_file: Path | None = None
    #: The gateway's certificate chain and key for HTTPS.
    https_cert: Path | None = None
    https_key: Path | None = None
    #: Authorities of HTTP clients' certificates, which they must show then.
    https_client_ca: Path | None = None

    def __post_init__(self) -> None:
        for cert, key in (("tls_cert", "tls_key"), ("https_cert", "https_key")):
            given = [name for name in (cert, key) if getattr(self, name) is not None]
            if len(given) == 1:
                raise ConfigError(
                    f"{given[0]} is given without {key if given == [cert] else cert}; a "
                    "certificate and its private key belong together",
                    metadata={"field": given[0]},
                )
        if self.https_client_ca is not None and self.https_cert is None:
            raise ConfigError(
                "https_client_ca is given without https_cert and https_key; without HTTPS nobody "
                "shows a certificate",
                metadata={"field": "https_client_ca"},
            )

    @classmethod
    def from_environment(
        cls,
        *,
        given: Mapping[str, Any] | None = None,
        config: str | os.PathLike[str] | None = None,
    ) -> Self:
        """The settings of this process: ``given`` ones that are not None, then the environment,
        then the section of the file ``config``. Raises ConfigError."""
        merged = cls()._with(_from_file(config) if config is not None else {})
        merged = merged._with(_from_variables())
        known = {field.name for field in fields(cls)}
        options = {key: value for key, value in (given or {}).items() if key in known}
        return merged._with(options)

    def _with(self, values: Mapping[str, Any]) -> Self:
        """Pairs stay together: who names another certificate means none of the earlier key."""
        changes = {key: value for key, value in values.items() if value is not None}
        for pair in (("tls_cert", "tls_key"), ("https_cert", "https_key")):
            if any(name in changes for name in pair):
                changes = dict.fromkeys(pair) | changes
        return replace(self, **changes)


#: No certificates, no keys: for loopback and for sockets of one user.
PLAIN = SecuritySettings()


def without_security(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without these settings, and without a token."""
    own = {_PREFIX + field.name.upper() for field in fields(SecuritySettings)} | {TOKEN_VARIABLE}
    return {name: value for name, value in environment.items() if name not in own}


def _from_file(config: str | os.PathLike[str]) -> dict[str, Any]:
    folder = Path(config).absolute().parent
    section = load_config(config).security
    values = section.model_dump(exclude_unset=True)
    return {
        name: folder / Path(value).expanduser() if _is_path(name) else value
        for name, value in values.items()
        if value is not None
    }


def _from_variables() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(SecuritySettings):
        variable = _PREFIX + field.name.upper()
        text = os.environ.get(variable)
        if not text:
            continue
        if field.name == "tls_any_client":
            found[field.name] = _boolean(variable, text)
        else:
            found[field.name] = Path(text).expanduser() if _is_path(field.name) else text
    return found


def _is_path(name: str) -> bool:
    return name not in ("tls_server_name", "tls_any_client")


def _boolean(variable: str, text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ConfigError(f"{variable} is {text!r}; it must be true or false")
    return text.lower() in ("true", "1")
