"""The settings, each declared once, and the rules for names, patterns, addresses and other arguments of users."""

from __future__ import annotations

from allocator.core.settings.arguments import as_partitions
from allocator.core.settings.names import (
    MASK,
    address_text,
    check_group,
    check_path,
    check_pattern_syntax,
    check_topic,
    default_client_id,
    parse_address,
    parse_ensemble,
)
from allocator.core.settings.patterns import (
    ANY_TOPIC,
    PartitionCountSource,
    TopicSelection,
    check_pattern,
    does_not_exist,
    topic_pattern,
)
from allocator.core.settings.spellings import names_arguments
from allocator.core.settings.table import (
    DEFAULT,
    Faults,
    Flag,
    Number,
    Setting,
    Text,
    Texts,
    Whole,
    check_keywords,
    keyword_faults,
    setting,
    shared,
)
from allocator.core.settings.targets import find, to_call
