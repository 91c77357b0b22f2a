"""Stub: non-default values that every configuration must accept and keep. The original list is not published."""

config_common_kwargs = {
    "architectures": ["AnyModel"],
    "chunk_size_feed_forward": 5,
    "dtype": "float16",
    "id2label": {0: "no", 1: "yes"},
    "label2id": {"no": 0, "yes": 1},
    "output_attentions": True,
    "output_hidden_states": True,
    "problem_type": "regression",
    "return_dict": False,
}
