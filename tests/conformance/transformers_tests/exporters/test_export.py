"""Stub: the common model tests inherit from this class. Its tests are not published."""


class ExportTesterMixin:
    """No tests of export."""
