"""What peft adapts in this architecture when nobody says."""

from peft.utils import constants

from ..configuration_random_transformer import RandomTransformerConfig

MAPPINGS = "TRANSFORMERS_MODELS_TO_"


def register_target_modules() -> None:
    """Make each of peft's methods adapt the layers that it adapts in BART, which have the same names here.

    For LoRA these are the projections of queries and values, the ones that its authors adapt (Hu et al. 2021, 7.1).
    """
    for name, mapping in vars(constants).items():
        if name.startswith(MAPPINGS) and "bart" in mapping:
            mapping.setdefault(RandomTransformerConfig.model_type, mapping["bart"])
