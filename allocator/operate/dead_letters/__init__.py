"""Lists dead letters, writes them back to their original topics, or discards them; and counts records in retry topics.

Dead-letter topics come from `allocator run`, Spring Kafka or Kafka Connect. A redriven record and the note in the topic
`<letters>.settled` are one transaction. Reads without a group. Deletes nothing.
"""

from allocator.operate.dead_letters.letter import Letter, LetterFilter, Settled
from allocator.operate.dead_letters.letter import parse_place as parse_place
from allocator.operate.dead_letters.letter import parse_time as parse_time
from allocator.operate.dead_letters.letters import MAX_REDRIVES as MAX_REDRIVES
from allocator.operate.dead_letters.letters import DeadLetterQueue, Outcome

__all__ = ["DeadLetterQueue", "Letter", "LetterFilter", "Outcome", "Settled"]
