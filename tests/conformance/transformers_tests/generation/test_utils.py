"""Stub: the common model tests check whether a model's test class has this base. Its tests are not published."""


class GenerationTesterMixin:
    """Marks a test class whose models generate."""
