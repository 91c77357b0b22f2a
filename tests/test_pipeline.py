"""`pipeline("seq2seq")` equals tokenizer, `generate()` and decoding, for several model types."""

import copy
import itertools
import re

import pytest
import torch
from datasets import Dataset
from transformers import (
    AutoTokenizer,
    EncoderDecoderConfig,
    EncoderDecoderModel,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LogitsProcessor,
    LogitsProcessorList,
    RobertaConfig,
    TextStreamer,
    logging,
    pipeline,
)
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.pt_utils import KeyDataset
from transformers.testing_utils import CaptureLogger

from modeling_random_transformer import RandomTransformerModel, RandomTransformerTokenizer
from modeling_random_transformer import pipeline_random_transformer as module
from modeling_random_transformer.pipeline_random_transformer import Seq2SeqPipeline
from tests.helpers.foreign import POSITIONS, foreign_model
from tests.helpers.models import BOS, EOS, assert_near, tiny_config
from tests.helpers.translation import SENTENCES, random_translator, some_texts

TEXTS = some_texts(9)
SHORT = {"max_new_tokens": 6}


def seq2seq(model, tokenizer, **options) -> Seq2SeqPipeline:
    return pipeline("seq2seq", model=model, tokenizer=tokenizer, device="cpu", **options)


@pytest.fixture(scope="module", params=["own", "T5"])
def model(request, model, tokenizer):
    """That of all tests, and one of another architecture."""
    return model if request.param == "own" else foreign_model("T5", vocab_size=len(tokenizer))


@pytest.fixture
def pipe(model, tokenizer):
    return seq2seq(model, tokenizer)


@pytest.fixture
def own_pipe(tokenizer):
    return seq2seq(random_translator(), tokenizer)


def reference(model, tokenizer, text: str | list[str], **options) -> list[str]:
    inputs = tokenizer(text, return_tensors="pt", padding=True)
    return tokenizer.batch_decode(model.generate(**inputs, **options), skip_special_tokens=True)


def one_by_one(model, tokenizer, texts: list[str], **options) -> list[str]:
    return [reference(model, tokenizer, text, **options)[0] for text in texts]


def spy_on_generate(model, monkeypatch) -> list[torch.Tensor]:
    """A list that receives the attention mask of each following call of `generate()`."""
    masks, generate = [], model.generate

    def spy(**inputs):
        masks.append(inputs["attention_mask"])
        return generate(**inputs)

    monkeypatch.setattr(model, "generate", spy)
    return masks


def texts_of(answers, key: str = "generated_text") -> list[str]:
    return [answer[key] for answer in answers]


