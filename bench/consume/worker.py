"""Runs one contender in its own process: `python -m bench.consume.worker NAME JOB` prints its measurements."""

from __future__ import annotations

import gc
import json
import sys

from .contenders import CONTENDERS, load
from .settings import Job
from .sink import Sink


def main() -> None:
    name, job = sys.argv[1], Job.load(sys.argv[2])
    load(name)
    gc.collect()  # otherwise chance decides whether a short run has to collect what the imports left
    sink = Sink(job)
    CONTENDERS[name](job, sink)
    print(json.dumps(sink.report()))


if __name__ == "__main__":
    main()
