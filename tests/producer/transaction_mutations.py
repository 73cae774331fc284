"""Faults for `transaction_machine` to find: most were found by reviewers once, one moment at a time."""

from __future__ import annotations

from tests.consumer.progress_mutations import Mutation

TRANSACTIONS = "producer/consumer_transaction.py"
TRANSACTIONAL = "producer/transactional.py"
RESULTS = "handlers/results.py"

MUTATIONS = [
    Mutation(
        "a result from before a seek is not written after it",
        RESULTS,
        "if self._tenure.moves != chosen.call.moves(self._tenure.partition):",
        "if False:",
    ),
    Mutation(
        "no result is committed beyond what its log has",
        RESULTS,
        "reach = 0 if self._hold.of_former_log else self._tenure.done(delivered=True)[0]",
        "reach = 1 << 62",
    ),
    Mutation(
        "results of a former log are done with",
        RESULTS,
        "return not hold.has_outlived and (hold.of_former_log or not hold.void)",
        "return not (hold.has_outlived or hold.void)",
    ),
    Mutation(
        "a seek wins over a transaction without a response",
        TRANSACTIONAL,
        " or (tenure.is_sought and tenure.moves != moves):",
        ":",
    ),
    Mutation(
        "an offset belongs to the moves at which it was chosen",
        "core/consumer/commit_call.py",
        "tenure.note_committed(offset, done if metadata else None, moves=moves, at=at)",
        "tenure.note_committed(offset, done if metadata else None, moves=tenure.moves, at=at)",
    ),
    Mutation(
        "after an unknown outcome, the committed offset is compared",
        TRANSACTIONS,
        "if not self._confirmed or self._writer.in_doubt:",
        "if self._seen is None:",
    ),
    Mutation(
        "records whose transaction cannot begin are handed back",
        TRANSACTIONS,
        "            self._end(committed=False)",
        "            self._end(committed=True)",
    ),
    Mutation(
        "records whose transaction failed are handed back",
        TRANSACTIONS,
        "            self._end(committed=committed)",
        "            self._end(committed=True)",
    ),
    Mutation(
        "a seek in the block ends the transaction",
        TRANSACTIONS,
        "offset = tenure.to_commit(delivered=True) if tenure.moves == self._moves else None",
        "offset = tenure.to_commit(delivered=True)",
    ),
    Mutation(
        "offsets of a former log are refused",
        "core/consumer/commit_call.py",
        "elif tenure is not None and tenure.replaced != replaced:",
        "elif False:",
    ),
]
