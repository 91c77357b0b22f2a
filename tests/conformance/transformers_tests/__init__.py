"""transformers' published common tests as a package, with stubs for the few modules that are not published.

It can be imported in every process, including those that the tests of tensor parallelism and FSDP start.
"""

from ..archive import published_tests

__path__.insert(0, str(published_tests()))  # first, so that published modules have priority over stubs
