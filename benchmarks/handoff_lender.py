"""The process of `gpu_handoff` that has computed KV and offers it on its device.

Each line of stdin is the number of a sequence, to be written, offered, and told of on stdout; the
one before is released. An odd number is written beside another one, so that no two of its blocks
are neighbours.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import torch

from benchmarks.gpu_node import GIB, KV_8B, MIB, GpuNode, transformer_layout

#: Of a model whose weights do not matter here.
SMALL = transformer_layout(256, 512, 2, 1024)
SEED = 1
TOKENS = 8192


def main() -> None:
    index, folder, root = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    with ExitStack() as stack:
        node = GpuNode(stack, folder, 6 * GIB, (1, 64 * MIB), GIB, index=index, peers=(root, True))
        model = node.add_model("a", SMALL, KV_8B, SEED)
        print("ready", flush=True)
        held: list[int] = []
        for line in sys.stdin:
            sequence = int(line)
            for old in held:
                node.memory.free(old)
            held = [sequence, sequence + 1_000_000] if sequence % 2 else [sequence]
            for one in held:
                node.memory.add_sequence(one, "a")
            step = 16 if len(held) > 1 else TOKENS
            for room in range(step, TOKENS + 1, step):
                node.memory.activate("a", [(one, room) for one in held])
            node.write_kv(model, sequence, sequence, TOKENS)
            torch.cuda.synchronize()
            node.memory.hand_off([sequence], on_device=True)
            [done] = node.memory.hand_offs.finish(wait=False)
            told = [done.place.num_tokens, done.place.block_nbytes, done.place.offer]
            print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
