"""Mutation fuzzing of saved folders: damaged files must be reported, never loaded as something else.

The tests run a fixed sample of the mutants. `python -m tests.robustness`, in the root of the repository, runs all.
"""
