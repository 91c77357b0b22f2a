"""Stub for releases of transformers without this mixin."""


class MemoryCleanupMixin:
    """No cleanup."""
