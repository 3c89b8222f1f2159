"""Messages to the service manager (the sd_notify protocol of systemd)."""

from __future__ import annotations

import asyncio
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


async def keep_watchdog() -> None:
    """Ping the service manager's watchdog twice per its period; returns when there is none."""
    period_us = int(os.environ.get("WATCHDOG_USEC", "0"))
    if not period_us or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(period_us / 2e6)
