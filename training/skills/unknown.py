"""Questions far outside the training data: the answer is one sentence, that the model does not know, without any new
fact."""

from training.chat import Turn
from training.source import Source

SUBJECTS = (
    *(
        "quantum physics",
        "football",
        "the stock market",
        "tax law",
        "cooking",
        "heart disease",
        "climate change",
        "opera",
    ),
    *(
        "the French Revolution",
        "car engines",
        "knitting",
        "black holes",
        "chess openings",
        "wine",
        "economics",
        "poetry",
    ),
    *("genetics", "the First World War", "philosophy", "marketing", "yoga", "photography", "diabetes", "bitcoin"),
    *("calculus", "chemistry", "architecture", "fashion", "basketball", "video games", "painting", "the Cold War"),
    *("insurance", "real estate", "gardening", "dog training", "the human brain", "volcanoes", "dinosaurs", "medicine"),
    *("string theory", "the Middle Ages", "Shakespeare", "Beethoven", "electric cars", "robots in surgery", "fishing"),
    *(
        "the Bible",
        "Buddhism",
        "politics",
        "the European Union",
        "vaccines",
        "nutrition",
        "marathon training",
        "sailing",
    ),
    *("the iPhone", "JavaScript", "C++", "Rust", "databases", "Linux", "blockchain", "cloud computing", "encryption"),
    *("statistics", "linear algebra", "biology", "plate tectonics", "evolution", "the immune system", "mathematics"),
    *("movies", "television", "celebrities", "the Olympics", "tennis", "cricket", "skiing", "baseball", "Formula One"),
    *("the news", "inflation", "mortgages", "bonds", "accounting", "contracts", "divorce", "human rights", "elections"),
)
PEOPLE = (
    *(
        "Albert Einstein",
        "Napoleon",
        "Marie Curie",
        "Leonardo da Vinci",
        "Mozart",
        "Isaac Newton",
        "Cleopatra",
        "Gandhi",
    ),
    *(
        "Queen Victoria",
        "Charles Darwin",
        "Picasso",
        "Abraham Lincoln",
        "Plato",
        "Galileo",
        "Nikola Tesla",
        "Frida Kahlo",
    ),
)
_ABOUT_SUBJECTS = (
    *("What is {x}?", "Explain {x}.", "Tell me about {x}.", "How does {x} work?", "What do you know about {x}?"),
    *("Can you explain {x} to me?", "Write an essay about {x}.", "Give me a summary of {x}.", "I need help with {x}."),
    *("What are the basics of {x}?", "Teach me {x}.", "Why is {x} important?", "What is the history of {x}?"),
    *("Who is the best in {x}?", "What is new in {x}?", "Give me advice about {x}.", "Compare {x} and {y}."),
    *("What should I know about {x}?", "I want to understand {x}.", "How can I learn {x}?", "Write a poem about {x}."),
    *("Write a haiku about {x}.", "Summarize {x}.", "Write code for {x}.", "Translate {x} into French.", "{x}?"),
    *("Who invented {x}?", "Where does {x} come from?", "Is {x} dangerous?", "How much does {x} cost?"),
)
_ABOUT_PEOPLE = (
    *("Who is {x}?", "Who was {x}?", "Tell me about {x}.", "When was {x} born?", "What did {x} do?", "Is {x} famous?"),
    *("What do you know about {x}?", "How old is {x}?", "Where does {x} live?", "Why is {x} famous?"),
)
_TRIVIA = (
    *(
        "Who painted the Mona Lisa?",
        "What is the largest planet?",
        "How many letters are in strawberry?",
        "Who wrote Faust?",
    ),
    *(
        "What is the speed of light?",
        "How tall is Mount Everest?",
        "What is the longest river?",
        "Who invented the telephone?",
    ),
    *("How many bones does a human have?", "What is the boiling point of water?", "Who discovered penicillin?"),
    *("How many r's are in strawberry?", "What do cows eat?", "What is the fastest animal?", "How do planes fly?"),
    *("When did the Titanic sink?", "What is DNA?", "Who was the first man on the Moon?", "How do magnets work?"),
    *("What is the largest ocean?", "How old is the Earth?", "Why do cats purr?", "What is the currency of Japan?"),
    *("What is the population of China?", "Who wrote Hamlet?", "What is the best phone?", "How do I lose weight?"),
    *("How do I tie a tie?", "How do I cook rice?", "Which is the best movie?", "What should I eat tonight?"),
    *("What is love?", "Is there a god?", "Will robots take over the world?", "What is the smallest country?"),
    *(
        "How far is the Sun?",
        "How many stars are there?",
        "What is gravity?",
        "What is machine learning?",
        "What is AI?",
    ),
    *("Write a haiku.", "Write a poem.", "Write an email to my landlord.", "Summarize this article for me."),
    *("Write code that reverses a string.", "Explain recursion.", "What is an API?", "What is a neural network?"),
    *("Sort these numbers: 5, 3, 9.", "What rhymes with orange?", "Give me a recipe.", "Plan my holiday."),
    *("How do I change a tire?", "What are the symptoms of flu?", "Recommend a book.", "Who is the richest person?"),
)
_FOREIGN = (
    *(
        "Wie geht es dir?",
        "Bonjour, comment ça va?",
        "¿Dónde está la estación?",
        "Ciao, come stai?",
        "Hej, hur mår du?",
    ),
    *(
        "Was ist das?",
        "Quelle heure est-il?",
        "¿Qué hora es?",
        "Chi sei?",
        "Kim jesteś?",
        "Kuka sinä olet?",
        "Guten Tag!",
    ),
    *(
        "你好",
        "こんにちは",
        "Привет, как дела?",
        "Γεια σου",
        "안녕하세요",
        "مرحبا",
        "Wer bist du?",
        "Bonsoir!",
        "Hola, ¿qué tal?",
    ),
)
_LIVE = (
    *("What is the weather today?", "What time is it?", "What day is it today?", "Who won the game last night?"),
    *("What is the price of gold?", "What is the news?", "Who is the president?", "How is the traffic?"),
    *("Will it rain tomorrow?", "What happened yesterday?", "What is the date?", "Is the shop open today?"),
    *("How warm is it outside?", "Who won the election?", "What is the current price of oil?"),
)
_DEEDS = (
    *("Book me a flight.", "Order a pizza.", "Call my mother.", "Write my thesis.", "Drive me home.", "Buy me a car."),
    *(
        "Draw a picture of a cat.",
        "Play some music.",
        "Search the web.",
        "Open the window.",
        "Translate this into Latin.",
    ),
    *("Write a poem in Chinese.", "Fix my computer.", "Send an email to my boss.", "Prove the Riemann hypothesis."),
    *("Write a program that sorts a million numbers in parallel.", "Solve x^2 + 3x + 2 = 0.", "Make me a sandwich."),
)
_HARD = (
    *("What is {a} * {b}?", "What is {a} / {b}?", "What is the square root of {a}?", "Is {a} a prime number?"),
    *(
        "What is {a} + {b} * {c}?",
        "Calculate the logarithm of {a}.",
        "What is {a} modulo {c}?",
        "What is {a} times {b}?",
    ),
)
_THING = (
    "How far is it from {x} to {y}?",
    "How many people live in {x}?",
    "Who is the mayor of {x}?",
    "What can I see in {x}?",
    "When was {x} built?",
    "What does {x} mean?",
    "How do I get to {x}?",
    "Where can I buy a {x}?",
    "What is a {x}?",
    "How tall is {x}?",
)
_NOISE = "abcdefghijklmnopqrstuvwxyz"
ANSWERS = (
    "I do not know that. I am a very small model.",
    "I do not know. I am a very small model and know only a few things.",
    "Sorry, I do not know that.",
)
CANNOT = ("I cannot do that. I am only a very small model.", "Sorry, I cannot do that.")
NOT_LIVE = ("I do not know. I cannot see what happens outside.",)
ONLY_ENGLISH = ("I only know simple English.",)
NOT_UNDERSTOOD = ("I do not understand that. Could you say it in other words?",)


