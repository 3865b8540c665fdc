"""Split parallelism: one mini-batch over all ranks, every node loaded and computed once (GSplit)."""
