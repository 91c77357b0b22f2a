"""HTML in English and Spanish, made by hand, within the vocabulary of the quickstart's sample data."""

# The sentences of the cases, as the trained quickstart translates them.
TRANSLATIONS = {
    "I like the red car.": "Me gusta el coche rojo.",
    "She has a dog.": "Ella tiene un perro.",
    "The boy reads a book.": "El niño lee un libro.",
    "The girls do not see the old house.": "Las niñas no ven la casa vieja.",
    "We want to buy two red apples.": "Queremos comprar dos manzanas rojas.",
    "I see her.": "La veo.",
    "hello world": "hola mundo",
    "hello world < 3 <": "hola mundo < 3 <",
    "The black cat is tired.": "El gato negro está cansado.",
    "My sister buys a newspaper.": "Mi hermana compra un periódico.",
    "The tall man visits the new hospital.": "El hombre alto visita el hospital nuevo.",
    "These houses are big.": "Estas casas son grandes.",
    "Mary eats the green apple.": "María come la manzana verde.",
    "The queen's horse is white.": "El caballo de la reina es blanco.",
    "She likes the beautiful songs.": "A ella le gustan las canciones bonitas.",
    "Does Peter have a new clock?": "¿Tiene Pedro un reloj nuevo?",
}
# Source words of a target word, for an exact alignment without a model, the preferred one first.
LEXICON = {
    **{"me": "i", "gusta": "like", "el": "the", "la": "s her the", "las": "the", "coche": "car", "rojo": "red"},
    **{"ella": "she", "tiene": "has have", "un": "a", "perro": "dog", "niño": "boy", "lee": "reads", "libro": "book"},
    **{"niñas": "girls", "no": "not", "ven": "see", "casa": "house", "vieja": "old", "queremos": "we want"},
    **{"comprar": "buy", "dos": "two", "manzanas": "apples", "rojas": "red", "veo": "see", "hola": "hello"},
    **{"mundo": "world", "gato": "cat", "negro": "black", "está": "is", "cansado": "tired", "mi": "my"},
    **{"hermana": "sister", "compra": "buys", "periódico": "newspaper", "hombre": "man", "alto": "tall"},
    **{"visita": "visits", "hospital": "hospital", "nuevo": "new", "estas": "these", "casas": "houses", "son": "are"},
    **{"grandes": "big", "maría": "mary", "come": "eats", "manzana": "apple", "verde": "green", "caballo": "horse"},
    **{"de": "s", "reina": "queen", "es": "is", "blanco": "white", "a": "she", "le": "likes", "gustan": "likes"},
    **{"canciones": "songs", "bonitas": "beautiful", "pedro": "peter", "reloj": "clock"},
}
CASES = [
    # Inline elements stay on their words, also where the order of the words changes.
    ("<p>I like the <b>red</b> car.</p>", "<p>Me gusta el coche <b>rojo</b>.</p>"),
    ("I like the red <i>car</i>.", "Me gusta el <i>coche</i> rojo."),
    ("I like <em>the red car</em>.", "Me gusta <em>el coche rojo</em>."),
    ("<p><b>I like the red car.</b></p>", "<p><b>Me gusta el coche rojo.</b></p>"),
    ("<b>We</b> want to buy two red apples.", "<b>Queremos</b> comprar dos manzanas rojas."),
    ("We want to buy <u>two</u> <u>red</u> apples.", "Queremos comprar <u>dos</u> manzanas <u>rojas</u>."),
    ("We want to buy two <i>red</i> <b>apples</b>.", "Queremos comprar dos <b>manzanas</b> <i>rojas</i>."),
    ("The <b>black</b><i> cat</i> is tired.", "El <i>gato</i> <b>negro</b> está cansado."),
    ("The <b>tall</b> man visits the <b>new</b> hospital.", "El hombre <b>alto</b> visita el hospital <b>nuevo</b>."),
    ("The <i><b>black</b> cat</i> is tired.", "El <i>gato <b>negro</b></i> está cansado."),
    ("<i>The <b>black</b> cat is tired.</i>", "<i>El gato <b>negro</b> está cansado.</i>"),
    ("<i><b>hello</b></i> world", "<i><b>hola</b></i> mundo"),
    ("<b>hello </b>world", "<b>hola</b> mundo"),
    ("hello<b> world</b>", "hola <b>mundo</b>"),
    ("<b>h</b>ello world", "<b>hola</b> mundo"),
    ("<b>hello</b> <b>world</b>", "<b>hola</b> <b>mundo</b>"),
    ("The <b>queen's horse</b> is white.", "El <b>caballo de la reina</b> es blanco."),
    ("The <b>queen</b>'s <i>horse</i> is white.", "El <i>caballo</i> de la <b>reina</b> es blanco."),
    ("Does <b>Peter</b> have a new clock?", "¿Tiene <b>Pedro</b> un reloj nuevo?"),
    ("Does Peter have a <b>new clock</b>?", "¿Tiene Pedro un <b>reloj nuevo</b>?"),
    ("I see <b>her</b>.", "<b>La</b> veo."),
    ("She likes the <b>beautiful</b> songs<b>.</b>", "A ella le gustan las canciones <b>bonitas</b><b>.</b>"),
    # Several sentences
    (
        "<p>The <b>black</b> cat is tired. I see <i>her</i>.</p>",
        "<p>El gato <b>negro</b> está cansado. <i>La</i> veo.</p>",
    ),
    ("<b>The boy reads a book. I see</b> her.", "<b>El niño lee un libro.</b> La <b>veo</b>."),
    ("<b>She has a dog.</b> <i>I see her.</i>", "<b>Ella tiene un perro.</b> <i>La veo.</i>"),
    # Attributes, void elements and comments
    (
        'Mary eats the <a href="/a?b=1&amp;c" title="red > green">green</a> apple.',
        'María come la manzana <a href="/a?b=1&amp;c" title="red > green">verde</a>.',
    ),
    (
        "Mary eats <A HREF='x' data-y=\"I see her.\">the green apple</A>.",
        "María come <A HREF='x' data-y=\"I see her.\">la manzana verde</A>.",
    ),
    (
        '<p><img src="a.png" alt="hello world"> The boy reads a book.</p>',
        '<p><img src="a.png" alt="hello world"> El niño lee un libro.</p>',
    ),
    ("The boy reads a <img src=b.png>book.", "El niño lee un <img src=b.png>libro."),
    ("The boy reads a book <img src=b.png/>.", "El niño lee un libro <img src=b.png/>."),
    ("The <!-- red -->black cat is tired.", "El gato <!-- red -->negro está cansado."),
    ("She has a <span></span>dog.", "Ella tiene un <span></span>perro."),
    ("hello <wbr>world", "hola <wbr>mundo"),
    # Entities
    (
        "<p>The boy reads a book.&nbsp;&copy; 2017 &lt;5&gt; &amp; 1</p>",
        "<p>El niño lee un libro.&nbsp;&copy; 2017 &lt;5&gt; &amp; 1</p>",
    ),
    ("<p>&nbsp;</p><p>&#160;I see her.</p>", "<p>&nbsp;</p><p>&#160;La veo.</p>"),
    ("I like the r&#101;d car&period;", "Me gusta el coche rojo&period;"),
    # Elements that are not translated
    (
        '<script>if (a < b) { say("hello world"); }</script>hello world',
        '<script>if (a < b) { say("hello world"); }</script>hola mundo',
    ),
    (
        "<STYLE>p > b { color: red }</STYLE\n><p>hello world</p>",
        "<STYLE>p > b { color: red }</STYLE\n><p>hola mundo</p>",
    ),
    ("The boy reads <code>a red car</code> a book.", "El niño lee <code>a red car</code> un libro."),
    (
        '<div translate="no"><div>I see her.</div>hello world</div>I see her.',
        '<div translate="no"><div>I see her.</div>hello world</div>La veo.',
    ),
    ("<p class='a notranslate'>hello world</p>", "<p class='a notranslate'>hello world</p>"),
    # Blocks, white space and broken markup
    (
        "<!DOCTYPE html>\n<html><head><title>hello world</title></head>\n<body>\n\n  I see her.\n</body></html>\n",
        "<!DOCTYPE html>\n<html><head><title>hola mundo</title></head>\n<body>\n\n  La veo.\n</body></html>\n",
    ),
    (
        "<ul>\n  <li>I see her.</li>\n  <li><a href=#>These houses\n are big.</a>\n</ul>",
        "<ul>\n  <li>La veo.</li>\n  <li><a href=#>Estas casas son grandes.</a>\n</ul>",
    ),
    ("I see her.<br>She has a dog.<br/>", "La veo.<br>Ella tiene un perro.<br/>"),
    (
        "<table><tr><td>12.50<td>hello world<tr><td>---<td></table>",
        "<table><tr><td>12.50<td>hola mundo<tr><td>---<td></table>",
    ),
    ("<pre>  I see her.\n\n\tShe has a dog.\n</pre>", "<pre>  La veo.\n\n\tElla tiene un perro.\n</pre>"),
    ("<b><p>I see her.</p></b>", "<b><p>La veo.</p></b>"),
    ("<p>The girls do not see the <b>old house.</p>", "<p>Las niñas no ven la <b>casa vieja.</p>"),
    ("My sister buys</i> a newspaper.", "Mi hermana compra</i> un periódico."),
    ("hello world < 3 <", "hola mundo &lt; 3 &lt;"),
]
