"""The Transformer of "Attention Is All You Need" in plain Python. It learns to write numbers in German.

    python examples/micro_transformer.py

    3 4 2  →  drei hundert zwei und vierzig        (word for word: three hundred two and forty)

The blog post "The Random Transformer" computes each number of a Transformer once. Here the same numbers learn. Read
from top to bottom: the task, matrices with gradients, the model, training, beam search. Shapes are [rows, columns].
"""

import math
import random

D_MODEL, HEADS, D_FF, LAYERS = 16, 2, 32, 1  # LAYERS in the encoder, and as many in the decoder
STEPS, BATCH_SIZE, LEARNING_RATE, WARMUP_STEPS, SMOOTHING = 800, 8, 0.01, 100, 0.1
BEAMS, MAX_TOKENS, SEED, EXAMPLE = 4, 8, 0, 342  # EXAMPLE is printed while the model learns from other numbers
Rows = list[list[float]]

# The task: digits of a number below 1000 → German words. The word of the last digit comes before that of the tens.
SMALL = "- ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn".split()
SMALL += ["siebzehn", "achtzehn", "neunzehn"]
TENS = "- - zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
VOCABULARY = ["<pad>", "<s>", "</s>", *"0123456789", *SMALL[1:], *TENS[2:], "eins", "und", "hundert"]
PAD, START, END = 0, 1, 2


