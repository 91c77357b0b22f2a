"""Fixtures' building blocks, shared by the tests."""
