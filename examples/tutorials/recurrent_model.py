"""What translated before the Transformer: an LSTM or GRU encoder-decoder with additive attention, for transformers.

After Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and Translate" (arXiv:1409.0473),
and seed 004, which leads from the RNN to the LSTM, the encoder-decoder and attention. The encoder reads the source in
both directions at once. The decoder reads one target token at a time, together with what it last saw of the source
("input feeding", Luong et al. 2015, arXiv:1508.04025), and then looks at the source anew.

Shapes in this file: `batch` counts sequences, `source_len` and `target_len` tokens.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.generation.configuration_utils import GenerationMode
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

ENCODERS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU}
CELLS: dict[str, Any] = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}


class RecurrentConfig(PreTrainedConfig):
    """Every choice that defines a recurrent encoder-decoder.

    Args:
        cell: `"lstm"` or `"gru"`.
        vocab_size: entries of the one vocabulary that source, target and output share.
        d_model: width of the token embeddings.
        hidden_size: width of the decoder's state, and of the encoder's two directions together.
        dropout: rate on embeddings, on the encoder's states and before the logits.

    Raises:
        ValueError: there is no such cell, or `hidden_size` is odd.
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
    """All that the decoder keeps from one target token to the next."""

    memory: tuple[Tensor, ...]  # the cell's: hidden state and, of an LSTM, cell state, each [batch, hidden_size]
    context: Tensor  # what attention last gave, [batch, hidden_size]


class AdditiveAttention(nn.Module):
    """score(s, h) = vᵀ tanh(W s + U h), and the mean of all h weighted by softmax(score) (seed 004; Bahdanau A.1.2)."""

    def __init__(self, size: int):
        super().__init__()
        self.query = nn.Linear(size, size, bias=False)  # W
        self.key = nn.Linear(size, size, bias=False)  # U
        self.score = nn.Linear(size, 1, bias=False)  # v

    def forward(self, state: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """One look of each decoder at its source.

        Args:
            state: s, `[batch, size]`.
            keys: U h, `[batch, source_len, size]`: the same for all target tokens, so the caller computes them once.
            values: h, `[batch, source_len, size]`.
            mask: True where a source may be seen, `[batch, source_len]`.

        Returns:
            The context `[batch, size]`, and the weights `[batch, source_len]`.
        """
        scores = self.score(torch.tanh(self.query(state)[:, None] + keys)).squeeze(-1)
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
        return torch.bmm(weights[:, None], values).squeeze(1), weights


class RecurrentEncoder(nn.Module):
    """Reads the source from both ends (Bahdanau 3.2). Its embedding is that of the whole model."""

    main_input_name = "input_ids"  # generate() asks

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
        # Packed, so that the way back starts at a row's last token and not in its padding.
        lengths = attention_mask.sum(dim=1).cpu()
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True, total_length=input_ids.shape[1])
        return BaseModelOutput(last_hidden_state=self.dropout(states))


