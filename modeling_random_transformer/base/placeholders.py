"""Placeholders in texts, which translations keep."""

import re

# What a program replaces or a reader copies: {name}, ${name}, %{name}, #{name}, {{name}}, %(name)s, %s, %1$s, URLs,
# e-mail addresses.
PLACEHOLDER = re.compile(
    r"""[$%\#]?\{(?:[^{}\n]++|\{[^{}\n]*+\})*+\}
    | (?<![\w%])%(?:\(\w++\)|\d++\$)?[-+\#0]*+\d*+(?:\.\d++)?+(?:hh?|ll?)?[sdiufFeEgGxXocp@](?![^\W\d_])
    | (?:\b(?:https?|ftp)://|\bwww\.)[^\s<>"'\u3000-\u9fff\uff00-\uffef]*[^\s<>"'.,;:!?)\]\u3000-\u9fff\uff00-\uffef]
    | (?<![\w.+-])[\w.+-]++@[\w-]++(?:\.[\w-]++)++""",
    re.VERBOSE,
)
