"""One stack with a head: classify texts, tag tokens, find answers, fill gaps, go on with a text.

Each model holds the stack that it needs under the names of the whole model, so that a folder of
`RandomTransformerForConditionalGeneration` loads into it, with only the head new.
"""

from collections.abc import Sequence
from typing import Any, Unpack

from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as DecoderOutput
from transformers.utils import TransformersKwargs, can_return_tuple

from .configuration_random_transformer import RandomTransformerConfig
from .modeling_random_transformer import (
    RandomTransformerDecoder,
    RandomTransformerEncoder,
    RandomTransformerLanguageModel,
    RandomTransformerModel,
    RandomTransformerPreTrainedModel,
    check_shape,
)


class RandomTransformerEncoderModel(RandomTransformerModel):
    """The encoder by itself (paper Figure 1 left)."""

    stacks = {"encoder": RandomTransformerEncoder}
    _keys_to_ignore_on_load_unexpected = [r"decoder\.", r"lm_head\."]

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config.changed(is_encoder_decoder=False, use_cache=False))

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> BaseModelOutput:
        """Encode texts; the arguments are those of `RandomTransformerModel.forward`."""
        return self.encoder(input_ids, attention_mask, inputs_embeds, **kwargs)


class RandomTransformerEncoderHead(RandomTransformerPreTrainedModel):
    """An encoder and a linear layer on its states, given by its name and the number of its outputs."""

    _keys_to_ignore_on_load_unexpected = [r"decoder\.", r"lm_head\."]

    def __init__(self, config: RandomTransformerConfig, **head: int):
        config = config.changed(is_encoder_decoder=False, use_cache=False)
        super().__init__(config)
        self.model = RandomTransformerEncoderModel(config)
        self.dropout = nn.Dropout(config.dropout)
        for name, outputs in head.items():  # by the names by which peft finds what an adapter leaves to be trained
            setattr(self, name, nn.Linear(config.d_model, outputs))
        self.post_init()


class RandomTransformerForSequenceClassification(RandomTransformerEncoderHead):
    """One label, several or a number for a text or a pair of texts: from the mean of its tokens' states."""

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config, score=config.num_labels)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> SequenceClassifierOutput:
        """Logits `[batch, num_labels]`.

        Args:
            labels: classes `[batch]`; `[batch, num_labels]` of zeros and ones where several may hold; or numbers.

        The other arguments are those of `RandomTransformerModel.forward`.
        """
        outputs = self.model(input_ids, attention_mask, inputs_embeds, **kwargs)
        states = outputs.last_hidden_state
        logits = self.score(self.dropout(mean_of_tokens(states, attention_mask)))
        loss = checked_loss(self, labels, label_shape(logits, labels), labels, logits, self.config, **kwargs)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


def mean_of_tokens(states: Tensor, padding_mask: Tensor | None) -> Tensor:
    """`[batch, length, d_model]` → `[batch, d_model]`, without the padding. The sum is beyond half precision."""
    if padding_mask is None:
        return states.mean(dim=1)
    kept = padding_mask[..., None].float()
    return ((states * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1)).to(states.dtype)


def label_shape(logits: Tensor, labels: Tensor | None) -> Sequence[int]:
    """A class for each row, or a number for each logit; the loss itself would stretch whatever it gets."""
    numbers = labels is not None and (labels.dim() > 1 or (labels.is_floating_point() and logits.shape[1] > 1))
    return logits.shape if numbers else logits.shape[:1]


def checked_loss(
    model: RandomTransformerPreTrainedModel, labels: Tensor | None, shape: Sequence[int], *args: Any, **kwargs: Any
) -> Tensor | None:
    """The model's loss where there are labels, of this shape; what are no classes is told by the CPU's IndexError."""
    if labels is None:
        return None
    check_shape("labels", labels, *shape)
    try:
        return model.loss_function(*args, **kwargs)
    except IndexError as error:
        found = f"{labels.min().item()} to {labels.max().item()}"
        raise ValueError(f"labels must be ids of classes, or -100 for none, got {found}: {error}") from error