class TestGeneration:
    def test_pads_on_the_right(self, model, tokenizer):
        """Positions count from the left, so left padding would shift them."""
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.padding_side = "left"
        pipe = seq2seq(model, tokenizer)
        assert texts_of(pipe(TEXTS, batch_size=5, **SHORT)) == one_by_one(model, tokenizer, TEXTS, **SHORT)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"num_beams": 3, "length_penalty": 0.2},
            {"no_repeat_ngram_size": 1, "min_new_tokens": 4},
            {"generation_config": GenerationConfig(max_new_tokens=3, num_beams=2)},
        ],
        ids=str,
    )
    def test_batching_does_not_change_answers(self, pipe, options):
        options = options if "generation_config" in options else SHORT | options
        expected = one_by_one(pipe.model, pipe.tokenizer, TEXTS, **options)
        assert len(set(expected)) > 3, "the outputs must differ for the test to be meaningful"
        assert pipe(TEXTS[0], **options) == {"generated_text": expected[0]}
        for batch_size in (1, 4, 50):
            assert texts_of(pipe(TEXTS, batch_size=batch_size, **options)) == expected
        assert texts_of(pipe(tuple(TEXTS), batch_size=3, **options)) == expected

    def test_call_options_override_pipeline_options(self, model, tokenizer):
        pipe = seq2seq(model, tokenizer, num_beams=3, **SHORT)
        hand = (model, tokenizer, TEXTS)
        assert texts_of(pipe(TEXTS)) == one_by_one(*hand, num_beams=3, **SHORT)
        assert texts_of(pipe(TEXTS, max_new_tokens=3)) == one_by_one(*hand, num_beams=3, max_new_tokens=3)
        unset = dict.fromkeys(("generation_config", "max_length", "max_new_tokens"))
        assert texts_of(pipe(TEXTS, **unset)) == one_by_one(*hand, num_beams=3, **SHORT)
        config = GenerationConfig(max_new_tokens=3)
        expected = one_by_one(*hand, generation_config=config)
        assert texts_of(pipe(TEXTS, generation_config=config)) == expected
        assert texts_of(pipe(TEXTS, generation_config=config, max_batch_tokens=64, max_new_tokens=None)) == expected

    @pytest.mark.parametrize(("first", "then"), [("max_new_tokens", "max_length"), ("max_length", "max_new_tokens")])
    def test_call_overrides_lengths_without_a_warning(self, model, tokenizer, first, then):
        """generate() warns if it gets both `max_length` and `max_new_tokens`."""
        tokens = {"max_new_tokens": 4, "max_length": 5}  # the start token counts as part of the length
        model = copy.deepcopy(model)
        setattr(model.generation_config, first, 12)
        expected = one_by_one(model, tokenizer, TEXTS, max_new_tokens=4, max_length=None)
        pipe = seq2seq(model, tokenizer, **{first: 8})
        with CaptureLogger(logging.get_logger("transformers.generation.utils")) as captured:
            assert texts_of(pipe(TEXTS, **{then: tokens[then]})) == expected
        assert captured.out == ""

    @pytest.mark.parametrize("name", ["max_new_tokens", "max_length"])
    def test_a_limit_of_none_is_no_limit_of_the_call(self, model, tokenizer, name):
        pipe = seq2seq(model, tokenizer, **SHORT)
        assert pipe(TEXTS, **{name: None}) == pipe(TEXTS)

    def test_logits_processors_and_stop_strings(self, own_pipe):
        class Only(LogitsProcessor):
            def __call__(self, input_ids, scores):  # noqa: ARG002
                return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([70]), 0.0)

        assert own_pipe(TEXTS[0], logits_processor=LogitsProcessorList([Only()]), **SHORT) == {
            "generated_text": own_pipe.tokenizer.decode([70] * 6)
        }
        whole = own_pipe(TEXTS[0], **SHORT)["generated_text"]
        stopped = own_pipe(TEXTS[0], stop_strings=[whole[0]], **SHORT)["generated_text"]
        assert len(stopped) < len(whole)
        assert stopped == whole[: len(stopped)]

    def test_prefix_is_prepended_to_each_text(self, own_pipe):
        prefix = "translate English to Spanish: "
        expected = one_by_one(own_pipe.model, own_pipe.tokenizer, [prefix + text for text in TEXTS], **SHORT)
        assert expected != texts_of(own_pipe(TEXTS, **SHORT))
        assert texts_of(own_pipe(TEXTS, batch_size=4, prefix=prefix, **SHORT)) == expected
        own_pipe.model.config.prefix = prefix
        assert texts_of(own_pipe(TEXTS, batch_size=4, **SHORT)) == expected
        assert texts_of(own_pipe(TEXTS, prefix="", **SHORT)) != expected


