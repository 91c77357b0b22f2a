"""transformers' published common tests as a package, with stubs for the few modules that are not published."""

from ..archive import published_tests

__path__.insert(0, str(published_tests()))  # first, so that published modules have priority over stubs
