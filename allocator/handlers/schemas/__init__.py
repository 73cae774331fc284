"""Schemas of records, by a schema registry or from files: Avro, Protobuf and JSON.

In: bytes of keys and values, a registry's URL, a reader schema. Out: readable JSON, or Python values for a handler.
May touch: the schema registry, and the given files. It requests a schema that cannot change only once.
"""

from allocator.handlers.schemas.decode import Decoded, Decoder, Formats, PlainFormat
from allocator.handlers.schemas.deserializer import RegistryDeserializer
from allocator.handlers.schemas.masks import Masks
from allocator.handlers.schemas.registry import Registry, RegistryFailed
from allocator.handlers.schemas.schema import Schema, as_reader_schema

__all__ = [
    "Decoded",
    "Decoder",
    "Formats",
    "Masks",
    "PlainFormat",
    "Registry",
    "RegistryDeserializer",
    "RegistryFailed",
    "Schema",
    "as_reader_schema",
]
