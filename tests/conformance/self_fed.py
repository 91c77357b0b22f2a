"""The model as transformers' distributed tests call it: with one sequence and nothing for the decoder.

The model itself refuses such a call. These classes lie in a module of their own, because the processes that the tests
start import them, and are registered, because the tests load them through `AutoModelForCausalLM`.
"""

from transformers import AutoConfig, AutoModelForCausalLM

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration


class SelfFedConfig(RandomTransformerConfig):
    model_type = "self_fed_random_transformer"
    _auto_class = None  # a saved folder needs no copy of this file


class SelfFed(RandomTransformerForConditionalGeneration):
    """A Random Transformer whose decoder reads the source where it is given nothing else to read."""

    config_class = SelfFedConfig
    config: SelfFedConfig
    _auto_class = None

    def forward(self, input_ids=None, decoder_input_ids=None, labels=None, **kwargs):
        if decoder_input_ids is None and labels is None:
            decoder_input_ids = input_ids
        return super().forward(input_ids=input_ids, decoder_input_ids=decoder_input_ids, labels=labels, **kwargs)


AutoConfig.register(SelfFedConfig.model_type, SelfFedConfig, exist_ok=True)
AutoModelForCausalLM.register(SelfFedConfig, SelfFed, exist_ok=True)
