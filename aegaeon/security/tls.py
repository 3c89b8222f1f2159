"""Certificates from files: gRPC's and HTTPS's end of a connection. Files are read again when they
change, for connections made from then on."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from pathlib import Path

import grpc

from aegaeon.errors import ConfigError
from aegaeon.security.settings import SecuritySettings
from aegaeon.security.watched_file import WatchedFile

_log = logging.getLogger(__name__)


class CertificateFiles:
    """A certificate chain and its key, which belong together at any moment. Raises ConfigError."""

    def __init__(self, cert: Path, key: Path) -> None:
        self._cert = WatchedFile(cert, _pem(cert, b"CERTIFICATE"))
        self._key = WatchedFile(key, _pem(key, b"PRIVATE KEY"))
        if key.stat().st_mode & 0o007:
            _log.warning("%s: every user of this machine may use this private key; chmod 600", key)
        problem = self._problem()
        if problem:
            raise ConfigError(problem)
        self._pair = (self._key.get(), self._cert.get())

    def pair(self) -> tuple[bytes, bytes]:
        """Key and chain; while only one of the two files has been replaced, the earlier pair."""
        pair = (self._key.get(), self._cert.get())
        if pair != self._pair:
            problem = self._problem()
            if problem:
                _log.warning("%s; the certificate read before stays in force", problem)
            else:
                self._pair = pair
        return self._pair

    def load_into(self, context: ssl.SSLContext) -> None:
        """Let a context of the standard library show it."""
        context.load_cert_chain(self._cert.path, self._key.path)

    def _problem(self) -> str:
        try:
            self.load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
        except (ssl.SSLError, OSError) as error:
            return f"{self._cert.path} and {self._key.path} do not belong together: {error}"
        return ""


def server_credentials(settings: SecuritySettings) -> grpc.ServerCredentials | None:
    """What a gRPC server shows and asks for; None without a certificate."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    files = CertificateFiles(settings.tls_cert, settings.tls_key)
    authorities = _authorities(settings.tls_ca)
    mutual = asks_certificates(settings)

    def configuration() -> grpc.ServerCertificateConfiguration:
        roots = authorities.get() if authorities is not None and mutual else None
        return grpc.ssl_server_certificate_configuration([files.pair()], roots)

    return grpc.dynamic_ssl_server_credentials(configuration(), configuration, mutual)


def asks_certificates(settings: SecuritySettings) -> bool:
    """Whether gRPC clients must show a certificate."""
    return settings.tls_ca is not None and not settings.tls_any_client


class ClientFiles:
    """What a gRPC client shows, and what it checks servers by. Raises ConfigError."""

    def __init__(self, authorities: Path, cert: Path | None, key: Path | None) -> None:
        self._authorities = WatchedFile(authorities, _pem(authorities, b"CERTIFICATE"))
        self._own = None if cert is None or key is None else CertificateFiles(cert, key)

    def current(self) -> tuple[bytes, bytes | None, bytes | None]:
        """Authorities, key and certificate chain, as they are now."""
        key, chain = (None, None) if self._own is None else self._own.pair()
        return self._authorities.get(), key, chain

    def credentials(self) -> grpc.ChannelCredentials:
        """Of a connection that is made now."""
        return grpc.ssl_channel_credentials(*self.current())


def client_files(settings: SecuritySettings) -> ClientFiles | None:
    """None without authorities, where nothing is encrypted."""
    if settings.tls_ca is None:
        return None
    return ClientFiles(settings.tls_ca, settings.tls_cert, settings.tls_key)


def https_context(settings: SecuritySettings) -> ssl.SSLContext | None:
    """What the gateway's HTTPS server shows and asks for; None without a certificate."""
    return _server_context(settings.https_cert, settings.https_key, settings.https_client_ca)


def metrics_context(settings: SecuritySettings) -> ssl.SSLContext | None:
    """The same for the metrics of a daemon that speaks gRPC otherwise, with its certificate."""
    authorities = settings.tls_ca if asks_certificates(settings) else None
    return _server_context(settings.tls_cert, settings.tls_key, authorities)


def _server_context(
    cert: Path | None, key: Path | None, client_ca: Path | None
) -> ssl.SSLContext | None:
    if cert is None or key is None:
        return None
    files = CertificateFiles(cert, key)
    authorities = _authorities(client_ca)

    def context() -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        files.load_into(made)
        if authorities is not None:
            made.verify_mode = ssl.CERT_REQUIRED
            made.load_verify_locations(cadata=authorities.get().decode("ascii"))
        return made

    first = context()
    current = [(files.pair(), authorities and authorities.get(), first)]

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: object) -> None:
        """Called with every client's first message: the place to change certificates."""
        pair, roots = files.pair(), authorities and authorities.get()
        if (pair, roots) != current[0][:2]:
            current[0] = (pair, roots, context())
        connection.context = current[0][2]

    first.sni_callback = choose
    return first


def _authorities(file: Path | None) -> WatchedFile[bytes] | None:
    return None if file is None else WatchedFile(file, _pem(file, b"CERTIFICATE"))


def _pem(file: Path, kind: bytes) -> Callable[[bytes], bytes]:
    """Checks that a PEM file has a block of this kind."""

    def parse(content: bytes) -> bytes:
        if b"-----BEGIN " not in content or kind + b"-----" not in content:
            raise ConfigError(f"{file}: has no {kind.decode()} in PEM form")
        return content

    return parse
