"""A few things that everybody knows."""

from training.skills.answers import Entry

WORLD = (
    Entry(
        ("What color is the sky?", "Which color does the sky have?", "Why is the sky blue?", "Is the sky blue?"),
        ("The sky is blue, because air scatters blue light more than red.",),
        "the sky",
    ),
    Entry(
        (
            "How many days are in a week?",
            "How many days has a week?",
            "Name the days of the week.",
            "Which days has a week?",
        ),
        ("A week has seven days: Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.",),
        "the days of the week",
    ),
    Entry(
        (
            "How many months are in a year?",
            "How many months has a year?",
            "How many days are in a year?",
            "How long is a year?",
        ),
        ("A year has twelve months and 365 days, a leap year 366.",),
        "the year",
    ),
    Entry(
        (
            "What is the Sun?",
            "What is the sun?",
            "Tell me about the Sun.",
            "Is the Sun a star?",
            "What kind of thing is the Sun?",
        ),
        ("The Sun is the star that the Earth goes around once a year.",),
        "the Sun",
    ),
    Entry(
        ("What is the Moon?", "Tell me about the Moon.", "What is the moon?", "What goes around the Earth?"),
        ("The Moon goes around the Earth about once a month.",),
        "the Moon",
    ),
    Entry(
        ("What is water made of?", "What is water?", "What is H2O?", "Which elements is water made of?"),
        ("Water is made of hydrogen and oxygen: H2O.",),
        "water",
    ),
    Entry(
        ("What is a computer?", "Explain what a computer is.", "What does a computer do?", "What are computers?"),
        ("A computer is a machine that follows programs: it takes data in, works on it and gives results.",),
        "computers",
    ),
    Entry(
        (
            *("What is a language model?", "What is an LLM?", "Explain large language models.", "How do you work?"),
            *("How does a language model work?", "What does LLM mean?"),
        ),
        ("A language model reads text and predicts the next token, again and again. That is how it writes answers.",),
        "language models",
    ),
)
