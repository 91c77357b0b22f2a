"""Paired measurements of this package against its peers. Start with `python -m benchmarks --help`."""
