"""The original encoder-decoder Transformer as a Hugging Face model. Importing this registers the Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer

from .configuration_random_transformer import RandomTransformerConfig
from .modeling_random_transformer import (
    RandomTransformerForConditionalGeneration,
    RandomTransformerModel,
    RandomTransformerPreTrainedModel,
)
from .tokenization_random_transformer import RandomTransformerTokenizer

__version__ = "0.1.0"

__all__ = [
    "RandomTransformerConfig",
    "RandomTransformerForConditionalGeneration",
    "RandomTransformerModel",
    "RandomTransformerPreTrainedModel",
    "RandomTransformerTokenizer",
]

# So that `from_pretrained` knows the classes wherever this package is imported …
AutoConfig.register(RandomTransformerConfig.model_type, RandomTransformerConfig, exist_ok=True)
AutoTokenizer.register(RandomTransformerConfig, tokenizer_class=RandomTransformerTokenizer, exist_ok=True)
AutoModel.register(RandomTransformerConfig, RandomTransformerModel, exist_ok=True)
AutoModelForSeq2SeqLM.register(RandomTransformerConfig, RandomTransformerForConditionalGeneration, exist_ok=True)

# … and every saved folder carries their code for where it is not.
RandomTransformerConfig.register_for_auto_class()
RandomTransformerTokenizer.register_for_auto_class()
RandomTransformerModel.register_for_auto_class("AutoModel")
RandomTransformerForConditionalGeneration.register_for_auto_class("AutoModelForSeq2SeqLM")
