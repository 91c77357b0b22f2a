"""Parallel text: sources, validation, tokenization, token-budget batches, streaming."""
