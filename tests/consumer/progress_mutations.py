"""Faults for `progress_machine` to find: each takes one rule of the progress record out of a copy of the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import allocator

PACKAGE = Path(allocator.__file__).parent
ROOT = Path(__file__).parents[2]
MACHINE = "tests.consumer.progress_machine"


def played(package: Path, count: int, machine: str = MACHINE) -> subprocess.CompletedProcess[str]:
    """Plays the first examples of seed 0 in a process of its own, with the `allocator` in `package`.

    The order of sets decides which examples follow a seed, so it is fixed.
    """
    return subprocess.run(
        [sys.executable, "-m", machine, str(count), "0"],
        cwd=package,
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join([str(package), str(ROOT)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


class Mutation(NamedTuple):
    """`rule` says what no longer holds once `old`, which `file` has once, is replaced by `new`."""

    rule: str
    file: str
    old: str
    new: str

    def mutated(self) -> str:
        """Returns the text of the file without the rule. Raises LookupError if the file has changed too much."""
        text = (PACKAGE / self.file).read_text()
        if text.count(self.old) != 1:
            raise LookupError(f"{self.file} has {text.count(self.old)} times, not once: {self.old}")
        return text.replace(self.old, self.new)

    def apply(self, folder: Path) -> None:
        """Writes a copy of the package without the rule into `folder`."""
        shutil.copytree(PACKAGE, folder / "allocator", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "allocator" / self.file).write_text(self.mutated())

    def assert_found(self, folder: Path, count: int, machine: str = MACHINE) -> None:
        """Plays the machine without the rule, in a copy of the package in `folder`: an example must break a promise."""
        self.apply(folder)
        run = played(folder, count, machine)
        assert run.returncode == 1, run.stdout
        assert "state.begin" in run.stdout, run.stdout


READING = "core/consumer/reading.py"
PROGRESS = "core/subscription/progress.py"
COMMITS = "core/consumer/commits.py"
CORE = "core/consumer/group_member.py"
STATE = "core/subscription/state.py"
HOLDING = "core/membership/holding.py"
TO_COMMIT = """\
        offset, beyond = self.done(delivered=delivered)
        if self.committed is not None"""
BEGIN = """\
        if committed is not None:
            self._state.begin"""

MUTATIONS = [
    Mutation(
        "an error waits until what was taken is returned",
        READING,
        "                    if not found:\n                        if isinstance",
        "                    if True:\n                        if isinstance",
    ),
    Mutation(
        "a partition that is held back continues where it stopped",
        READING,
        "if self._tenure.epoch == self._epoch:\n            # otherwise",
        "if False:\n            # otherwise",
    ),
    Mutation(
        "an empty rest of a batch is not returned",
        READING,
        "        if not self._cut:\n            return False",
        "        if True:\n            return False",
    ),
    Mutation(
        "records are held from their delivery on",
        PROGRESS,
        "        if reader is not None:\n            reader.add",
        "        if False:\n            reader.add",
    ),
    Mutation(
        "automatic commits choose their offsets when the request is written",
        COMMITS,
        "await self._commit_chosen(\n"
        "                group, partial(self._done, wanted), "
        "one=lambda p: self._done({p}).get(p), patience_s=patience_s\n"
        "            )",
        "await self.commit(self._done(wanted))",
    ),
    Mutation(
        "commits go forwards",
        PROGRESS,
        "if offset < known or (offset == known and beyond == known_beyond):",
        "if offset == known and beyond == known_beyond:",
    ),
    Mutation(
        "a seek may set the commit back",
        PROGRESS,
        "        self.moves += 1\n        self.is_sought = True\n        self.handled_from = position.offset",
        "        self.moves += 1\n        self.handled_from = position.offset",
    ),
    Mutation(
        "a commit that was chosen before a seek does not hide it",
        PROGRESS,
        "        if moves == self.moves:",
        "        if True:",
    ),
    Mutation(
        "the start is committed",
        PROGRESS,
        TO_COMMIT,
        TO_COMMIT.replace(
            "        if",
            "        if self.committed is None and offset == self.handled_from:\n            return None\n        if",
        ),
    ),
    Mutation(
        "if nothing is held, everything before the position is done",
        PROGRESS,
        TO_COMMIT,
        TO_COMMIT.replace(
            "        if", "        if not (self.holds or self.is_sought):\n            return None\n        if"
        ),
    ),
    Mutation(
        "records that a seek replaced do not count",
        PROGRESS,
        "            hold.void = True\n            hold.stop()",
        "            hold.stop()",
    ),
    Mutation(
        "a seek proves nothing",
        PROGRESS,
        "        self.is_sought = True\n        self.handled_from = position.offset\n        self.beyond = None",
        "        self.is_sought = True\n        self.beyond = None",
    ),
    Mutation(
        "without automatic commits, a request for records confirms nothing",
        PROGRESS,
        "self._unconfirmed = self._unconfirmed or not confirms",
        "self._unconfirmed = False",
    ),
    Mutation(
        "what was handled counts only beyond an own commit",
        STATE,
        "own = as_written(committed).member in self.members",
        "own = True",
    ),
    Mutation(
        "without a committed offset there is no memory",
        "core/fetch/starting_positions.py",
        BEGIN,
        "        former = self._state.former(partition)\n"
        "        if committed is None and former is not None and former.proof is not None:\n"
        "            committed = OffsetAndMetadata(former.proof.end, '', -1)\n" + BEGIN,
    ),
    Mutation(
        "nothing is known of a log that was away, or of another cluster's",
        STATE,
        "for tp in [tp for tp in self._former if are_gone(tp.topic)]:",
        "for tp in list[TopicPartition]():",
    ),
    Mutation(
        "what was handled belongs to one topic",
        PROGRESS,
        "_position(proof.end, proof.topic_id), proof.done",
        "_position(proof.end, None), proof.done",
    ),
    Mutation(
        "in a handler, may_act is about the records of the call",
        CORE,
        "return hold if isinstance(tenure, TopicPartitionState) and tenure.record is self.state else None",
        "return None",
    ),
    Mutation(
        "records that were lost in hand may not be acted on",
        PROGRESS,
        "        if self.has_outlived:\n            self._reader.note_outlived",
        "        if False:\n            self._reader.note_outlived",
    ),
    Mutation(
        "commit() raises if records in hand were lost",
        "core/consumer/consumer.py",
        "        self._must_be_started()\n        self._must_not_be_lost(self._member.outlived)",
        "        self._must_be_started()",
    ),
    Mutation(
        "a release waits for the work on its records",
        HOLDING,
        "return tenure.phase is Phase.ENDED or not tenure.is_held",
        "return True",
    ),
    Mutation(
        "a release waits for no other partition",
        HOLDING,
        "await within(self.until(lambda: any(map(_is_free, tenures))), PATIENCE_S)",
        "await within(self.until(lambda: all(map(_is_free, tenures))), PATIENCE_S)",
    ),
    Mutation(
        "reading continues at the first record that no handler has handled",
        PROGRESS,
        "        if self._position is not None and offset is not None and offset != self._position.offset:",
        "        if False:",
    ),
    Mutation(
        "records that a closing reader has in hand are not done",
        PROGRESS,
        "        self._end(ReaderHold.abandon_records,",
        "        self._end(ReaderHold.finish,",
    ),
]
