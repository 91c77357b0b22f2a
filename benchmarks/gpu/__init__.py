"""A report for machines with a GPU: tests, checks, generation, training, utilization, several devices.

Every part runs in a separate process, limited to ten minutes. It writes PART.json, PART.log and, for all parts in the
folder, report.md. A part that fails is reported, and the next one starts; the exit status is then 1.
"""

from .command import add_arguments, run

__all__ = ["add_arguments", "run"]
