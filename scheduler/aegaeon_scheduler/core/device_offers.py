"""Whether a prefill engine leaves KV on its device, for others of its node to read there."""

from __future__ import annotations

from collections.abc import Sequence as Items

from aegaeon.capability import Capability
from aegaeon_scheduler.core.values import WorkerIdentity


def offer_obstacle(
    source: WorkerIdentity, near: Items[WorkerIdentity], far: Items[WorkerIdentity]
) -> str:
    """Why an engine writes a model's KV to the slabs instead; empty if it does not.

    ``near`` are the engines of its node that go on with its sequences, ``far`` those of others. All
    of them must know what an offer is: any of them may get the sequence.
    """
    lent = source.kv_sharing
    if not lent.device:
        reason = lent.obstacle or "its release does not know how"
        return f"{source.engine_id} does not lend its device: {reason}"
    for reader in (*near, *far):
        if Capability.KV_OFFERS not in reader.capabilities:
            return f"{reader.engine_id} is of a release that reads no other device"
    if not any(lent.device in reader.kv_sharing.readable for reader in near):
        return f"no engine for decoding can read the device of {source.engine_id}"
    return ""
