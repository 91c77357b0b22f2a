"""transformers' published common tests as a package, with stand-ins here for the few modules it does not publish.

It is importable in spawned processes too, where the tests of tensor parallelism and FSDP run.
"""

from ._archive import published_tests

__path__.append(str(published_tests()))
