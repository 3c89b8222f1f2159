"""The other node of `kv_handoff`: a process that serves KV of its slabs, and as many plain bytes.

Writes one line of JSON with both addresses and the place of the KV; ends with its standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import threading
from pathlib import Path

import uvloop

from aegaeon.rpc.channel import make_server
from aegaeon.v1 import kv_pb2_grpc
from aegaeon_worker.kv.host_slabs import HostSlabs
from aegaeon_worker.service.kv_service import KvServicer

SLAB_NBYTES = 256 << 20
CONTENT = 1


async def serve(folder: Path, block_nbytes: int, num_blocks: int) -> None:
    """Publish blocks of KV and serve them until nobody needs them."""
    needed = -(-num_blocks // (SLAB_NBYTES // block_nbytes))
    slabs = HostSlabs(folder, needed, SLAB_NBYTES)
    blocks = slabs.take(block_nbytes, num_blocks)
    for number, block in enumerate(blocks):
        slabs.view(block, 1, block_nbytes).fill_(number % 251)
    runs = slabs.publish(blocks, CONTENT)
    plain = bytes(slabs.view(blocks[0], 1, block_nbytes).numpy()) * num_blocks
    reader = slabs.reader()
    server = make_server()
    kv_pb2_grpc.add_KvServiceServicer_to_server(KvServicer(reader), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_send_to_all, args=(listener, plain), daemon=True).start()
    places = [(run.slab, run.generation, run.first_block, run.num_blocks) for run in runs]
    facts = {"kv": f"127.0.0.1:{port}", "plain": listener.getsockname(), "runs": places}
    print(json.dumps(facts), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(grace=None)
    reader.close()
    slabs.close()


def _send_to_all(listener: socket.socket, data: bytes) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(data)


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--block-bytes", type=int, required=True)
    parser.add_argument("--blocks", type=int, required=True)
    options = parser.parse_args()
    uvloop.run(serve(options.folder, options.block_bytes, options.blocks))


if __name__ == "__main__":
    main()