class TestScores:
    def test_beam_search_scores(self, pipe):
        options = SHORT | {"num_beams": 3, "num_return_sequences": 2}
        inputs = pipe.tokenizer(TEXTS, return_tensors="pt", padding=True)
        ranked = {"return_dict_in_generate": True, "output_scores": True}
        expected = pipe.model.generate(**inputs, **options, **ranked).sequences_scores.view(-1, 2)
        answers = pipe(TEXTS, batch_size=4, return_scores=True, **options)
        assert texts_of(itertools.chain(*answers)) == texts_of(itertools.chain(*pipe(TEXTS, **options)))
        scores = torch.tensor([[candidate["score"] for candidate in answer] for answer in answers])
        assert_near(scores, expected, 1e-5)

    @pytest.mark.parametrize("config", [False, True])
    @pytest.mark.parametrize(
        "options", [{}, {"do_sample": True, "top_k": 5, "temperature": 2.0}], ids=["greedy", "sample"]
    )
    def test_token_log_probabilities_are_summed_up_to_the_end_token(self, pipe, options, config):
        """For a single text, generation stops at its end, so no later token can be counted."""
        options = SHORT | options | {"suppress_tokens": [0], "eos_token_id": [EOS, *range(4, 80)]}
        ranked = {"return_dict_in_generate": True, "output_scores": True}
        search_arguments = {"generation_config": GenerationConfig(**options)} if config else options
        expected = []
        torch.manual_seed(7)
        for text in TEXTS:
            outputs = pipe.model.generate(**pipe.tokenizer(text, return_tensors="pt"), **options, **ranked)
            steps = pipe.model.compute_transition_scores(outputs.sequences, outputs.scores, normalize_logits=True)
            expected.append((outputs.sequences.shape[1], steps.sum().item()))
        assert len({length for length, _ in expected}) > 1, "all have one length: there are no tokens after an end"
        for batch_size in (1,) if options.get("do_sample") else (1, len(TEXTS)):
            torch.manual_seed(7)
            answers = pipe(TEXTS, batch_size=batch_size, return_scores=True, **search_arguments)
            sums = torch.tensor([score for _, score in expected])
            assert_near(torch.tensor(texts_of(answers, "score")), sums, 1e-5)

    def test_separate_decoder_vocabulary(self, tokenizer):
        separate = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
        sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": 40, "init_std": 0.02}
        model = foreign_model("Marian", **sizes, **separate)
        pipe = seq2seq(model, tokenizer)
        assert all(answer["score"] < 0 for answer in pipe(TEXTS, batch_size=4, return_scores=True, **SHORT))

    def test_padding_is_not_scored(self):
        logits = torch.zeros(5, 4, 8)  # each token has the log-probability -log(8)
        tokens = torch.tensor([[5, 2, 0, 0, 0], [5, 6, 7, 0, 0], [0, 5, 0, 6, 7], [5, 2, 6, 6, 6]])
        ended_by_2 = module.log_probabilities(tokens, logits, [2, 3], 0) / -torch.tensor(8.0).log()
        assert ended_by_2.round().tolist() == [2, 3, 5, 2]
        ended_by_0 = module.log_probabilities(tokens, logits, 0, 0) / -torch.tensor(8.0).log()
        assert ended_by_0.round().tolist() == [3, 4, 1, 5]
        without_end = module.log_probabilities(tokens, logits, None, None) / -torch.tensor(8.0).log()
        assert without_end.round().tolist() == [5, 5, 5, 5]


class TestBatches:
    def test_lists_are_sorted_by_length(self, own_pipe, monkeypatch):
        texts = [" ".join(["the boy"] * n) for n in (1, 12, 2, 11, 3, 10, 4, 9)]
        expected = one_by_one(own_pipe.model, own_pipe.tokenizer, texts, **SHORT)
        unsorted = [own_pipe.tokenizer(texts[i : i + 2], padding=True, return_tensors="pt") for i in range(0, 8, 2)]
        masks = spy_on_generate(own_pipe.model, monkeypatch)
        assert texts_of(own_pipe(texts, batch_size=2, **SHORT)) == expected
        assert [len(mask) for mask in masks] == [2, 2, 2, 2]
        assert 4 * sum((mask == 0).sum() for mask in masks) < sum((b.attention_mask == 0).sum() for b in unsorted)
        lengths = [mask.shape[1] for mask in masks]
        assert lengths == sorted(lengths, reverse=True), (
            "the longest batch must be first, so that running out of memory happens early"
        )

    def test_streams_are_sorted_within_a_window(self, own_pipe, monkeypatch):
        monkeypatch.setattr(module, "WINDOW", 2)
        masks = spy_on_generate(own_pipe.model, monkeypatch)
        texts = ["the boy " * n for n in (1, 9, 1, 9, 1, 9, 1, 9)]
        assert len(list(own_pipe(iter(texts), batch_size=2, **SHORT))) == 8
        assert sum((mask == 0).sum() for mask in masks) == 0
        assert [mask.shape[1] for mask in masks][:2] == [mask.shape[1] for mask in masks][2:]


