"""The original encoder-decoder Transformer as a Hugging Face model. Importing this registers the Auto classes."""

import transformers
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import is_peft_available

from .configuration_random_transformer import MODEL_CLASSES, RandomTransformerConfig
from .modeling_random_transformer import (
    RandomTransformerEncoderModel,
    RandomTransformerForCausalLM,
    RandomTransformerForConditionalGeneration,
    RandomTransformerForMaskedLM,
    RandomTransformerForQuestionAnswering,
    RandomTransformerForSequenceClassification,
    RandomTransformerForTokenClassification,
    RandomTransformerModel,
    RandomTransformerPreTrainedModel,
)
from .pipeline_random_transformer import Seq2SeqPipeline
from .tokenization_random_transformer import RandomTransformerTokenizer

__version__ = "0.1.0"

__all__ = [
    "RandomTransformerConfig",
    "RandomTransformerEncoderModel",
    "RandomTransformerForCausalLM",
    "RandomTransformerForConditionalGeneration",
    "RandomTransformerForMaskedLM",
    "RandomTransformerForQuestionAnswering",
    "RandomTransformerForSequenceClassification",
    "RandomTransformerForTokenClassification",
    "RandomTransformerModel",
    "RandomTransformerPreTrainedModel",
    "RandomTransformerTokenizer",
    "Seq2SeqPipeline",
]

# So that `from_pretrained` knows the classes wherever this package is imported, and every saved folder carries their
# code for where it is not.
AutoConfig.register(RandomTransformerConfig.model_type, RandomTransformerConfig, exist_ok=True)
AutoTokenizer.register(RandomTransformerConfig, tokenizer_class=RandomTransformerTokenizer, exist_ok=True)
RandomTransformerConfig.register_for_auto_class()
RandomTransformerTokenizer.register_for_auto_class()
for auto, path in MODEL_CLASSES.items():
    model = globals()[path.rpartition(".")[2]]
    getattr(transformers, auto).register(RandomTransformerConfig, model, exist_ok=True)
    model.register_for_auto_class(auto)

if is_peft_available():  # its import takes a tenth of a second
    from .utils.adapters import register_target_modules

    register_target_modules()
