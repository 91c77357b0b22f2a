"""The small model and batch on which transformers' common tests run."""

import torch
from transformers_tests.test_modeling_common import ids_tensor

from modeling_random_transformer import RandomTransformerConfig


class TinyModelTester:
    """What the common tests ask about the model under test."""

    batch_size = 3
    encoder_seq_length = seq_length = key_length = 7
    decoder_seq_length = 7
    num_hidden_layers = 2
    num_attention_heads = 4
    hidden_size = 16
    is_training = True
    config_class = RandomTransformerConfig

    def __init__(self, parent):
        self.parent = parent

    def get_config(self):
        return self.config_class(
            vocab_size=99,  # an odd number, so that tensor parallelism meets uneven shards
            d_model=self.hidden_size,
            encoder_layers=self.num_hidden_layers,
            decoder_layers=self.num_hidden_layers,
            num_heads=self.num_attention_heads,
            d_ff=32,
            dropout=0.0,
            max_position_embeddings=64,
        )

    def prepare_config_and_inputs_for_common(self):
        config = self.get_config()
        source = ids_tensor([self.batch_size, self.encoder_seq_length], config.vocab_size)
        target = ids_tensor([self.batch_size, self.decoder_seq_length], config.vocab_size)
        inputs = {
            "input_ids": source,
            "attention_mask": torch.ones_like(source),
            "decoder_input_ids": target,
            "decoder_attention_mask": torch.ones_like(target),
        }
        return config, inputs