class TestStreams:
    def infinite(self, read: list[str]):
        for text in itertools.cycle(TEXTS):
            read.append(text)
            yield text

    @pytest.mark.parametrize(("batch_size", "window"), [(1, 1), (2, 2 * module.WINDOW)])
    def test_stream_is_read_lazily(self, own_pipe, batch_size, window):
        read: list[str] = []
        answers = own_pipe(self.infinite(read), batch_size=batch_size, **SHORT)
        assert read == []
        translations = texts_of(itertools.islice(answers, window))
        assert len(read) == window
        assert translations == one_by_one(own_pipe.model, own_pipe.tokenizer, read, **SHORT)
        next(answers)
        assert len(read) == 2 * window

    def test_columns_of_datasets_are_read_lazily(self, own_pipe):
        expected = texts_of(own_pipe(TEXTS, **SHORT))
        dataset = Dataset.from_dict({"text": TEXTS, "more": TEXTS})
        columns = [KeyDataset(dataset, "text"), dataset["text"], dataset.to_iterable_dataset()["text"], iter(TEXTS)]
        columns.append(text for text in TEXTS)
        for column in columns:
            answers = own_pipe(column, batch_size=3, **SHORT)
            assert iter(answers) is answers, f"{type(column)}: not lazy"
            assert texts_of(answers) == expected

    def test_empty_inputs_and_a_streamer(self, own_pipe, capsys):
        assert own_pipe([]) == own_pipe(()) == []
        assert list(own_pipe(iter([]), batch_size=4)) == []
        expected = own_pipe(TEXTS[0], **SHORT)
        streamer = TextStreamer(own_pipe.tokenizer, skip_special_tokens=True)
        assert own_pipe(TEXTS[0], streamer=streamer, **SHORT) == expected
        assert capsys.readouterr().out.strip() == expected["generated_text"].strip()


