"""What daemons write to standard error, in the form that its reader wants."""

from __future__ import annotations

import json
import logging
import os
import sys
import time

from aegaeon.errors import ConfigError

#: ``AEGAEON_LOG_FORMAT``: ``text``, ``journal`` or ``json``. Not given, the journal is recognised.
_FORMAT_VARIABLE = "AEGAEON_LOG_FORMAT"
_LEVEL_VARIABLE = "AEGAEON_LOG_LEVEL"
_FORMATS = ("text", "journal", "json")
#: Priorities of syslog(3), which the journal takes from the beginning of a line.
_PRIORITIES = (
    (logging.CRITICAL, 2),
    (logging.ERROR, 3),
    (logging.WARNING, 4),
    (logging.INFO, 6),
)
_DEBUG_PRIORITY = 7


def set_up_logging(name: str) -> None:
    """Log to standard error, as ``name``. Raises ConfigError."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(name))
    level = os.environ.get(_LEVEL_VARIABLE, "INFO").upper()
    if level not in logging.getLevelNamesMapping():
        raise ConfigError(f"{_LEVEL_VARIABLE} is {level!r}; it must be a level such as INFO")
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _formatter(name: str) -> logging.Formatter:
    wanted = os.environ.get(_FORMAT_VARIABLE) or ("journal" if _is_journal() else "text")
    if wanted not in _FORMATS:
        raise ConfigError(
            f"{_FORMAT_VARIABLE} is {wanted!r}; it must be one of {', '.join(_FORMATS)}"
        )
    if wanted == "json":
        return JsonFormatter(name)
    if wanted == "journal":
        return JournalFormatter()
    return logging.Formatter(f"%(asctime)s {name} %(levelname)s %(name)s: %(message)s")


class JournalFormatter(logging.Formatter):
    """Lines that begin with their priority; time and unit are the journal's own business."""

    def __init__(self) -> None:
        super().__init__("%(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Every line of it, as the journal takes lines."""
        found = (number for level, number in _PRIORITIES if record.levelno >= level)
        priority = f"<{next(found, _DEBUG_PRIORITY)}>"
        return "\n".join(priority + line for line in super().format(record).splitlines())


class JsonFormatter(logging.Formatter):
    """One JSON object per line, for collectors of containers' output."""

    def __init__(self, daemon: str) -> None:
        super().__init__()
        self._daemon = daemon

    def format(self, record: logging.LogRecord) -> str:
        """Time in UTC, level, daemon, logger, message; and an exception, where there is one."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "daemon": self._daemon,
            "logger": record.name,
            "message": record.getMessage(),
        }
        # What a caller gave as ``extra={"fields": {...}}``, such as the id of a request.
        entry.update(getattr(record, "fields", {}))
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _is_journal() -> bool:
    """Whether the service manager has connected standard error to the journal."""
    try:
        status = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"