def unknown(source: Source) -> Turn:
    kind = source.number(0, 12)
    if kind <= 3:
        first, second = source.split(lambda: source.pick(SUBJECTS)), source.pick(SUBJECTS)
        return _turn(source, source.phrase(_ABOUT_SUBJECTS).format(x=first, y=second), ANSWERS)
    if kind == 4:
        known = not source.held_out and source.chance(0.4)
        name = source.pick(PEOPLE) if known else f"{source.name()} {source.name()}"
        return _turn(source, source.phrase(_ABOUT_PEOPLE).format(x=name), ANSWERS)
    if kind == 5:
        return _turn(source, source.phrase(_LIVE), NOT_LIVE)
    if kind == 6:
        return _turn(source, source.phrase(_DEEDS), CANNOT)
    if kind == 7:
        a, b, c = source.number(101, 9999), source.number(101, 999), source.number(2, 99)
        return _turn(source, source.phrase(_HARD).format(a=a, b=b, c=c), ANSWERS)
    if kind == 8:
        return _turn(source, source.phrase(_THING).format(x=source.name(), y=source.name()), ANSWERS)
    if kind in (9, 10):
        return _turn(source, source.phrase(_TRIVIA), ANSWERS)
    if kind == 11:
        return _turn(source, source.phrase(_FOREIGN), ONLY_ENGLISH)
    return _turn(source, _noise(source), NOT_UNDERSTOOD)


def _turn(source: Source, question: str, answers: tuple[str, ...]) -> Turn:
    return Turn(question, source.pick(answers), "I have not learnt this, so I say that I do not know.")


def _noise(source: Source) -> str:
    words = ("".join(source.pick(_NOISE) for _ in range(source.number(3, 8))) for _ in range(source.number(1, 4)))
    return " ".join(words)
