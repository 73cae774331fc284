"""Dead letters: listed, written back to their topics, or discarded; and what waits in retry topics.

In: a dead-letter topic, filled by `allocator run`, Spring Kafka or Kafka Connect, and a choice of its letters.
Out: letters; records in their first topics, and notes in the topic `<letters>.settled`, in one transaction.
Reads without a group, writes with a `TransactionalWriter`. Deletes nothing.
"""

from allocator.operate.dead_letters.letter import Letter, LetterFilter, Settled
from allocator.operate.dead_letters.letter import parse_place as parse_place  # for the page and the commands
from allocator.operate.dead_letters.letter import parse_time as parse_time
from allocator.operate.dead_letters.letters import MAX_REDRIVES as MAX_REDRIVES
from allocator.operate.dead_letters.letters import DeadLetterQueue, Outcome

__all__ = ["DeadLetterQueue", "Letter", "LetterFilter", "Outcome", "Settled"]
