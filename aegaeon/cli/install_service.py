"""``aegaeon install-service``: units for systemd."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from aegaeon.systemd.install import own_programs, system_files, user_files, write

User = Annotated[
    bool, typer.Option("--user", help="For this user's manager instead of the system's.")
]
Root = Annotated[
    Path, typer.Option(help="Write below this folder, for images.", show_default=False)
]
Programs = Annotated[
    Path | None,
    typer.Option(help="Where the daemons will be.", show_default="this installation's"),
]


def install_service(user: User = False, root: Root = Path("/"), programs: Programs = None) -> None:
    """Write systemd units for scheduler, gateway and workers, and say how to start them.

    An environment file that is there already is left as it is.
    """
    programs = programs or own_programs()
    if user:
        home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        wanted = user_files(Path(home), programs)
    else:
        wanted = system_files(root, programs)
    for file in wanted:
        print(f"{'wrote' if write(file) else 'kept '} {file.path}")
    control = "systemctl --user" if user else "systemctl"
    print("\nNext:")
    if not user:
        print("  systemd-sysusers")
    print(f"  {control} daemon-reload")
    print(
        f"  {control} enable --now aegaeon.target aegaeon-scheduler aegaeon-gateway "
        "aegaeon-worker@0"
    )
    print("with one aegaeon-worker@N for every device of this machine, N from 0.")
