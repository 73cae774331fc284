"""Decodes records by their schemas, from a schema registry or from files: Avro, Protobuf and JSON.

It decodes bytes of keys and values to readable JSON, or to Python values for a handler, and masks fields.
"""

from allocator.handlers.schemas.decode import Decoded, Decoder, Formats, PlainFormat
from allocator.handlers.schemas.deserializer import RegistryDeserializer
from allocator.handlers.schemas.masks import Masks
from allocator.handlers.schemas.registry import Registry, RegistryFailed
from allocator.handlers.schemas.schema import HEADER, Schema, as_reader_schema, avro_schema, schema_id