class RecurrentDecoder(nn.Module):
    """Writes the target from left to right, with a look at the source at each token."""

    def __init__(self, config: RecurrentConfig):
        super().__init__()
        size = config.hidden_size
        self.dropout = nn.Dropout(config.dropout)
        self.bridge = nn.Linear(size // 2, size * (2 if config.cell == "lstm" else 1))
        self.cell = CELLS[config.cell](config.d_model + size, size)
        self.attention = AdditiveAttention(size)
        self.output = nn.Linear(2 * size + config.d_model, config.d_model)

    def start(self, source: Tensor) -> DecoderState:
        """The state before the first token, made of where the encoder's way back has arrived (Bahdanau A.2.2)."""
        size = self.cell.hidden_size
        whole_source = source[:, 0, size // 2 :]
        memory = torch.tanh(self.bridge(whole_source)).split(size, dim=-1)
        return DecoderState(memory, torch.zeros_like(memory[0]))

    def forward(
        self, embedded: Tensor, source: Tensor, mask: Tensor, state: DecoderState | None = None
    ) -> tuple[Tensor, Tensor, DecoderState]:
        """Go through the target token by token: each step needs what the one before it has left.

        Args:
            embedded: the target, `[batch, target_len, d_model]`.
            source: the encoder's states, `[batch, source_len, hidden_size]`.
            mask: True where a source may be seen, `[batch, source_len]`.
            state: what an earlier call left, to go on from there.

        Returns:
            Hidden states `[batch, target_len, d_model]`, attention weights `[batch, target_len, source_len]`, and the
            state after the last token.
        """
        embedded = self.dropout(embedded)
        keys = self.attention.key(source)
        state = state or self.start(source)
        seen, looks = [], []
        for token in embedded.unbind(dim=1):
            memory = self.step(torch.cat([token, state.context], dim=-1), state.memory)
            context, weights = self.attention(memory[0], keys, source, mask)
            state = DecoderState(memory, context)
            seen.append(torch.cat([memory[0], context], dim=-1))
            looks.append(weights)
        # What follows feeds no later step, so it is done for all tokens at once.
        hidden = torch.tanh(self.output(torch.cat([torch.stack(seen, dim=1), embedded], dim=-1)))
        return self.dropout(hidden), torch.stack(looks, dim=1), state

    def step(self, inputs: Tensor, memory: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """One step of the cell. torch takes and gives an LSTM's memory as a pair, a GRU's as a single tensor."""
        return self.cell(inputs, memory) if len(memory) == 2 else (self.cell(inputs, *memory),)


class RecurrentForConditionalGeneration(PreTrainedModel, GenerationMixin):
    """Encoder, decoder and output layer, with the library's `generate()`, greedy or sampling."""

    config_class = RecurrentConfig
    main_input_name = "input_ids"
    accepts_loss_kwargs = False  # the loss is the mean over this batch, whatever else the trainer accumulates
    _is_stateful = True  # a recurrence cannot take back a token
    _supported_generation_modes = [GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE]

    def __init__(self, config: RecurrentConfig):
        super().__init__(config)
        self.encoder = RecurrentEncoder(config)
        self.decoder = RecurrentDecoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.embedding

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        past_key_values: DecoderState | None = None,
        use_cache: bool = False,
        **_kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Score the next token at every position of the target, and the labels if given.

        Args:
            input_ids: the source, `[batch, source_len]`, padded on the right.
            attention_mask: 0 at padding, `[batch, source_len]`.
            decoder_input_ids: the target behind its start token, `[batch, target_len]`; made of the labels if missing.
            labels: `[batch, target_len]`, -100 where nothing is to be predicted.
            encoder_outputs: instead of `input_ids`, what the encoder has made of them.
            past_key_values: where an earlier call stopped; `decoder_input_ids` are then only the tokens after it.
            use_cache: return that state.

        Returns:
            Logits `[batch, target_len, vocab_size]`, attention weights `[batch, 1, target_len, source_len]`, and with
            labels the mean cross-entropy in nats per token.

        Raises:
            ValueError: there are neither `decoder_input_ids` nor `labels`.
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
        hidden, weights, state = self.decoder(embedded, source, mask.bool(), past_key_values)
        logits = nn.functional.linear(hidden, self.encoder.embedding.weight)
        return Seq2SeqLMOutput(
            loss=None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
            logits=logits,
            past_key_values=state if use_cache else None,
            cross_attentions=(weights[:, None],),
            encoder_last_hidden_state=source,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels shifted right behind the start token, -100 read as padding: `[batch, target_len]` in and out."""
        shifted = nn.functional.pad(labels[:, :-1], (1, 0), value=self.config.decoder_start_token_id)
        return shifted.masked_fill(shifted == -100, self.config.pad_token_id)

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """No: the library's caches hold keys and values, and here is a state."""
        return False

    def _init_weights(self, module: nn.Module) -> None:
        """Xavier for what comes in, orthogonal for what recurs (Saxe et al. 2014), and memory is kept at first."""
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.RNNBase | nn.RNNCellBase):
            init_gates(module)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)


def init_gates(rnn: Any) -> None:
    """Initialise the weights of each gate by themselves; torch stacks those of a layer in one matrix."""
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
