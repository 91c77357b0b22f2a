"""Stand-in for releases of transformers from before this mixin."""


class MemoryCleanupMixin:
    """Cleans nothing up."""
