"""Mutation fuzzing of saved folders: damaged files must be reported, never loaded as something else.

The tests run a fixed sample of the mutants, or all of them if the environment variable `ALL_MUTANTS` is set
(`make test-mutants`).
"""
