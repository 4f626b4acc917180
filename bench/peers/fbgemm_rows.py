"""FBGEMM's table of embeddings on one CPU: how long it takes to read and to update rows.

    fbgemm_rows.py ROWS DIMENSION

Each line read names a file of row numbers (64-bit, little-endian); answered is the batch size with which all of them, in bags
of one, took least, and the seconds of this. The update is FBGEMM's own, fused with the backward pass: row-wise Adagrad.
"""

import os
import sys
import time

os.sched_setaffinity(0, {0})
os.environ["OMP_NUM_THREADS"] = "1"

import numpy
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen

BATCHES = (8192, 65536, 1 << 19)


def measure(table, ids, batch, dimension):
    gradients = torch.full((batch, dimension), 0.01)
    offsets = torch.arange(batch + 1)
    parts = ids.split(batch)
    begin = time.perf_counter()
    for part in parts:
        table(part, offsets[: len(part) + 1]).backward(gradients[: len(part)])
    return time.perf_counter() - begin


def main():
    rows, dimension = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    table = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dimension, EmbeddingLocation.HOST, ComputeDevice.CPU)], optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.01, eps=1e-8, pooling_mode=PoolingMode.SUM)
    for line in sys.stdin:
        ids = torch.from_numpy(numpy.fromfile(line.strip(), "<i8"))
        seconds, batch = min((measure(table, ids, batch, dimension), batch) for batch in BATCHES if batch <= len(ids))
        print(batch, seconds, flush=True)


if __name__ == "__main__":
    main()
