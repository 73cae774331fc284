"""Runs groups on real servers under random faults from a seed, and checks their histories.

    python -m bench.faults --seed 7 --seconds 120 --peers ours kazoo kiel

`run.py` starts servers and members, one process each, and applies the faults of `faults.py` under steady load. Each
member logs the partitions that it owns and the records that it processes and commits (`journal.py`). `history.py`
merges the logs. `check.py`, which is pure, finds lost and repeated records, partitions with two owners, and lowered
offsets. `tests/faults` runs this library under the same faults.
"""
