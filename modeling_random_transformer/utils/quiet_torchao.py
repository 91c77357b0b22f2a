"""Imports transformers' model classes without the warnings of torchao about kernels that this machine lacks.

transformers imports torchao if it is installed. Otherwise every command would print these warnings.
"""

import logging

_loggers = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
_levels = [logger.level for logger in _loggers]
try:
    for _logger in _loggers:
        _logger.setLevel(logging.ERROR)
    import transformers.modeling_utils  # noqa: F401
finally:
    for _logger, _level in zip(_loggers, _levels, strict=True):
        _logger.setLevel(_level)