class TestLongTexts:
    LONG = " ".join(["the boy reads"] * 30)
    MIXED = [TEXTS[0], LONG, TEXTS[1], LONG]

    @pytest.mark.parametrize("kind", ["Marian", "BART", "learned"])
    def test_learned_positions_limit_sources(self, tokenizer, kind):
        overrides = {"position_embedding": "learned", "max_position_embeddings": POSITIONS}
        is_own_model = kind == "learned"
        model = random_translator(**overrides) if is_own_model else foreign_model(kind, vocab_size=len(tokenizer))
        pipe = seq2seq(model, tokenizer)
        length = len(tokenizer(self.LONG).input_ids)
        with pytest.raises(ValueError, match=rf"^index 1: .* at most {POSITIONS} tokens .*positions.* got {length}"):
            pipe(self.MIXED, **SHORT)
        with pytest.raises(ValueError, match=f"^texts must have .* got {length}"):
            pipe(self.LONG, max_source_tokens=1000, truncation=False, **SHORT)
        cut = tokenizer(self.LONG, truncation=True, max_length=POSITIONS, return_tensors="pt")
        expected = tokenizer.decode(model.generate(**cut, **SHORT)[0], skip_special_tokens=True)
        with pytest.warns(UserWarning, match=f"2 of 4 texts were truncated to {POSITIONS} tokens"):
            answers = pipe(self.MIXED, batch_size=4, truncation=True, **SHORT)
        first, second = texts_of(pipe(TEXTS[:2], **SHORT))
        assert texts_of(answers) == [first, expected, second, expected]

    def test_max_source_tokens_overrides_model_max_length(self, own_pipe, tokenizer):
        tokenizer = copy.deepcopy(tokenizer)
        tokenizer.model_max_length = 40
        pipe = seq2seq(own_pipe.model, tokenizer)
        limit = r"at most 40 tokens \(tokenizer.model_max_length, which max_source_tokens overrides\)"
        with pytest.raises(ValueError, match=rf"{limit}.* set max_source_tokens or, in Python, truncation=True"):
            pipe(self.LONG)
        whole = pipe(self.LONG, max_source_tokens=1000, **SHORT)
        assert texts_of([whole]) == reference(own_pipe.model, tokenizer, self.LONG, **SHORT)

    def test_max_source_tokens_truncates(self, own_pipe):
        with pytest.warns(UserWarning, match=r"1 of 1 texts were truncated to 9 tokens \(max_source_tokens\)"):
            answer = own_pipe(self.LONG, max_source_tokens=9, **SHORT)
        ids = [*own_pipe.tokenizer(self.LONG).input_ids[:8], EOS]
        expected = own_pipe.model.generate(input_ids=torch.tensor([ids]), **SHORT)[0]
        assert answer["generated_text"] == own_pipe.tokenizer.decode(expected, skip_special_tokens=True)
        with pytest.raises(ValueError, match="at most 9 tokens"):
            own_pipe(self.LONG, max_source_tokens=9, truncation=False)
        with pytest.raises(ValueError, match="must be greater than the number of special tokens, 1, got 1"):
            own_pipe(self.LONG, max_source_tokens=1, **SHORT)

    @pytest.mark.parametrize("kind", ["FSMT", "M2M100"])
    def test_computed_positions_are_unlimited(self, tokenizer, kind):
        """`max_position_embeddings` is only the initial size of the table. FSMT's encoder has no configuration."""
        names = ("src_vocab_size", "tgt_vocab_size") if kind == "FSMT" else ("vocab_size",)
        options = dict.fromkeys(names, len(tokenizer)) | ({"langs": ["en", "es"]} if kind == "FSMT" else {})
        pipe = seq2seq(foreign_model(kind, **options, max_position_embeddings=16), tokenizer)
        assert texts_of([pipe(self.LONG, **SHORT)]) == reference(pipe.model, tokenizer, self.LONG, **SHORT)

    def test_positions_that_count_from_the_padding_index(self, tokenizer):
        """RoBERTa's first position follows the padding index."""
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
        special = {"pad_token_id": 3, "bos_token_id": 1, "eos_token_id": EOS}
        config = RobertaConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **sizes, **special)
        both = EncoderDecoderConfig.from_encoder_decoder_configs(config, copy.deepcopy(config))
        both.decoder_start_token_id, both.pad_token_id = 1, 3
        pipe = seq2seq(EncoderDecoderModel(both), tokenizer)
        with pytest.raises(ValueError, match=r"at most 36 tokens \(the model's positions\)"):
            pipe(self.LONG, **SHORT)
        with pytest.warns(UserWarning, match="truncated to 36 tokens"):
            assert "generated_text" in pipe(self.LONG, truncation=True, **SHORT)


class TestWithoutLetters:
    """There is nothing to translate in numbers and punctuation."""

    TEXTS = ("42", " 3,5 % …", "٤٢", "😀 👍🏽", "½ ²", "1\u3164")

    @pytest.mark.parametrize("text", TEXTS)
    def test_the_text_is_returned_unchanged(self, own_pipe, text, monkeypatch):
        expected = own_pipe(TEXTS[:2], **SHORT)
        assert own_pipe([TEXTS[0], text, TEXTS[1]], batch_size=3, **SHORT) == [
            expected[0],
            {"generated_text": text},
            expected[1],
        ]
        monkeypatch.setattr(own_pipe.model, "generate", None)
        assert own_pipe(text) == {"generated_text": text}
        options = {"return_scores": True, "return_tokens": True, "return_key": "text"}
        answer = {"text": text, "score": 0.0, "tokens": []}
        assert own_pipe(text, **options) == answer
        assert own_pipe(text, num_beams=2, num_return_sequences=2, **options) == [answer, answer]

    def test_passed_to_the_model_where_they_are_to_be(self, own_pipe, tokenizer, tmp_path):
        (expected,) = reference(own_pipe.model, tokenizer, "42", **SHORT)
        assert own_pipe("42", keep_without_letters=False, **SHORT)["generated_text"] == expected != "42"
        assert own_pipe("42", target_prefix="the", **SHORT)["generated_text"].startswith("the")
        for blank in ("\u200b", " ", "\u00a0", ["\ufeff"]):
            (answer,) = own_pipe(["42"], target_prefix=blank, **SHORT)
            assert answer == {"generated_text": "42"}, blank
        own_pipe.tokenizer = copy.deepcopy(tokenizer)
        own_pipe.tokenizer.keep_without_letters = False
        own_pipe.save_pretrained(tmp_path)
        saved = pipeline("seq2seq", model=str(tmp_path), device="cpu")
        assert saved("42", **SHORT)["generated_text"] == expected

    def test_errors_have_the_index_of_the_text(self, own_pipe):
        with pytest.raises(ValueError, match=r"^index 2: texts must have at most 3 tokens"):
            own_pipe(["42", "the", "the boy reads", "7"], max_source_tokens=3, truncation=False, **SHORT)