def german(number: int) -> list[str]:
    hundreds, rest = divmod(number, 100)
    words = [SMALL[hundreds], "hundert"] if hundreds else []
    if rest >= 20:
        return words + ([SMALL[rest % 10], "und"] if rest % 10 else []) + [TENS[rest // 10]]
    return words + (["eins"] if rest == 1 else [SMALL[rest]] if rest else [])


def to_ids(words: list[str]) -> list[int]:
    return [VOCABULARY.index(word) for word in words] + [END]


# Matrices. Each operation writes its result to a tape, with a function that computes the gradients of the matrices that
# it has read, the parents, from the gradient of the result. Backpropagation reads the tape backward.


def added(a: Rows, b: Rows) -> Rows:
    return [[x + y for x, y in zip(*pair)] for pair in zip(a, b)]


def multiplied(a: Rows, b: Rows) -> Rows:
    return [[x * y for x, y in zip(*pair)] for pair in zip(a, b)]


def dot_products(a: Rows, b: Rows) -> Rows:
    """Each row of a with each row of b: [n, k] and [m, k] → [n, m]. The program spends most of its time here."""
    return [[sum([x * y for x, y in zip(a_row, b_row)]) for b_row in b] for a_row in a]


def transposed(a: Rows) -> Rows:
    return [list(column) for column in zip(*a)]


class Matrix:
    tape: list["Matrix"] = []

    def __init__(self, rows, parents=(), backward=lambda _: []):  # type: ignore[no-untyped-def]
        self.rows, self.parents, self.backward = rows, parents, backward
        self.gradient: Rows = []  # the derivative of the loss by each number
        self.tape.append(self)

    def backpropagate(self) -> None:
        """Compute the gradients of all matrices that this one, the loss [1, 1], depends on."""
        self.gradient = [[1.0]]
        while self.tape:
            result = self.tape.pop()
            for parent, gradient in zip(result.parents, result.backward(result.gradient)):
                parent.gradient = added(parent.gradient, gradient) if parent.gradient else gradient

    def __add__(self, other: "Matrix") -> "Matrix":
        return Matrix(added(self.rows, other.rows), [self, other], lambda g: [g, g])

    def __mul__(self, other: "Matrix") -> "Matrix":
        rows = multiplied(self.rows, other.rows)
        return Matrix(rows, [self, other], lambda g: [multiplied(g, other.rows), multiplied(g, self.rows)])

    def dot(self, other: "Matrix") -> "Matrix":
        rows, a, b = dot_products(self.rows, other.rows), transposed(self.rows), transposed(other.rows)
        return Matrix(rows, [self, other], lambda g: [dot_products(g, b), dot_products(transposed(g), a)])

    def transpose(self) -> "Matrix":
        return Matrix(transposed(self.rows), [self], lambda g: [transposed(g)])

    def softmax(self) -> "Matrix":
        """Positive numbers, whose sum is 1 in each row. Minus infinity becomes 0."""
        powers = [[math.exp(x - highest) for x in row] for row, highest in zip(self.rows, map(max, self.rows))]
        rows = [[power / total for power in row] for row, total in zip(powers, map(sum, powers))]

        def backward(gradient: Rows) -> list[Rows]:
            means = map(sum, multiplied(rows, gradient))
            return [[[p * (g - mean) for p, g in zip(*pair)] for *pair, mean in zip(rows, gradient, means)]]

        return Matrix(rows, [self], backward)

    def normalize(self) -> "Matrix":
        """Shift and scale each row to mean 0 and variance 1."""
        size = len(self.rows[0])
        centered = [[x - sum(row) / size for x in row] for row in self.rows]
        deviations = [math.sqrt(sum([x * x for x in row]) / size + 1e-6) for row in centered]
        rows = [[x / deviation for x in row] for row, deviation in zip(centered, deviations)]

        def backward(gradient: Rows) -> list[Rows]:
            means = [sum(row) / size for row in gradient]
            slopes = [sum(row) / size for row in multiplied(gradient, rows)]
            parts = zip(gradient, rows, means, slopes, deviations)
            return [[[(g - mean - slope * x) / s for g, x in zip(*pair)] for *pair, mean, slope, s in parts]]

        return Matrix(rows, [self], backward)

    def cross_entropy(self, labels: list[int], tokens: int) -> "Matrix":
        """A part of the loss: -log p of the labels, from logits. Label smoothing gives each word a share of p."""
        probabilities, size = self.softmax(), len(self.rows[0])
        wanted = [[SMOOTHING / size + (1 - SMOOTHING) * (word == label) for word in range(size)] for label in labels]
        loss = -sum(w * math.log(p) for pair in zip(wanted, probabilities.rows) for w, p in zip(*pair)) / tokens
        gradient = [[-w / p / tokens for w, p in zip(*pair)] for pair in zip(wanted, probabilities.rows)]
        return Matrix([[loss]], [probabilities], lambda _: [gradient])


# Figure 1. The parameters have the same names as in modeling_random_transformer.py.
class Transformer:
    def __init__(self, vocabulary: int, d_model: int, heads: int, d_ff: int, layers: int):
        self.vocabulary, self.d_model, self.heads, self.d_ff, self.layers = vocabulary, d_model, heads, d_ff, layers
        self.parameters: dict[str, Matrix] = {}
        self.moments: dict[str, tuple[Rows, Rows]] = {}  # Adam's averages of each gradient and of its square
        self.embedding = self.parameter("model.shared.weight", vocabulary, d_model, std=d_model**-0.5)

    def parameter(self, name: str, rows: int, columns: int, mean: float = 0.0, std: float = 0.0) -> Matrix:
        if name not in self.parameters:  # random when it is first used; then it learns
            self.parameters[name] = Matrix([[random.gauss(mean, std) for _ in range(columns)] for _ in range(rows)])
            self.moments[name] = [[0.0] * columns for _ in range(rows)], [[0.0] * columns for _ in range(rows)]
        return self.parameters[name]

    def linear(self, x: Matrix, name: str, outputs: int) -> Matrix:
        """x·Wᵀ + b: [length, inputs] → [length, outputs]"""
        inputs, ones = len(x.rows[0]), Matrix([[1.0] for _ in x.rows])
        weight = self.parameter(f"{name}.weight", outputs, inputs, std=math.sqrt(2 / (inputs + outputs)))
        return x.dot(weight) + ones.dot(self.parameter(f"{name}.bias", outputs, 1))

    def add_and_norm(self, x: Matrix, change: Matrix, name: str) -> Matrix:
        """The residual connection, then LayerNorm: [length, d_model]"""
        ones = Matrix([[1.0] for _ in x.rows])
        weight = self.parameter(f"{name}.weight", self.d_model, 1, mean=1.0)
        return (x + change).normalize() * ones.dot(weight) + ones.dot(self.parameter(f"{name}.bias", self.d_model, 1))

    def embed(self, tokens: list[int]) -> Matrix:
        """Embeddings · √d_model + sines and cosines of the positions: [length] → [length, d_model]"""
        d = self.d_model
        one_hot = [[math.sqrt(d) * (token == word) for word in range(self.vocabulary)] for token in tokens]
        waves = [
            [(math.sin, math.cos)[i % 2](n / 10000 ** (i // 2 * 2 / d)) for i in range(d)] for n in range(len(tokens))
        ]
        return Matrix(one_hot).dot(self.embedding.transpose()) + Matrix(waves)

    def attention(self, name: str, x: Matrix, attended: Matrix, mask: Rows) -> Matrix:
        """Each row of x adds a mixture of attended rows: [queries, d_model], [keys, d_model] → [queries, d_model]"""
        d, d_k, mixtures = self.d_model, self.d_model // self.heads, []
        query = self.linear(x, f"{name}.q_proj", d)
        key = self.linear(attended, f"{name}.k_proj", d)
        value = self.linear(attended, f"{name}.v_proj", d)
        for head in range(self.heads):  # each has its own columns; the others are 0
            columns = [float(head * d_k <= i < (head + 1) * d_k) for i in range(d)]
            scaled = query * Matrix([[x / math.sqrt(d_k) for x in columns] for _ in query.rows])
            weights = (scaled.dot(key) + Matrix(mask)).softmax()  # [queries, keys]
            mixtures.append(weights.dot((value * Matrix([columns for _ in value.rows])).transpose()))
        change = self.linear(sum(mixtures[1:], mixtures[0]), f"{name}.out_proj", d)
        return self.add_and_norm(x, change, f"{name}_layer_norm")

    def feed_forward(self, layer: str, x: Matrix) -> Matrix:
        """max(0, x·W₁ + b₁)·W₂ + b₂, added to x: [length, d_model] → [length, d_ff] → [length, d_model]"""
        inner = self.linear(x, f"{layer}.fc1", self.d_ff)
        positive = inner * Matrix([[float(number > 0) for number in row] for row in inner.rows])
        return self.add_and_norm(x, self.linear(positive, f"{layer}.fc2", self.d_model), f"{layer}.final_layer_norm")

    def logits(self, source: list[int], target: list[int]) -> Matrix:
        """Scores of the word after each word of the target: [source_len], [target_len] → [target_len, vocabulary]"""
        padding_mask = [-math.inf if token == PAD else 0.0 for token in source]
        causal_mask = [[-math.inf if k > q else 0.0 for k in range(len(target))] for q in range(len(target))]
        encoded = self.embed(source)  # [source_len, d_model]
        for name in [f"model.encoder.layers.{i}" for i in range(self.layers)]:
            encoded = self.attention(f"{name}.self_attn", encoded, encoded, [padding_mask for _ in source])
            encoded = self.feed_forward(name, encoded)
        x = self.embed(target)  # [target_len, d_model]
        for name in [f"model.decoder.layers.{i}" for i in range(self.layers)]:
            x = self.attention(f"{name}.self_attn", x, x, causal_mask)
            x = self.attention(f"{name}.encoder_attn", x, encoded, [padding_mask for _ in target])
            x = self.feed_forward(name, x)
        return x.dot(self.embedding)

    def loss(self, batch: list[tuple[list[int], list[int]]]) -> Matrix:
        """In nats per token, [1, 1]. The decoder reads the target one token late, and predicts what it has not read."""
        tokens = sum(len(target) for _, target in batch)
        parts = [self.logits(source, [START, *target[:-1]]).cross_entropy(target, tokens) for source, target in batch]
        return sum(parts[1:], parts[0])

    def adam(self, step: int) -> None:
        """Move each parameter against the mean of its last gradients, in units of their size."""
        rate = LEARNING_RATE * min(step / WARMUP_STEPS, math.sqrt(WARMUP_STEPS / step))
        rate *= math.sqrt(1 - 0.98**step) / (1 - 0.9**step)
        for name, parameter in self.parameters.items():
            for row, gradients, means, squares in zip(parameter.rows, parameter.gradient, *self.moments[name]):
                for i, gradient in enumerate(gradients):
                    means[i] += 0.1 * (gradient - means[i])
                    squares[i] += 0.02 * (gradient * gradient - squares[i])
                    row[i] -= rate * means[i] / (math.sqrt(squares[i]) + 1e-9)
            parameter.gradient = []

    def translate(self, source: list[int], beams: int) -> list[int]:
        """Beam search; greedy search with one beam. A score is the mean log probability of a translation's tokens."""
        running, finished = [(0.0, [START])], []  # type: ignore[var-annotated]
        for length in range(1, MAX_TOKENS + 1):
            candidates = []
            for score, target in running:
                probabilities = self.logits(source, target).softmax().rows[-1]
                candidates += [(score + math.log(p), [*target, token]) for token, p in enumerate(probabilities)]
            candidates = sorted(candidates, reverse=True)[: 2 * beams]
            ended = [(score, target) for score, target in candidates[:beams] if END in target or length == MAX_TOKENS]
            finished = sorted(finished + [(score / length, target) for score, target in ended], reverse=True)[:beams]
            running = [(score, target) for score, target in candidates if END not in target][:beams]
            if len(finished) == beams and running[0][0] / length <= finished[-1][0]:
                break
        Matrix.tape.clear()
        return finished[0][1][1:]


def main() -> None:
    random.seed(SEED)
    numbers = [EXAMPLE, *random.sample([number for number in range(1, 1000) if number != EXAMPLE], 998)]
    pairs = [(to_ids(list(str(number))), to_ids(german(number))) for number in numbers]
    held_out, training = pairs[:200], pairs[200:]
    model = Transformer(len(VOCABULARY), D_MODEL, HEADS, D_FF, LAYERS)
    for step in range(1, STEPS + 1):
        loss = model.loss(random.sample(training, BATCH_SIZE))
        loss.backpropagate()
        model.adam(step)
        if step == 1 or step % 50 == 0:
            words = [VOCABULARY[token] for token in model.translate(held_out[0][0], beams=1)]
            print(f"step {step:3}, loss {loss.rows[0][0]:.3f}: {EXAMPLE} → {' '.join(words)}", flush=True)
    for beams in (1, BEAMS):
        right = sum(model.translate(source, beams) == target for source, target in held_out)
        print(f"{right} of {len(held_out)} numbers that were not trained are right with {beams} beams.")


if __name__ == "__main__":
    main()
