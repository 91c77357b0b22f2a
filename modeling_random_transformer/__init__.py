"""The original encoder-decoder Transformer as a Hugging Face model. Importing it registers its classes."""

import logging
import os
import signal
import sys


def _exit_when_interrupted(*_: object) -> None:
    """Handle Ctrl-C during the imports of a command, which take seconds, without a traceback."""
    os.write(2, b"random-transformer: error: interrupted.\n")
    os._exit(128 + signal.SIGINT)


# The command line restores the handler. Programs that import the package keep theirs.
_is_module = sys.argv[:1] == ["-m"] and __name__ in sys.orig_argv
_is_command = _is_module or os.path.basename(sys.argv[0] if sys.argv else "") == "random-transformer"
if _is_command and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _exit_when_interrupted)

import transformers
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import is_peft_available

# transformers imports torchao, if it is installed, which warns about kernels that this machine lacks.
_disabled = logging.root.manager.disable
logging.disable(logging.WARNING)
import transformers.modeling_utils

logging.disable(_disabled)

from .base import load_extra
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
from .quantization_random_transformer import DynamicInt8Config
from .tokenization_random_transformer import RandomTransformerTokenizer

__version__ = "0.3.0"

__all__ = [
    "DynamicInt8Config",
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
    "register_v4_tasks",
]


def register_v4_tasks() -> None:
    """Add the tasks that transformers v5 has removed: translation, summarization and text2text-generation.

    They change `pipeline()` for all models of this process. Tasks that the installed transformers has are not replaced.
    """
    load_extra("pipelines").register_v4_tasks()


# Register the classes for `from_pretrained`, and save their code with checkpoints for `trust_remote_code`.
AutoConfig.register(RandomTransformerConfig.model_type, RandomTransformerConfig, exist_ok=True)
AutoTokenizer.register(RandomTransformerConfig, tokenizer_class=RandomTransformerTokenizer, exist_ok=True)
RandomTransformerConfig.register_for_auto_class()
RandomTransformerTokenizer.register_for_auto_class()
for _auto_class, _name in MODEL_CLASSES.items():
    _model_class = globals()[_name]
    getattr(transformers, _auto_class).register(RandomTransformerConfig, _model_class, exist_ok=True)
    _model_class.register_for_auto_class(_auto_class)

if is_peft_available():  # importing it takes 0.1 s
    from peft.utils import constants

    # BART's target modules have the same names here. For LoRA: queries and values (Hu et al. 2021, section 7.1).
    for _name, _targets in vars(constants).items():
        if _name.startswith("TRANSFORMERS_MODELS_TO_") and "bart" in _targets:
            _targets.setdefault(RandomTransformerConfig.model_type, _targets["bart"])
