"""The short path of `allocator.handlers.schemas`."""

from allocator.handlers.schemas import Registry, RegistryDeserializer, Schema

__all__ = ["Registry", "RegistryDeserializer", "Schema"]
