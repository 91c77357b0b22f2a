"""An LSTM or GRU encoder-decoder with additive attention, as a transformers model.

The architecture follows Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and Translate"
(arXiv:1409.0473). The encoder is bidirectional. The input of each decoder step is the target token and the previous
context vector ("input feeding", Luong et al. 2015, arXiv:1508.04025); its state is then the query for the next context.

What the gates do is explained in docs/explanation/concepts.md and, as formulas, in `lstm_step` and `gru_step`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.generation.configuration_utils import GenerationMode
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from modeling_random_transformer.versions_random_transformer import accepts_cache, named_cache

ENCODERS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU}
CELLS: dict[str, Any] = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}


def lstm_step(inputs: Tensor, hidden: Tensor, cell: Tensor, weights: nn.LSTMCell) -> tuple[Tensor, Tensor]:
    """What `nn.LSTMCell` computes, gate by gate (Hochreiter and Schmidhuber 1997, Gers et al. 2000).

    Args:
        inputs: x, `[batch, input_size]`.
        hidden: h, the output of the last step, `[batch, size]`.
        cell: C, what is kept for long, `[batch, size]`.
        weights: those of all gates, stacked.

    Returns:
        The new hidden state and the new cell state.
    """
    gates = inputs @ weights.weight_ih.T + weights.bias_ih + hidden @ weights.weight_hh.T + weights.bias_hh
    store, forget, content, show = gates.chunk(4, dim=-1)
    cell = forget.sigmoid() * cell + store.sigmoid() * content.tanh()  # 1 and 0: the cell state is kept as it is
    return show.sigmoid() * cell.tanh(), cell


def gru_step(inputs: Tensor, hidden: Tensor, weights: nn.GRUCell) -> Tensor:
    """What `nn.GRUCell` computes (Cho et al. 2014): two gates, and no cell state. Shapes as in `lstm_step`."""
    reset_x, update_x, content_x = (inputs @ weights.weight_ih.T + weights.bias_ih).chunk(3, dim=-1)
    reset_h, update_h, content_h = (hidden @ weights.weight_hh.T + weights.bias_hh).chunk(3, dim=-1)
    update = (update_x + update_h).sigmoid()
    content = (content_x + (reset_x + reset_h).sigmoid() * content_h).tanh()  # reset 0: without the old state
    return update * hidden + (1 - update) * content  # update 1: the old state is kept


class RecurrentConfig(PreTrainedConfig):
    """Configuration of a recurrent encoder-decoder.

    Args:
        cell: `"lstm"` or `"gru"`.
        vocab_size: size of the vocabulary, shared by source, target and output.
        d_model: width of the token embeddings.
        hidden_size: width of the decoder's state, and of the encoder's two directions combined.
        dropout: rate for embeddings, encoder states and the input of the output layer.

    Raises:
        ValueError: `cell` is unknown, or `hidden_size` is odd.
    """

    model_type = "recurrent_seq2seq"

    cell: str = "lstm"
    vocab_size: int = 37000
    d_model: int = 128
    hidden_size: int = 192
    dropout: float = 0.1
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1
    is_encoder_decoder: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        if self.cell not in CELLS:
            raise ValueError(f"cell must be one of {', '.join(CELLS)}, got {self.cell!r}.")
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size must be even, as the encoder has two directions, got {self.hidden_size}.")
        super().__post_init__(**kwargs)


class DecoderState(NamedTuple):
    """The state of the decoder between two target tokens."""

    memory: tuple[Tensor, ...]  # hidden state and, for an LSTM, cell state, each [batch, hidden_size]
    context: Tensor  # previous output of the attention, [batch, hidden_size]


class AdditiveAttention(nn.Module):
    """score(s, h) = vᵀ tanh(W s + U h); the context is the mean of h weighted by softmax(score) (Bahdanau A.1.2)."""

    def __init__(self, size: int):
        super().__init__()
        self.query = nn.Linear(size, size, bias=False)  # W
        self.key = nn.Linear(size, size, bias=False)  # U
        self.score = nn.Linear(size, 1, bias=False)  # v

    def forward(self, state: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the context of one decoder step.

        Args:
            state: s, `[batch, size]`.
            keys: U h, `[batch, source_len, size]`, computed once by the caller for all steps.
            values: h, `[batch, source_len, size]`.
            mask: False at padding, `[batch, source_len]`.

        Returns:
            The context `[batch, size]`, and the weights `[batch, source_len]`.
        """
        scores = self.score(torch.tanh(self.query(state)[:, None] + keys)).squeeze(-1)
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
        return torch.bmm(weights[:, None], values).squeeze(1), weights


