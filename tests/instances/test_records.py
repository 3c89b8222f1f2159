"""Names of running instances: claimed once, their user's alone, free when their owner ends."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from aegaeon.errors import ConfigError
from aegaeon.instances.records import InstanceFolder, InstanceRecord, clear_dead, find_instance


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("aegaeon.local.run_directory._MAX_FOLDER_BYTES", 4096)
    return tmp_path


def record(name: str = "a") -> InstanceRecord:
    return InstanceRecord(name, os.getpid(), 1.5, True, "unix:x", "http://y", "/z", ("m", "n"))


def test_a_record_is_read_as_it_was_written_until_it_is_removed(root: Path) -> None:
    folder = InstanceFolder("a")
    assert find_instance("a") is None  # nothing is known of it yet
    folder.write(record())
    assert find_instance("a") == record()
    assert find_instance("b") is None
    folder.remove()
    folder.remove()
    assert find_instance("a") is None
    assert list(root.iterdir()) == []


def test_a_name_is_claimed_once() -> None:
    claimed: list[InstanceFolder] = []
    refused: list[ConfigError] = []

    def claim() -> None:
        try:
            claimed.append(InstanceFolder("a"))
            claimed[-1].write(record())
        except ConfigError as error:
            refused.append(error)

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(claimed), len(refused)) == (1, 7)
    claimed[0].remove()


def test_what_a_killed_owner_left_is_no_instance_and_can_be_cleared(root: Path) -> None:
    folder = InstanceFolder("a")
    folder.write(record())
    os.close(folder._lock)  # as the kernel does
    assert find_instance("a") is None
    assert len(list(root.iterdir())) == 1
    clear_dead("a")
    assert list(root.iterdir()) == []


def test_a_running_instance_is_not_cleared() -> None:
    folder = InstanceFolder("a")
    folder.write(record())
    clear_dead("a")
    assert find_instance("a") == record()
    folder.remove()


def test_a_link_leads_nowhere(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (root / f"aegaeon-{os.geteuid()}.a").symlink_to(elsewhere)
    assert find_instance("a") is None
    with pytest.raises(ConfigError, match="belongs to another user"):
        InstanceFolder("a")


@pytest.mark.parametrize("name", ["", "../a", "a/b", ".a", "a" * 65, "a b"])
def test_names_stay_within_the_folder(name: str) -> None:
    with pytest.raises(ConfigError, match="instance name"):
        find_instance(name)
