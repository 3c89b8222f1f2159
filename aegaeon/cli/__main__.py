"""``python -m aegaeon.cli`` is the ``aegaeon`` command."""

from __future__ import annotations

import sys

from aegaeon.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
