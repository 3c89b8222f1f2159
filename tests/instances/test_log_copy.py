"""Logs of daemons, copied on and bounded."""

from __future__ import annotations

import io
from pathlib import Path

from aegaeon.instances.log_copy import LogCopy


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_whole_lines_are_copied_once(tmp_path: Path) -> None:
    out = io.BytesIO()
    copy = LogCopy(tmp_path, out)
    append(tmp_path / "a.log", "one\ntw")
    append(tmp_path / "b.log", "other\n")
    copy.turn()
    copy.turn()
    append(tmp_path / "a.log", "o\n")
    copy.turn()
    assert out.getvalue() == b"one\nother\ntwo\n"


def test_a_line_longer_than_a_chunk_does_not_stop_the_copy(tmp_path: Path) -> None:
    out = io.BytesIO()
    copy = LogCopy(tmp_path, out)
    text = "x" * (3 << 20) + "\nend\n"
    append(tmp_path / "a.log", text)
    for _ in range(5):
        copy.turn()
    assert out.getvalue().decode() == text


def test_a_log_begins_anew_when_it_is_full_and_its_writer_goes_on(tmp_path: Path) -> None:
    out = io.BytesIO()
    copy = LogCopy(tmp_path, out, max_bytes=10)
    path = tmp_path / "a.log"
    with path.open("a") as writer:
        for text in ("0123456789ab\n", "next\n", "last\n"):
            writer.write(text)
            writer.flush()
            copy.turn()
    assert path.read_text() == "next\nlast\n"
    assert (tmp_path / "a.log.1").read_text() == "0123456789ab\n"
    assert out.getvalue() == b"0123456789ab\nnext\nlast\n"


def test_nothing_is_copied_where_nobody_reads(tmp_path: Path) -> None:
    append(tmp_path / "a.log", "one\n")
    LogCopy(tmp_path, None, max_bytes=2).turn()
    assert (tmp_path / "a.log").read_text() == ""