class RandomTransformerForTokenClassification(RandomTransformerEncoderHead):
    """A label for each token."""

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config, score=config.num_labels)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> TokenClassifierOutput:
        """Logits `[batch, length, num_labels]`.

        Args:
            labels: classes `[batch, length]`, -100 where there is none.

        The other arguments are those of `RandomTransformerModel.forward`.
        """
        outputs = self.model(input_ids, attention_mask, inputs_embeds, **kwargs)
        logits = self.score(self.dropout(outputs.last_hidden_state))
        loss = checked_loss(self, labels, logits.shape[:2], logits, labels, self.config, **kwargs)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class RandomTransformerForQuestionAnswering(RandomTransformerEncoderHead):
    """Where in a text the answer to a question starts and ends."""

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config, qa_outputs=2)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> QuestionAnsweringModelOutput:
        """Logits of start and end, `[batch, length]` each.

        Args:
            start_positions: the answer's first token, `[batch]`.
            end_positions: its last, `[batch]`.

        The other arguments are those of `RandomTransformerModel.forward`.
        """
        outputs = self.model(input_ids, attention_mask, inputs_embeds, **kwargs)
        start_logits, end_logits = self.qa_outputs(self.dropout(outputs.last_hidden_state)).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions, **kwargs)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class RandomTransformerForMaskedLM(RandomTransformerLanguageModel):
    """The tokens behind masked ones, from both sides."""

    _keys_to_ignore_on_load_unexpected = [r"decoder\."]

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config.changed(is_encoder_decoder=False, use_cache=False), RandomTransformerEncoderModel)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> MaskedLMOutput:
        """Logits `[batch, length, vocab_size]`.

        Args:
            labels: the tokens behind the masked ones, `[batch, length]`, -100 elsewhere.

        The other arguments are those of `RandomTransformerModel.forward`.
        """
        outputs = self.model(input_ids, attention_mask, inputs_embeds, **kwargs)
        logits = self.lm_head(outputs.last_hidden_state)
        loss = checked_loss(self, labels, logits.shape[:2], logits, labels, self.config.vocab_size, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class RandomTransformerDecoderModel(RandomTransformerModel):
    """The decoder by itself, without attention to a source (paper Figure 1 right, but for its middle)."""

    stacks = {"decoder": RandomTransformerDecoder}
    _keys_to_ignore_on_load_unexpected = [r"encoder\.", r"encoder_attn", r"lm_head\."]

    def __init__(self, config: RandomTransformerConfig):
        # Whoever asks how many layers there are, caches for one, asks by the name that the encoder's count has.
        super().__init__(config.changed(is_encoder_decoder=False, encoder_layers=config.decoder_layers))

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> DecoderOutput:
        """States of the tokens so far, `[batch, length, d_model]`.

        Args:
            attention_mask: 1 for tokens, 0 for padding, on either side, `[batch, seen_len + length]`.
            position_ids: the tokens' positions, `[batch or 1, length]`; counted without the padding when `None`. Where
                they start anew in a row without `attention_mask`, so does a text, which sees nothing of the one before.

        The other arguments are those of `RandomTransformerModel.forward`.
        """
        outputs = self.decoder(
            input_ids,
            attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            position_ids=position_ids,
            **kwargs,
        )
        if outputs.past_key_values is not None:
            outputs.past_key_values = outputs.past_key_values.self_attention_cache  # there is no other
        return outputs


class RandomTransformerForCausalLM(RandomTransformerLanguageModel, GenerationMixin):
    """The next token of a text, by the decoder without a source; with the library's `generate()`."""

    _tp_plan = {"lm_head": "colwise_gather_output"}
    _keys_to_ignore_on_load_unexpected = [r"encoder\.", r"encoder_attn"]

    def __init__(self, config: RandomTransformerConfig):
        config = config.changed(is_encoder_decoder=False, encoder_layers=config.decoder_layers)
        super().__init__(config, RandomTransformerDecoderModel)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        position_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> CausalLMOutputWithPast:
        """Logits of the next token, `[batch, length, vocab_size]`.

        Args:
            labels: the tokens themselves, `[batch, length]`, -100 where none is to be predicted; shifted in here.
            logits_to_keep: compute logits for the last so many positions only (0: all), or for these positions.

        The other arguments are those of `RandomTransformerDecoderModel.forward`.
        """
        outputs = self.model(
            input_ids, attention_mask, past_key_values, inputs_embeds, use_cache, position_ids, **kwargs
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = checked_loss(self, labels, logits.shape[:2], logits, labels, self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
