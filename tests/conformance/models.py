"""The small model of transformers' common tests, with an adaptation that they need."""

import torch

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration

from .transformers_tests.test_modeling_common import ids_tensor


class SmallModel:
    """transformers' "model tester" interface: a configuration, a batch, and their sizes."""

    batch_size = 3
    seq_length = encoder_seq_length = decoder_seq_length = key_length = 7
    hidden_size = 16
    num_hidden_layers = 2
    num_attention_heads = 4
    is_training = True
    config_class = RandomTransformerConfig

    def get_config(self):
        return self.config_class(
            vocab_size=99,  # an odd number, so that tensor parallelism has uneven shards
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


class Reciter(RandomTransformerForConditionalGeneration):
    """Learns to complete a sequence from its first token, as required by the training test.

    That test is designed for decoders: it trains on the sequence and expects the sequence, including the prompt, as the
    output. Here, the prompt is the source, and the target is the sequence without its start token.
    """

    def forward(self, input_ids=None, **kwargs):
        return super().forward(input_ids=None if input_ids is None else input_ids[:, :1], **kwargs)

    def generate(self, inputs, max_new_tokens, **kwargs):
        return super().generate(inputs, max_new_tokens=inputs.shape[1] + max_new_tokens, **kwargs)[:, 1:]