class RecurrentEncoder(nn.Module):
    """Bidirectional encoder (Bahdanau 3.2). The model shares its embedding with the decoder and the output layer."""

    main_input_name = "input_ids"  # used by generate()

    def __init__(self, config: RecurrentConfig):
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.rnn = ENCODERS[config.cell](config.d_model, config.hidden_size // 2, batch_first=True, bidirectional=True)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_kwargs: Any) -> BaseModelOutput:
        """`[batch, source_len]`, padded on the right → states `[batch, source_len, hidden_size]`, zero at padding."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        embedded = self.dropout(self.embedding(input_ids))
        # Packing starts the backward direction at the last token of each sequence instead of its padding.
        lengths = attention_mask.sum(dim=1).cpu()
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=input_ids.shape[1])
        return BaseModelOutput(last_hidden_state=self.dropout(states))


class RecurrentDecoder(nn.Module):
    """Autoregressive decoder with attention over the source at each step."""

    def __init__(self, config: RecurrentConfig):
        super().__init__()
        size = config.hidden_size
        self.dropout = nn.Dropout(config.dropout)
        self.bridge = nn.Linear(size // 2, size * (2 if config.cell == "lstm" else 1))
        self.cell = CELLS[config.cell](config.d_model + size, size)
        self.attention = AdditiveAttention(size)
        self.output = nn.Linear(2 * size + config.d_model, config.d_model)

    def initial_state(self, source: Tensor) -> DecoderState:
        """The state before the first token, from the last state of the backward encoder (Bahdanau A.2.2)."""
        size = self.cell.hidden_size
        last_backward = source[:, 0, size // 2 :]
        memory = torch.tanh(self.bridge(last_backward)).split(size, dim=-1)
        return DecoderState(memory, torch.zeros_like(memory[0]))

    def forward(
        self, embedded: Tensor, source: Tensor, mask: Tensor, state: DecoderState | None = None
    ) -> tuple[Tensor, Tensor, DecoderState]:
        """Process the target sequentially, because each step depends on the state of the previous one.

        Args:
            embedded: the target, `[batch, target_len, d_model]`.
            source: the encoder's states, `[batch, source_len, hidden_size]`.
            mask: False at padding, `[batch, source_len]`.
            state: the state after the previous call, to continue from it.

        Returns:
            Hidden states `[batch, target_len, d_model]`, attention weights `[batch, target_len, source_len]`, and the
            state after the last token.
        """
        embedded = self.dropout(embedded)
        keys = self.attention.key(source)
        state = state or self.initial_state(source)
        outputs, attentions = [], []
        for token in embedded.unbind(dim=1):
            memory = self.step(torch.cat([token, state.context], dim=-1), state.memory)
            context, weights = self.attention(memory[0], keys, source, mask)
            state = DecoderState(memory, context)
            outputs.append(torch.cat([memory[0], context], dim=-1))
            attentions.append(weights)
        # No later step depends on these layers, so they process all tokens at once.
        hidden = torch.tanh(self.output(torch.cat([torch.stack(outputs, dim=1), embedded], dim=-1)))
        return self.dropout(hidden), torch.stack(attentions, dim=1), state

    def step(self, inputs: Tensor, memory: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """`lstm_step` or `gru_step` by torch. The state of `nn.LSTMCell` is a pair, that of `nn.GRUCell` a tensor."""
        return self.cell(inputs, memory) if len(memory) == 2 else (self.cell(inputs, *memory),)


class RecurrentForConditionalGeneration(PreTrainedModel, GenerationMixin):
    """Encoder, decoder and output layer. `generate()` supports greedy search and sampling."""

    config_class = RecurrentConfig
    main_input_name = "input_ids"
    accepts_loss_kwargs = False  # the loss is the mean over this batch, without num_items_in_batch
    _is_stateful = True  # the state cannot be rolled back
    _supported_generation_modes = [GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE]

    def __init__(self, config: RecurrentConfig):
        super().__init__(config)
        self.encoder = RecurrentEncoder(config)
        self.decoder = RecurrentDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embedding

    @accepts_cache
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        cache: DecoderState | None = None,
        use_cache: bool = False,
        **_kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Compute the logits of the next token at each target position, and the loss of the labels.

        Args:
            input_ids: the source, `[batch, source_len]`, padded on the right.
            attention_mask: 0 at padding, `[batch, source_len]`.
            decoder_input_ids: the target after its start token, `[batch, target_len]`; default: the shifted labels.
            labels: `[batch, target_len]`, -100 at ignored positions.
            encoder_outputs: output of the encoder, instead of `input_ids`.
            cache: the state after the previous call; `decoder_input_ids` are then only new tokens.
            use_cache: whether to return the state.

        Returns:
            Logits `[batch, target_len, vocab_size]`, attention weights `[batch, 1, target_len, source_len]`, and, with
            labels, the mean cross-entropy in nats per token.

        Raises:
            ValueError: neither `decoder_input_ids` nor `labels` are given.
        """
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("decoder_input_ids or labels must be given, got neither.")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if encoder_outputs is None:
            encoder_outputs = self.encoder(input_ids, attention_mask)
        source = encoder_outputs.last_hidden_state
        mask = source.new_ones(source.shape[:2]) if attention_mask is None else attention_mask
        embedded = self.encoder.embedding(decoder_input_ids)
        hidden, weights, state = self.decoder(embedded, source, mask.bool(), cache)
        logits = nn.functional.linear(hidden, self.encoder.embedding.weight)
        return Seq2SeqLMOutput(
            loss=None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
            logits=logits,
            **named_cache(state if use_cache else None),
            cross_attentions=(weights[:, None],),
            encoder_last_hidden_state=source,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The labels shifted right after the start token, with padding for -100: `[batch, target_len]` in and out."""
        shifted = nn.functional.pad(labels[:, :-1], (1, 0), value=self.config.decoder_start_token_id)
        return shifted.masked_fill(shifted == -100, self.config.pad_token_id)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """False: the cache is a `DecoderState`, not keys and values."""
        return False

    def _init_weights(self, module: nn.Module) -> None:
        """Xavier for input weights, orthogonal for recurrent weights (Saxe et al. 2014), one for forget gate biases."""
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.RNNBase | nn.RNNCellBase):
            init_gates(module)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)


def init_gates(rnn: Any) -> None:
    """Initialize the weights of each gate separately; torch stacks the gates of a layer in one matrix."""
    for name, parameter in rnn.named_parameters():
        gates = torch.zeros_like(parameter).split(rnn.hidden_size)
        for gate in gates:
            if name.startswith("weight_ih"):
                init.xavier_uniform_(gate)
            elif name.startswith("weight_hh"):
                init.orthogonal_(gate)
        if name.startswith("bias_ih"):
            # An LSTM's forget gate (Jozefowicz et al. 2015) or a GRU's update gate.
            init.ones_(gates[1])
        init.copy_(parameter, torch.cat(gates))
