"""Groups on real servers, disturbed at random from a seed, and the proof of what they did.

    python -m bench.faults --seed 7 --seconds 120 --peers ours kazoo kiel

`run.py` starts servers and members (processes of their own) and lets `faults.py` happen to them under steady load.
Each member writes down what it owns, processes and commits (`journal.py`); `history.py` puts that together and
`check.py`, which is pure, tells what was lost, processed by two, repeated and set back. `tests/faults` runs it on ours.
"""
