"""transformers' published common tests as a package, with stand-ins for the few modules of it that are not published.

It can be imported in every process, also in those that the tests of tensor parallelism and FSDP start.
"""

from ..archive import published_tests

__path__.insert(0, str(published_tests()))  # first, so that a stand-in gives way to what a release publishes
