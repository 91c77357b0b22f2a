"""Loading of saved translation models, with errors that name the damaged file and, where possible, the field."""

from .translator import load_translator
from .weights import check_finite

__all__ = ["check_finite", "load_translator"]
