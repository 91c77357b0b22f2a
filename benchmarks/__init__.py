"""What is measured against whom, side by side in one run. Start with `python -m benchmarks --help`."""
