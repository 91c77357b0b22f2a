"""The default target modules of peft for this architecture."""

from peft.utils import constants

from ..configuration_random_transformer import RandomTransformerConfig

MAPPINGS = "TRANSFORMERS_MODELS_TO_"


def register_target_modules() -> None:
    """Register BART's target modules for each of peft's methods, since the modules have the same names here.

    For LoRA these are the query and value projections, as in Hu et al. 2021, section 7.1.
    """
    for name, mapping in vars(constants).items():
        if name.startswith(MAPPINGS) and "bart" in mapping:
            mapping.setdefault(RandomTransformerConfig.model_type, mapping["bart"])
