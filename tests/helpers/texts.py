"""A small corpus with edge cases of scoring: several scripts, empty lines, repeated and trailing spaces."""

PREDICTIONS = [
    "The old lighthouse keeper writes a letter every evening.",
    "El niño comió tres piñas, ¿verdad?",
    "“Naïve” café owners rarely close before 10:30 p.m. …",
    "",
    "The harbour is quiet;  nobody is waiting any more .  ",
    "灯塔的看守人每天晚上写一封信。",
    "She said: THE DOOR IS OPEN!",
    "👋🏽 until tomorrow, my friend",
    "An answer without a question",
]
REFERENCES = [
    "The old keeper of the lighthouse writes a letter every evening.",
    "El niño se comió tres piñas, ¿verdad?",
    "“Naïve” café owners seldom close before 10.30 p.m. …",
    "Here the translation is missing.",
    "The harbour is quiet; nobody waits any more.",
    "灯塔看守人每晚都写一封信。",
    "She said: the door is open!",
    "👋🏽 see you tomorrow, my friend",
    "",
]
SECOND_REFERENCES = [
    "Every evening the old lighthouse keeper writes a letter.",
    "El niño comió tres piñas, ¿no?",
    "",
    "This translation is missing.",
    "The harbour is quiet; nobody is waiting any more.",
    "每天晚上，灯塔的看守人都写一封信。",
    "“The door is open!”, she said.",
    "👋🏽 until tomorrow, friend",
    "An answer to no question",
]
BOTH_REFERENCES = [list(pair) for pair in zip(REFERENCES, SECOND_REFERENCES, strict=True)]
