"""Log lines as the journal and collectors want them."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from aegaeon.rpc.logs import JournalFormatter, JsonFormatter


def record(level: int, message: str, *arguments: object) -> logging.LogRecord:
    try:
        raise ValueError("why\nand how")
    except ValueError:
        return logging.LogRecord(
            "a.b", level, "f.py", 1, message, arguments, sys.exc_info() if level >= 40 else None
        )


@pytest.mark.parametrize(
    ("level", "priority"),
    [(logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (10, 7)],
)
def test_every_line_for_the_journal_has_its_priority(level: int, priority: int) -> None:
    text = JournalFormatter().format(record(level, "one\ntwo %s", "three"))
    lines = text.splitlines()
    assert lines[0] == f"<{priority}>a.b: one"
    assert lines[1] == f"<{priority}>two three"
    assert all(line.startswith(f"<{priority}>") for line in lines)


def test_a_line_of_json_is_one_line_and_complete() -> None:
    text = JsonFormatter("aegaeon-x").format(record(logging.ERROR, "one\ntwo"))
    assert "\n" not in text
    entry = json.loads(text)
    assert entry["message"] == "one\ntwo"
    assert entry["level"] == "ERROR"
    assert entry["daemon"] == "aegaeon-x"
    assert "ValueError: why" in entry["exception"]
    assert entry["time"].endswith("Z")


@pytest.mark.parametrize("variable", ["AEGAEON_LOG_FORMAT", "AEGAEON_LOG_LEVEL"])
def test_a_wrong_wish_is_named(variable: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aegaeon_scheduler", "--listen", "127.0.0.1:0"],
        env={**__import__("os").environ, variable: "loud"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert f"{variable} is" in done.stderr
    assert "Traceback" not in done.stderr


def test_fields_of_a_line_are_fields_of_its_object() -> None:
    line = record(logging.INFO, "request %s", "r")
    line.fields = {"request_id": "r", "status": 200}
    entry = json.loads(JsonFormatter("aegaeon-x").format(line))
    assert (entry["request_id"], entry["status"], entry["message"]) == ("r", 200, "request r")