@pytest.mark.parametrize("change", [" {}", "{} ", "{}\n", "{}\r\n", "\ufeff{}", "{}\u200b ", "{}\u00a0", "\u2028{}"])
def test_invisible_characters_at_the_ends(own_pipe, change):
    texts = TEXTS[:3]
    answers = own_pipe([change.format(text) for text in texts], batch_size=2, **SHORT)
    assert answers == own_pipe(texts, batch_size=2, **SHORT)


@pytest.mark.parametrize("spaces", ["  ", "\t", " \t ", " \u00a0", "\u2009 ", "     "])
def test_repeated_spaces_and_tabs_are_one_space(own_pipe, spaces):
    texts = TEXTS[:3]
    answers = own_pipe([text.replace(" ", spaces) for text in texts], batch_size=2, **SHORT)
    assert answers == own_pipe(texts, batch_size=2, **SHORT)


def test_repeated_spaces_are_kept_if_the_vocabulary_has_a_token_of_them():
    indented = [f"if a:\n        {sentence}" for sentence in SENTENCES]
    tokenizer = RandomTransformerTokenizer.train(indented * 3, vocab_size=320)
    assert tokenizer.keeps_spaces
    assert tokenizer.without_extra_spaces(f" {indented[0]}\t") == indented[0]


@pytest.mark.parametrize("line_break", ["\n", "\r\n", " \n", "\n  ", "\n\n\t", "\r", "\u2028"])
def test_line_breaks_are_one_space(own_pipe, line_break):
    texts = TEXTS[:3]
    answers = own_pipe([text.replace(" ", line_break) for text in texts], batch_size=2, **SHORT)
    assert answers == own_pipe(texts, batch_size=2, **SHORT)


def test_line_breaks_are_kept_if_the_training_texts_had_some(tmp_path):
    poems = [f"{first}\n{second}" for first, second in itertools.pairwise(SENTENCES)]
    tokenizer = RandomTransformerTokenizer.train(poems * 3, vocab_size=320)
    assert not tokenizer.keeps_spaces
    tokenizer.save_pretrained(tmp_path)
    saved = AutoTokenizer.from_pretrained(tmp_path)
    assert saved.keep_line_breaks
    assert saved.without_extra_spaces(f"{poems[0]}\n") == poems[0]
    saved.keep_line_breaks = False
    assert saved.without_extra_spaces(poems[0]) == poems[0].replace("\n", " ")


@pytest.mark.parametrize(("lines", "keeps"), [(1, False), (10, True)])
def test_rare_line_breaks_of_the_training_texts_are_no_content(lines, keeps):
    texts = ["the boy"] * (200 - lines) + ["the\nboy"] * lines
    assert RandomTransformerTokenizer.train(texts, vocab_size=300).keep_line_breaks == keeps


def test_saved_tokenizers_without_a_normalization_keep_the_tokens():
    tokenizer = RandomTransformerTokenizer.train(SENTENCES * 3, vocab_size=320, normalization=None)
    pipe = seq2seq(random_translator(), tokenizer)
    text = " the  gi\u00adrl\u00a0"
    [(_, inputs)] = pipe.batches([text], [""], pipe.call_options())
    assert inputs["input_ids"].tolist() == [tokenizer(text).input_ids]


