"""Messages to the service manager (the sd_notify protocol of systemd)."""

from __future__ import annotations

import os
import socket


def notify(message: str) -> None:
    """Send ``message`` (for example ``READY=1``) if a service manager is listening."""
    path = os.environ.get("NOTIFY_SOCKET")
    if not path:
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(message.encode(), address)
