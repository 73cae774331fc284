"""What mirroring costs: ours beside Kafka's own MirrorMaker, and beside consuming and producing alone.

`python -m bench.mirror --help`; what came out is in docs/performance.md.
"""