class TestErrors:
    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            (None, "inputs must be an iterable of strings, got one NoneType"),
            (b"text", "inputs must be an iterable of strings, got one bytes"),
            ({"text": "text"}, "inputs must be an iterable of strings, got one dict"),
            ("", r"^texts must not be blank, got ''"),
            ("\u200b\ufeff", r"^texts must not be blank, got '"),
            (["a", "\ud800"], "index 1: texts must be Unicode"),
            (Dataset.from_dict({"text": TEXTS}), r"^index 0: texts must be strings, got \{'text'"),
            ((text for text in [*TEXTS, None]), "index 9: texts must be strings, got None"),
        ],
        ids=["None", "bytes", "dict", "blank", "invisible", "half a character", "dataset", "stream"],
    )
    def test_inputs_must_be_texts(self, own_pipe, inputs, message):
        with pytest.raises(ValueError, match=message):
            list(own_pipe(inputs, **SHORT))

    @pytest.mark.parametrize("invalid", [" \t\n", None, {"content": "x", "role": "user"}], ids=repr)
    def test_invalid_text_is_found_before_generation(self, own_pipe, invalid, monkeypatch):
        masks = spy_on_generate(own_pipe.model, monkeypatch)
        texts = [*TEXTS[:2], invalid, *TEXTS[:3]]
        with pytest.raises(ValueError, match=rf"^index 2: texts must .* got {re.escape(repr(invalid))}\."):
            own_pipe(texts, batch_size=2)
        assert masks == [], "the first batch was generated before the invalid text was noticed"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("truncation", "longest_first"),
            ("max_source_tokens", True),
            ("max_batch_tokens", 0),
            ("prefix", 3),
            ("batch_size", 2.0),
        ],
    )
    def test_invalid_option(self, own_pipe, name, value):
        with pytest.raises(ValueError, match=f"{name} must be .*got {value!r}"):
            own_pipe(TEXTS, **{name: value})

    @pytest.mark.parametrize("option", [{"num_beam": 3}, {"eos_token_id": "</s>"}, {"suppress_tokens": 7}], ids=str)
    def test_invalid_option_of_generate(self, own_pipe, option):
        """`generate()` raises an error of some other class, or one that does not say where the option comes from."""
        with pytest.raises(ValueError, match=r"^generate\(\) raised \w+: .*generation_config.json must be valid"):
            own_pipe(TEXTS, **option)

    @pytest.mark.parametrize("rows", [1, 2])
    def test_prompts_that_would_belong_to_other_texts(self, own_pipe, rows):
        """Batches are sorted by length, and a prompt would move the places of the prefix."""
        options = {"decoder_input_ids": torch.tensor([[BOS, 5]] * rows), "target_prefix": "the" if rows == 1 else None}
        with pytest.raises(ValueError, match=f"decoder_input_ids must be one row, and None .*, got {rows} rows"):
            own_pipe(TEXTS[:2], batch_size=2, **options)

    def test_model_and_tokenizer_are_checked(self, own_pipe, tokenizer):
        gpt = GPT2LMHeadModel(GPT2Config(vocab_size=9, n_embd=4, n_layer=1, n_head=1))
        for model in (gpt, RandomTransformerModel(tiny_config())):
            with pytest.raises(ValueError, match=f"model must be .*got {type(model).__name__}"):
                Seq2SeqPipeline(model, tokenizer)
        with pytest.raises(ValueError, match=r"^tokenizer must be a tokenizer of transformers, got NoneType\.$"):
            Seq2SeqPipeline(own_pipe.model)


class TestSaving:
    def test_remote_code_does_not_replace_the_registered_task(self, tokenizer, tmp_path):
        pipe = seq2seq(foreign_model("BART", vocab_size=len(tokenizer)), tokenizer)
        pipe.save_pretrained(tmp_path / "saved")
        loaded = pipeline("seq2seq", str(tmp_path / "saved"), trust_remote_code=True, device="cpu")
        assert type(loaded).__module__.startswith("transformers_modules")
        assert loaded(TEXTS, **SHORT) == pipe(TEXTS, **SHORT)
        assert PIPELINE_REGISTRY.supported_tasks["seq2seq"]["impl"] is Seq2SeqPipeline
        explicit_pipe = pipeline("seq2seq", str(tmp_path / "saved"), pipeline_class=Seq2SeqPipeline, device="cpu")
        assert explicit_pipe(TEXTS, **SHORT) == pipe(TEXTS, **SHORT)
