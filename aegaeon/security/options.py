"""The options of security that all daemons share."""

from __future__ import annotations

import argparse
from pathlib import Path

from aegaeon.security.settings import SecuritySettings

_FILES = {
    "--tls-cert": "PEM certificate chain of this process",
    "--tls-key": "its private key",
    "--tls-ca": "PEM authorities: encrypt and check connections to others; who connects must show "
    "a certificate of theirs",
    "--token-file": "file with the key that this process shows to others",
    "--keys-file": "file with the keys that it accepts, see 'aegaeon keys'",
}
_HTTPS_FILES = {
    "--https-cert": "PEM certificate chain for HTTPS",
    "--https-key": "its private key",
    "--https-client-ca": "PEM authorities of certificates that HTTP clients must show",
}


def add_security_options(parser: argparse.ArgumentParser, *, https: bool = False) -> None:
    """Options that are fields of `SecuritySettings`; not given, the environment and the YAML file
    count. ``https``: those of the gateway as well."""
    group = parser.add_argument_group(
        "security",
        "AEGAEON_TLS_CERT and so on are their defaults, then the section 'security' of --config.",
    )
    for flag, text in (_FILES | (_HTTPS_FILES if https else {})).items():
        group.add_argument(flag, type=Path, help=text)
    group.add_argument("--tls-server-name", help="name in others' certificates, if not their host")
    group.add_argument(
        "--tls-any-client",
        action="store_const",
        const=True,
        help="serve clients without a certificate as well",
    )
    group.add_argument(
        "--insecure-bind",
        action="store_true",
        help="allow an address beyond loopback without TLS, or without certificates and keys",
    )


def security_settings(options: argparse.Namespace, config: Path | None) -> SecuritySettings:
    """The settings of a daemon with these options. Raises ConfigError."""
    return SecuritySettings.from_environment(given=vars(options), config=config)
