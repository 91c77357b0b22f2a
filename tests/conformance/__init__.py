"""transformers' own common tests, run on this package's classes."""
