"""Where settings come from, and which of them contradict each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from aegaeon.errors import ConfigError
from aegaeon.security.settings import PLAIN, SecuritySettings, without_security
from aegaeon.security.tls import CertificateFiles
from aegaeon.security.token import Token
from tests.security.certificates import Authority


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(__import__("os").environ):
        if name.startswith("AEGAEON_"):
            monkeypatch.delenv(name)


def test_options_go_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "aegaeon.yaml"
    file.write_text(
        "security:\n  tls_ca: ca.pem\n  keys_file: /etc/keys\n  token_file: token\n"
        "  tls_any_client: true\n"
    )
    settings = SecuritySettings.from_environment(config=file)
    assert settings.tls_ca == tmp_path / "ca.pem"
    assert settings.keys_file == Path("/etc/keys")
    assert settings.tls_any_client
    monkeypatch.setenv("AEGAEON_TOKEN_FILE", "/env/token")
    monkeypatch.setenv("AEGAEON_TLS_CA", "/env/ca")
    monkeypatch.setenv("AEGAEON_TLS_ANY_CLIENT", "false")
    given = {"tls_ca": Path("/given/ca"), "keys_file": None, "listen": "unix:/s"}
    settings = SecuritySettings.from_environment(given=given, config=file)
    assert settings.tls_ca == Path("/given/ca")
    assert settings.token_file == Path("/env/token")
    assert settings.keys_file == Path("/etc/keys")
    assert not settings.tls_any_client


def test_without_anything_there_is_nothing() -> None:
    assert SecuritySettings.from_environment() == PLAIN


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tls_cert": Path("c")}, "tls_cert is given without tls_key"),
        ({"tls_key": Path("k")}, "tls_key is given without tls_cert"),
        ({"https_cert": Path("c")}, "https_cert is given without https_key"),
        ({"https_client_ca": Path("c")}, "without https_cert"),
    ],
)
def test_halves_are_refused(given: dict[str, Path], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SecuritySettings.from_environment(given=given)


def test_a_pair_is_never_mixed_from_two_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AEGAEON_TLS_CERT", "/env/cert")
    monkeypatch.setenv("AEGAEON_TLS_KEY", "/env/key")
    with pytest.raises(ConfigError, match="tls_cert is given without tls_key"):
        SecuritySettings.from_environment(given={"tls_cert": Path("/given/cert")})


def test_a_wrong_section_names_file_line_and_nearest_key(tmp_path: Path) -> None:
    file = tmp_path / "aegaeon.yaml"
    file.write_text("security:\n  tls_crt: a\n")
    with pytest.raises(ConfigError, match=r"aegaeon.yaml:2.*tls_crt.*tls_cert"):
        SecuritySettings.from_environment(config=file)


def test_wrong_values_in_the_environment_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEGAEON_TLS_ANY_CLIENT", "perhaps")
    with pytest.raises(ConfigError, match="AEGAEON_TLS_ANY_CLIENT"):
        SecuritySettings.from_environment()


def test_children_get_none_of_it() -> None:
    environment = {"AEGAEON_TOKEN": "s", "AEGAEON_KEYS_FILE": "f", "PATH": "/bin"}
    assert without_security(environment) == {"PATH": "/bin"}


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.sign("one"), authority.sign("other")
    CertificateFiles(one.cert, one.key)
    (tmp_path / "empty").write_text("")
    for cert, key, words in (
        (tmp_path / "absent", one.key, "absent: cannot be read"),
        (one.key, one.key, "has no CERTIFICATE"),
        (one.cert, one.cert, "has no PRIVATE KEY"),
        (tmp_path / "empty", one.key, "has no CERTIFICATE"),
        (one.cert, other.key, "do not belong together"),
    ):
        with pytest.raises(ConfigError, match=words):
            CertificateFiles(cert, key)


def test_a_key_that_everybody_may_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = Authority(tmp_path).sign("open")
    pair.key.chmod(0o644)
    CertificateFiles(pair.cert, pair.key)
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize("text", ["", " \n", "two words", "naïve", "x" * 5000, "line\nline"])
def test_a_token_file_holds_one_token_and_errors_do_not_repeat_it(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Token(file)
    assert text.strip() == "" or text not in str(caught.value)


def test_a_token_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Token(None).metadata() == ()
    monkeypatch.setenv("AEGAEON_TOKEN", "abc")
    assert Token(None).metadata() == (("authorization", "Bearer abc"),)
    file = tmp_path / "token"
    file.write_text("def\n")
    assert Token(file).metadata() == (("authorization", "Bearer def"),)
