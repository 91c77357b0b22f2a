"""Figure 1 of the paper for a model of this package, as an SVG. Coordinates are pixels; y grows downwards."""

from dataclasses import dataclass
from xml.etree import ElementTree

from .architecture import Architecture, Block, Stack, SubLayer

WIDTH = 300  # of the blocks
LAYER_INSIDE, LAYER_OUTSIDE = 12, 40  # between blocks and the border of the layer; residual connections run outside
PART_WIDTH, PART_GAP = 88, 12  # of the submodules in a block
STACK_MARGIN = 14
STACK_WIDTH = WIDTH + LAYER_INSIDE + LAYER_OUTSIDE + 2 * STACK_MARGIN
LANE = 44  # beside a stack, for the line to a tied output layer
GAP = 150  # between the stacks, for the shared embedding and the encoder's output
MARGIN = 20
HEADER = 190  # title and facts above a single stack
FILLS = {
    "embedding": "#fbe0e0",
    "positions": "#ffffff",
    "attention": "#ffe3bf",
    "feed_forward": "#c9e7f5",
    "norm": "#f4f3c2",
    "output": "#dcdff2",
}
LINE, TIE = "#333333", "#8250b0"
STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1b1b1b; }
.mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.bold { font-weight: 600; }
.light { fill: #555555; }
.tie { fill: #6b3a99; }
"""
MONO, SANS = 0.62, 0.58  # widths of a character relative to the font size, at most


def draw(architecture: Architecture) -> str:
    """The figure as the text of an SVG file."""
    drawing = Drawing()
    two = len(architecture.stacks) == 2
    left = MARGIN + LANE
    columns = [
        Column(drawing, left + index * (STACK_WIDTH + GAP), index == 1, stack, architecture)
        for index, stack in enumerate(architecture.stacks)
    ]
    for column in columns:
        column.draw_stack()
    if two:
        connect(drawing, columns[0], columns[1], architecture)
    columns[-1].draw_head()
    if architecture.shared:
        draw_shared(drawing, columns, architecture.shared)
    if architecture.head and architecture.head.name in architecture.tied:
        columns[-1].draw_tie()
    top = min(column.y for column in columns) - MARGIN
    if not two:
        top -= HEADER
    draw_header(drawing, architecture, top)
    width = left + len(columns) * STACK_WIDTH + GAP * (two or architecture.shared is not None) + MARGIN + LANE * two
    return drawing.render(0, top, width, MARGIN - top, architecture)


class Drawing:
    """SVG elements in layers: containers, then blocks, lines and text above them."""

    def __init__(self) -> None:
        self.containers, self.blocks, self.lines, self.texts = (ElementTree.Element("g") for _ in range(4))

    def container(self, x: float, y: float, width: float, height: float, fill: str, **attributes: str) -> None:
        place = {"x": x, "y": y, "width": width, "height": height}
        # An outer container is drawn after its parts.
        self.containers.insert(0, ElementTree.Element("rect", {**numbers(place), "fill": fill, **names(attributes)}))

    def box(self, x: float, y: float, width: float, height: float, fill: str, **attributes: str) -> None:
        attributes = {"stroke": LINE, "rx": "5", **attributes}
        place = {"x": x, "y": y, "width": width, "height": height}
        ElementTree.SubElement(self.blocks, "rect", {**numbers(place), "fill": fill, **names(attributes)})

    def line(self, points: list[tuple[float, float]], arrow: bool = False, **attributes: str) -> None:
        path = "M" + "L".join(f"{number(x)},{number(y)}" for x, y in points)
        attributes = {
            "stroke": LINE,
            "stroke_width": "1.3",
            **({"marker_end": "url(#arrow)"} if arrow else {}),
        } | attributes
        ElementTree.SubElement(self.lines, "path", {"d": path, "fill": "none", **names(attributes)})

    def plus(self, x: float, y: float) -> None:
        circle = {"cx": number(x), "cy": number(y), "r": "9", "fill": "#ffffff", "stroke": LINE}
        ElementTree.SubElement(self.lines, "circle", circle)
        self.line([(x - 5, y), (x + 5, y)])
        self.line([(x, y - 5), (x, y + 5)])

    def dot(self, x: float, y: float) -> None:
        ElementTree.SubElement(self.lines, "circle", {"cx": number(x), "cy": number(y), "r": "2.6", "fill": LINE})

    def text(
        self, x: float, y: float, text: str, style: str = "", size: float = 11, anchor: str = "start", width: float = 0
    ) -> None:
        """Text at a baseline. A smaller size is chosen if it may be wider than `width`."""
        if width:
            size = min(size, width / (len(text) * (MONO if "mono" in style else SANS)))
        attributes = {"x": number(x), "y": number(y), "font-size": number(size), "text-anchor": anchor}
        element = ElementTree.SubElement(self.texts, "text", attributes | ({"class": style} if style else {}))
        element.text = text

    def render(self, x: float, y: float, width: float, height: float, architecture: Architecture) -> str:
        """The elements as a document with a title, a description and a white background."""
        root = ElementTree.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": " ".join(map(number, (x, y, width, height))),
                "width": number(width),
                "height": number(height),
                "role": "img",
                "aria-labelledby": "architecture-title architecture-description",
            },
        )
        title = ElementTree.SubElement(root, "title", {"id": "architecture-title"})
        title.text = f"Architecture of {architecture.title}"
        ElementTree.SubElement(root, "desc", {"id": "architecture-description"}).text = description(architecture)
        ElementTree.SubElement(root, "style").text = STYLE
        marker = {"id": "arrow", "viewBox": "0 0 8 8", "refX": "7", "refY": "4", "markerWidth": "7"}
        marker |= {"markerHeight": "7", "orient": "auto-start-reverse"}
        definition = ElementTree.SubElement(ElementTree.SubElement(root, "defs"), "marker", marker)
        ElementTree.SubElement(definition, "path", {"d": "M0,0.5L8,4L0,7.5Z", "fill": LINE})
        background = {"x": x + 0.5, "y": y + 0.5, "width": width - 1, "height": height - 1}
        frame = {"fill": "#ffffff", "stroke": "#cccccc", "rx": "8"}
        ElementTree.SubElement(root, "rect", numbers(background) | frame)
        root.extend([self.containers, self.blocks, self.lines, self.texts])
        ElementTree.indent(root)
        return ElementTree.tostring(root, encoding="unicode") + "\n"


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def numbers(values: dict[str, float]) -> dict[str, str]:
    return {name: number(value) for name, value in values.items()}


def names(attributes: dict[str, str]) -> dict[str, str]:
    """SVG names of attributes: `stroke_width` is `stroke-width`."""
    return {name.replace("_", "-"): value for name, value in attributes.items()}


@dataclass
class Column:
    """Draws a stack from its input at the bottom to its output. `y` is the upper end of what is drawn.

    The decoder of an encoder-decoder is mirrored: the encoder's output enters it from the left.

    Attributes:
        drawing: receives the elements.
        left: left border of the stack.
        mirrored: whether the residual connections are on the right.
        stack: the stack.
        architecture: the model.
    """

    drawing: Drawing
    left: float
    mirrored: bool
    stack: Stack
    architecture: Architecture
    y: float = 0
    memory_y: float = 0  # of the keys and values in cross-attention
    embedding_y: float = 0

    def __post_init__(self) -> None:
        inner = LAYER_INSIDE if self.mirrored else LAYER_OUTSIDE
        self.blocks_left = self.left + STACK_MARGIN + inner
        self.x = self.blocks_left + WIDTH / 2  # of the residual stream
        self.outward = 1 if self.mirrored else -1
        self.residual_x = self.x + self.outward * (WIDTH / 2 + LAYER_OUTSIDE / 2 + 2)

    def draw_stack(self) -> None:
        name, shape = self.stack.inputs
        self.drawing.text(self.x, 0, shape, "mono light", anchor="middle")
        self.drawing.text(self.x, -16, name, "mono bold", size=12, anchor="middle")
        self.y = -32
        bottom = self.y - 14
        self.go_up(30)
        self.embedding_y = self.y
        self.draw_embedding()
        self.draw_positions()
        self.draw_layers()
        if self.stack.final_norm:
            self.go_up(14)
            self.draw_line_block(self.stack.final_norm)
        top = self.y - 40
        right = self.left + STACK_WIDTH - STACK_MARGIN
        self.drawing.text(self.left + STACK_MARGIN, top + 18, self.stack.path, "mono bold", size=12)
        self.drawing.text(right, top + 18, self.stack.class_name, "light", 11, "end", right - self.x - 8)
        style = {"stroke": "#bbbbbb", "stroke_dasharray": "5 4", "rx": "8"}
        self.drawing.container(self.left, top, STACK_WIDTH, bottom - top, "#fafafa", **style)
        self.drawing.line([(self.x, self.y), (self.x, top - 8)])
        self.y = top - 8

    def go_up(self, height: float, arrow: bool = True) -> None:
        self.drawing.line([(self.x, self.y), (self.x, self.y - height)], arrow)
        self.y -= height

    def draw_embedding(self) -> None:
        block = self.stack.embedding
        top = self.y - 44
        self.draw_box(block, top, 44)
        self.draw_title(block, top)
        (_, shape), *_ = block.parts
        self.drawing.text(self.blocks_left + WIDTH - 10, top + 34, f"{shape}, {block.note}", "mono", 10.5, "end", 190)
        self.y = top

    def draw_positions(self) -> None:
        """Add the positions, if there are any."""
        if self.stack.positions is None:
            return
        self.go_up(22, arrow=False)
        self.y -= 9
        block, width = self.stack.positions, WIDTH / 2 - 26
        lines = [block.note, f"{block.count:,}"] if block.count else [block.note]
        height = 22 + 15 * len(lines)
        edge = self.x + self.outward * WIDTH / 2
        x = edge - width if self.mirrored else edge
        self.drawing.box(x, self.y - height / 2, width, height, FILLS["positions"])
        baseline = self.y - height / 2 + 15
        self.drawing.text(x + width / 2, baseline, block.name, "mono", 11, "middle", width - 8)
        for index, line in enumerate(lines, start=1):
            self.drawing.text(x + width / 2, baseline + 15 * index, line, "light", 10.5, "middle", width - 8)
        self.drawing.line([(edge - self.outward * width, self.y), (self.x + self.outward * 10, self.y)], arrow=True)
        self.drawing.plus(self.x, self.y)
        self.y -= 9

    def draw_layers(self) -> None:
        self.go_up(34, arrow=False)
        bottom = self.y + 12
        for sub_layer in self.stack.sub_layers:
            self.draw_sub_layer(sub_layer)
        self.go_up(10, arrow=False)
        top = self.y - 26
        left = self.left + STACK_MARGIN
        width = STACK_WIDTH - 2 * STACK_MARGIN
        self.drawing.container(left, top, width, bottom - top, "#f0f0f0", stroke="#999999", rx="12")
        last = self.stack.layers - 1
        self.drawing.text(left + 12, top + 19, f"{self.stack.layers} ×", "bold", size=14)
        label = f"layers.0 … {last}" if last else "layers.0"
        self.drawing.text(left + 54, top + 18, label, "mono bold", 11, width=self.x - left - 60)
        count = f"{self.stack.layer_count:,} each"
        self.drawing.text(left + width - 12, top + 18, count, "light", anchor="end")
        self.go_up(26 + 12, arrow=False)

    def draw_sub_layer(self, sub_layer: SubLayer) -> None:
        """A sub-layer with its residual connection, and its layer norm before it (pre-norm) or after the sum."""
        self.drawing.dot(self.x, self.y)
        start = self.y
        if self.architecture.pre_norm:
            self.go_up(14)
            self.draw_line_block(sub_layer.norm)
        self.go_up(16, arrow=sub_layer.block.kind != "attention")
        self.draw_block(sub_layer.block, sub_layer.from_encoder)
        self.go_up(14, arrow=False)
        self.y -= 9
        self.drawing.plus(self.x, self.y)
        points = [(self.x, start), (self.residual_x, start), (self.residual_x, self.y)]
        self.drawing.line([*points, (self.x + self.outward * 10, self.y)], arrow=True)
        self.y -= 9
        if not self.architecture.pre_norm:
            self.go_up(14)
            self.draw_line_block(sub_layer.norm)
        self.go_up(16, arrow=False)

    def draw_block(self, block: Block, from_encoder: bool) -> None:
        """Attention with its four projections, or the feed-forward network with its two."""
        attention = block.kind == "attention"
        height = 156 if attention else 76
        top = self.y - height
        self.draw_box(block, top, height)
        self.draw_title(block, top)
        row = self.y - (60 if attention else 44)
        *parts, last = block.parts
        if attention:
            self.draw_part(last, self.x - WIDTH / 2 + 8, top + 42, WIDTH - 16, 20, one_line=True)
            self.drawing.text(self.x, top + 81, block.note, "", 11.5, "middle", WIDTH - 16)
        else:
            parts.append(last)
        centers = [self.x + offset * (PART_WIDTH + PART_GAP) for offset in (-1, 0, 1)]
        for center, part in zip(centers, parts, strict=True):
            self.draw_part(part, center - PART_WIDTH / 2, row, PART_WIDTH, 36)
        if not attention:
            for center in centers[1:]:
                right = center - PART_WIDTH / 2
                self.drawing.line([(right - PART_GAP, row + 18), (right, row + 18)], arrow=True)
        else:
            self.draw_inputs(centers, row + 36, from_encoder)
        self.y = top

    def draw_inputs(self, centers: list[float], y: float, from_encoder: bool) -> None:
        """Arrows to the projections: from the residual stream, or keys and values from the encoder."""
        branch = self.y - 9
        stream = centers[-1:] if from_encoder else centers
        for center in stream:
            self.drawing.line([(self.x, self.y), (self.x, branch), (center, branch), (center, y)], arrow=True)
        if from_encoder:
            self.memory_y = self.y - 16
            for center in centers[:-1]:
                self.drawing.line([(self.blocks_left, self.memory_y), (center, self.memory_y), (center, y)], arrow=True)

    def draw_part(
        self, part: tuple[str, str], x: float, y: float, width: float, height: float, one_line: bool = False
    ) -> None:
        """The name and the shape of a submodule, in one line or in two."""
        name, shape = part
        self.drawing.box(x, y, width, height, "#ffffff", stroke="#777777", rx="3")
        if one_line:
            self.drawing.text(x + width / 2, y + 14, f"{name}: {shape}", "mono", 10.5, "middle", width - 16)
            return
        self.drawing.text(x + width / 2, y + 15, name, "mono bold", 10.5, "middle", width - 6)
        self.drawing.text(x + width / 2, y + 29, shape, "mono", 10, "middle", width - 6)

    def draw_line_block(self, block: Block) -> None:
        """A block of one line, such as a layer norm."""
        top = self.y - 24
        self.draw_box(block, top, 24)
        self.draw_title(block, top - 1)
        self.y = top

    def draw_box(self, block: Block, top: float, height: float) -> None:
        self.drawing.box(self.blocks_left, top, WIDTH, height, FILLS[block.kind])

    def draw_title(self, block: Block, top: float) -> None:
        """Title and number of parameters in the first line of a block, its name below or, for a norm, between them."""
        self.drawing.text(self.blocks_left + 10, top + 17, block.title, "bold", 11.5)
        self.drawing.text(self.blocks_left + WIDTH - 10, top + 17, f"{block.count:,}", "light", 11, "end")
        x, y = (88, 17) if block.kind == "norm" else (10, 34)
        if block.name:
            self.drawing.text(self.blocks_left + x, top + y, block.name, "mono", 10.5)

    def draw_head(self) -> None:
        """What follows the last stack: pooling, output layer, result."""
        if self.architecture.pooled:
            self.go_up(18)
            self.drawing.text(self.x, self.y - 6, "mean over tokens", "", 11.5, "middle")
            self.y -= 22
        head = self.architecture.head
        if head:
            self.go_up(18)
            self.head_y = self.y - 22
            top = self.y - 44
            self.draw_box(head, top, 44)
            self.draw_title(head, top)
            self.drawing.text(self.blocks_left + WIDTH - 10, top + 34, head.parts[0][1], "mono", 10.5, "end", 200)
            self.y = top
        self.go_up(20)
        name, shape = self.architecture.output
        self.drawing.text(self.x, self.y - 24, name, "mono bold", 12, "middle")
        self.drawing.text(self.x, self.y - 8, shape, "mono light", anchor="middle")
        self.y -= 36

    def draw_tie(self) -> None:
        """The dashed line between the embedding and the output layer, which have one weight."""
        edge = self.x + self.outward * WIDTH / 2
        lane = self.left + STACK_WIDTH + LANE / 2 if self.mirrored else self.left - LANE / 2
        low = self.embedding_y - 22
        points = [(edge, low), (lane, low), (lane, self.head_y), (edge, self.head_y)]
        self.drawing.line(points, stroke=TIE, stroke_dasharray="4 3")
        self.drawing.text(
            lane - self.outward * 8, self.head_y - 6, "tied", "tie", anchor="end" if self.mirrored else "start"
        )


def connect(drawing: Drawing, encoder: Column, decoder: Column, architecture: Architecture) -> None:
    """The encoder's output to the keys and values of the decoder's cross-attention."""
    lane = encoder.left + STACK_WIDTH + GAP / 2
    points = [(encoder.x, encoder.y), (lane, encoder.y), (lane, decoder.memory_y)]
    drawing.line([*points, (decoder.blocks_left, decoder.memory_y)])
    width = architecture.stacks[0].embedding.parts[0][1].rpartition("× ")[2]
    drawing.text(encoder.x + 10, encoder.y - 8, f"last_hidden_state [batch, source_len, {width}]", "mono", 10.5)


def draw_shared(drawing: Drawing, columns: list[Column], shared: Block) -> None:
    """The shared embedding between the stacks, or beside a single one, and dashed lines to the embeddings."""
    first = columns[0]
    y = first.embedding_y - 22
    x, width, height = first.left + STACK_WIDTH + 12, GAP - 24, 62
    drawing.box(x, y - height / 2, width, height, FILLS["embedding"], stroke=TIE)
    center = x + width / 2
    drawing.text(center, y - 13, shared.name, "mono bold", 11, "middle", width - 8)
    drawing.text(center, y + 4, shared.parts[0][1], "mono", 10.5, "middle", width - 8)
    drawing.text(center, y + 20, f"{shared.count:,}", "light", 11, "middle", width - 8)
    drawing.line([(first.blocks_left + WIDTH, y), (x, y)], stroke=TIE, stroke_dasharray="4 3")
    for column in columns[1:]:
        drawing.line([(x + width, y), (column.blocks_left, y)], stroke=TIE, stroke_dasharray="4 3")


def draw_header(drawing: Drawing, architecture: Architecture, top: float) -> None:
    x, y = MARGIN + 4, top + MARGIN + 18
    drawing.text(x, y, architecture.title, "bold", 18, width=STACK_WIDTH + GAP - 30)
    drawing.text(x, y + 28, f"{architecture.count:,} parameters", "bold", 14)
    for line, fact in enumerate(architecture.facts):
        drawing.text(x, y + 50 + 20 * line, fact, "", 13)
    drawing.text(
        x,
        y + 56 + 20 * len(architecture.facts),
        "Numbers on the right: parameters. Dashed lines: tied weights.",
        "light",
        11,
    )


def description(architecture: Architecture) -> str:
    """The figure in words, for screen readers."""
    sentences = []
    for stack in architecture.stacks:
        blocks = ", ".join(sub_layer.block.title.lower() for sub_layer in stack.sub_layers)
        layers = f"{stack.layers} layer{'s' if stack.layers > 1 else ''}"
        sentences.append(f"{stack.path}: token embedding, positions, {layers} of {blocks}.")
    if architecture.head:
        sentences.append(f"Output layer: {architecture.head.name}, {architecture.head.parts[0][1]}.")
    if architecture.tied:
        sentences.append(f"Tied weights: {', '.join(architecture.tied)}.")
    return " ".join([*sentences, *(f"{fact}." for fact in architecture.facts), f"{architecture.count:,} parameters."])
