"""Runs groups on real servers under random faults from a seed, and checks their history.

    python -m bench.faults --seed 7 --seconds 120 --peers ours kazoo kiel

`run.py` starts servers and members (one process each) and applies the faults of `faults.py` under steady load. Each
member logs the partitions that it owns and the records that it processes and commits (`journal.py`). `history.py` joins
the logs, and `check.py` (pure) finds lost and repeated records, double owners and lowered offsets. `tests/faults` runs
it on this library.
"""
