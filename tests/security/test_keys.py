"""Keys at rest and in use, their limits, and files that change meanwhile."""

from __future__ import annotations

import json
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aegaeon.cli.app import main
from aegaeon.errors import (
    ConfigError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnauthenticatedError,
)
from aegaeon.security.guard import Caller, Guard
from aegaeon.security.key_file import read_keys
from aegaeon.security.keys import Scope, find_key, make_key
from aegaeon.security.rate import Rate


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def add(file: Path, capsys: pytest.CaptureFixture[str], *options: str, name: str = "app") -> str:
    capsys.readouterr()
    assert main(["keys", "add", name, "--file", str(file), *options]) == 0
    return capsys.readouterr().out.strip()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_a_key_opens_and_any_other_text_does_not(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = add(file, capsys)
    guard = Guard(file)
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert guard.authenticate(f"{scheme} {key}").name == "app"
    other = make_key().text
    mixed = f"{key[:17]}{other[17:]}"
    for wrong in (None, "", key, f"Basic {key}", "Bearer ", f"Bearer {key[:-1]}", f"Bearer {key}x"):
        with pytest.raises(UnauthenticatedError):
            guard.authenticate(wrong)
    for wrong in (other, mixed, key.upper(), key.replace("aeg_", "")):
        with pytest.raises(UnauthenticatedError):
            guard.authenticate(f"Bearer {wrong}")


def test_the_file_keeps_no_secret_and_is_its_owner_s(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = add(file, capsys), add(file, capsys)
    text = file.read_text()
    assert first.rpartition("_")[2] not in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    entries = json.loads(text)["keys"]
    assert len({entry["salt"] for entry in entries}) == 2
    assert len({entry["sha256"] for entry in entries}) == 2
    assert find_key(read_keys(file), second) is not None


def test_a_listing_shows_no_secret(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = add(file, capsys, "--model", "a*", "--requests-per-minute", "7")
    entry = json.loads(file.read_text())["keys"][0]
    for options in ([], ["--json"]):
        assert main(["keys", "list", "--file", str(file), *options]) == 0
        shown = capsys.readouterr().out
        assert entry["id"] in shown
        assert "7" in shown
        for secret in (key.rpartition("_")[2], entry["salt"], entry["sha256"]):
            assert secret not in shown


def test_keys_come_go_and_change_without_a_restart(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = add(file, capsys)
    guard = Guard(file)
    caller = guard.authenticate(f"Bearer {first}")
    second = add(file, capsys, name="next")
    assert guard.authenticate(f"Bearer {second}").name == "next"
    assert main(["keys", "limit", "app", "--file", str(file), "--model", "only"]) == 0
    assert caller.permits_model("only")
    assert not caller.permits_model("other")
    assert main(["keys", "revoke", "app", "--file", str(file)]) == 0
    for refused in (
        lambda: guard.authenticate(f"Bearer {first}"),
        lambda: caller.admit("only", 1),
        lambda: caller.require(Scope.GENERATE),
    ):
        with pytest.raises(UnauthenticatedError):
            refused()
    caller.spend(5)  # what it still had running ends in peace
    guard.authenticate(f"Bearer {second}")


def test_changing_one_limit_leaves_the_others(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever raises a limit must not open all models by that."""
    add(file, capsys, "--model", "m-*", "--requests-per-minute", "2", "--tokens-per-minute", "30")

    def limit(*options: str) -> tuple[tuple[str, ...], int | None, int | None]:
        assert main(["keys", "limit", "app", "--file", str(file), *options]) == 0
        assert "secret" not in capsys.readouterr().out
        [key] = read_keys(file).values()
        return key.models, key.requests_per_minute, key.tokens_per_minute

    assert limit("--requests-per-minute", "9") == (("m-*",), 9, 30)
    assert limit("--tokens-per-minute", "0") == (("m-*",), 9, None)
    assert limit("--model", "*") == (("*",), 9, None)
    assert main(["keys", "limit", "app", "--file", str(file)]) == 1
    assert "nothing to change" in capsys.readouterr().err


def test_a_broken_file_neither_locks_out_nor_lets_in(
    file: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    key = add(file, capsys)
    guard = Guard(file)
    text = file.read_text()
    for broken in ("", "{", "[]", text.replace("generate", "everything"), text[:-20]):
        file.write_text(broken)
        guard.authenticate(f"Bearer {key}")
        with pytest.raises(UnauthenticatedError):
            guard.authenticate(f"Bearer {make_key().text}")
    file.unlink()
    guard.authenticate(f"Bearer {key}")
    assert "stays in force" in caplog.text
    assert key.rpartition("_")[2] not in caplog.text
    file.write_text("")
    with pytest.raises(ConfigError, match="is no file of keys"):
        Guard(file)


def test_scopes_open_what_they_are_for(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened = {
        Scope.GENERATE: {Scope.GENERATE},
        Scope.OBSERVE: {Scope.OBSERVE},
        Scope.ADMIN: {Scope.GENERATE, Scope.OBSERVE, Scope.ADMIN},
        Scope.CLUSTER: {Scope.CLUSTER},
    }
    for scope, expected in opened.items():
        key = add(file, capsys, "--scope", scope.value)
        caller = Guard(file).authenticate(f"Bearer {key}")
        for needed in Scope:
            if needed in expected:
                caller.require(needed)
            else:
                with pytest.raises(PermissionDeniedError, match=needed.value):
                    caller.require(needed)


def test_limits_say_when_to_come_back(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    options = ["--requests-per-minute", "2", "--tokens-per-minute", "600", "--model", "m-*"]
    key = add(file, capsys, *options)
    caller = Guard(file, clock).authenticate(f"Bearer {key}")
    with pytest.raises(PermissionDeniedError, match="other"):
        caller.admit("other", 1)
    caller.admit("m-1", 10)
    caller.admit("m-1", 10)
    with pytest.raises(ResourceExhaustedError) as caught:
        caller.admit("m-1", 10)
    assert caught.value.metadata["limit"] == "requests_per_minute"
    assert caught.value.metadata["retry_after_ms"] == "30000"
    clock.now_s += 30
    caller.spend(1000)
    with pytest.raises(ResourceExhaustedError) as caught:
        caller.admit("m-1", 10)
    assert caught.value.metadata["limit"] == "tokens_per_minute"
    clock.now_s += int(caught.value.metadata["retry_after_ms"]) / 1000
    caller.admit("m-1", 10)


def test_holders_share_nothing_with_each_other(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [add(file, capsys, name=name) for name in ("a", "a", "b")]
    guard = Guard(file)
    first, again, other = (guard.authenticate(f"Bearer {text}") for text in texts)
    for salt in ("", "s", "é" * 128):
        assert first.own_salt(salt) == again.own_salt(salt) != other.own_salt(salt)
        assert len(first.own_salt(salt)) <= 256
        assert Caller().own_salt(salt) == salt
    assert first.own_salt("") != first.own_salt("s")
    assert first.own_salt("x" * 257) == "x" * 257  # refused by whoever gets it


def test_a_prompt_above_a_minute_s_tokens_gets_its_turn(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    key = add(file, capsys, "--tokens-per-minute", "60")
    caller = Guard(file, clock).authenticate(f"Bearer {key}")
    caller.admit("m", 100)
    with pytest.raises(ResourceExhaustedError):
        caller.admit("m", 1)
    clock.now_s += 41
    caller.admit("m", 1)


@given(
    st.integers(1, 10_000),
    st.lists(st.tuples(st.floats(0, 30), st.integers(0, 500)), max_size=100),
)
def test_no_window_gives_more_than_was_saved_and_filled(
    per_minute: int, asks: list[tuple[float, int]]
) -> None:
    rate, now_s, given_amount = Rate(per_minute, 0.0), 0.0, 0
    for pause_s, amount in asks:
        now_s += pause_s
        wait_s = rate.wait_s(amount, now_s)
        if wait_s == 0:
            rate.take(amount, now_s)
            given_amount += amount
            allowed = per_minute + now_s * per_minute / 60
            # A single amount above a whole bucket is the one exception, as debt.
            assert given_amount <= allowed + max(0, amount - per_minute) + 1e-6
        else:
            assert rate.wait_s(amount, now_s + wait_s + 1e-6) == pytest.approx(0, abs=1e-4)


def test_changes_at_once_follow_each_other(file: Path) -> None:
    def make(number: int) -> int:
        return main(["keys", "add", f"k{number}", "--file", str(file), "--out", f"{file}.{number}"])

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(make, range(16))) == {0}
    assert {key.name for key in read_keys(file).values()} == {f"k{n}" for n in range(16)}


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "x" * 65, "né", "a\n"])
def test_names_of_keys_are_plain(file: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "add", "--file", str(file), "--", name]) == 2
    assert not file.exists()


def test_a_secret_is_never_written_over_a_file(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "token"
    out.write_text("mine")
    assert main(["keys", "add", "app", "--file", str(file), "--out", str(out)]) == 2
    assert out.read_text() == "mine"
    assert "cannot be made" in capsys.readouterr().err
    assert not file.exists()


def test_unknown_keys_cannot_be_revoked(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(file, capsys)
    assert main(["keys", "revoke", "nobody", "--file", str(file)]) != 0
    assert len(read_keys(file)) == 1
