"""History: ancient Rome above all."""

from training.chat import Chat, Turn
from training.skills.answers import Entry, draw_subject
from training.source import Source

ROME = (
    Entry(
        (
            *(
                "Tell me about ancient Rome",
                "Tell me about ancient Rome.",
                "What was ancient Rome?",
                "Describe ancient Rome.",
            ),
            *("What do you know about ancient Rome?", "Who were the Romans?", "Say something about ancient Rome."),
            *(
                "Explain ancient Rome.",
                "I want to learn about ancient Rome.",
                "Can you tell me about the Roman Empire?",
            ),
            *("Give me a short overview of ancient Rome.", "What was the Roman Empire?", "Rome in ancient times?"),
        ),
        (
            "Ancient Rome was a civilization centered in Italy. It began as a small town on the Tiber and grew into an "
            "empire around the whole Mediterranean Sea.",
            "Ancient Rome was a civilization centered in Italy. It was first a kingdom, then a republic, and from "
            "27 BC on an empire ruled by emperors.",
        ),
        "ancient Rome",
    ),
    Entry(
        (
            *("What were their major achievements?", "What did the Romans achieve?", "What were Rome's achievements?"),
            *("What were the major achievements of ancient Rome?", "What are the Romans known for?"),
            *("What did the Romans build?", "Which achievements of the Romans do we remember?"),
            *("Name some achievements of the Romans.", "What is ancient Rome famous for?", "What did they achieve?"),
            "For what do we remember the Romans?",
        ),
        (
            "The Romans built long roads, aqueducts that brought water to the cities, and great buildings such as the "
            "Colosseum and the Pantheon. Their law and their Latin language still shape Europe.",
            "Their major achievements were:\n1. Roads and aqueducts across the empire\n2. Buildings such as the "
            "Colosseum\n3. Roman law\n4. The Latin language and alphabet",
        ),
        "what the Romans achieved",
    ),
    Entry(
        (
            *("When was Rome founded?", "When did Rome begin?", "How old is Rome?", "Who founded Rome?"),
            *("When was ancient Rome founded?", "How did Rome begin?", "Tell me how Rome was founded."),
        ),
        ("By legend, Rome was founded in 753 BC by Romulus, who had grown up with his brother Remus.",),
        "the founding of Rome",
    ),
    Entry(
        (
            *("When did Rome fall?", "When did the Roman Empire end?", "How did Rome fall?", "Why did Rome fall?"),
            *("What ended the Roman Empire?", "When did the Romans lose their empire?", "How did it end?"),
        ),
        ("The western empire fell in 476 AD, after wars and weak emperors. The eastern one lasted until 1453.",),
        "the fall of Rome",
    ),
    Entry(
        (
            *("Who was Julius Caesar?", "Tell me about Julius Caesar.", "Who was Caesar?", "What did Caesar do?"),
            *("What do you know about Caesar?", "How did Caesar die?", "Why is Julius Caesar famous?"),
        ),
        (
            "Julius Caesar was a Roman general who conquered Gaul and made himself ruler of Rome. He was killed by "
            "senators in 44 BC.",
        ),
        "Julius Caesar",
    ),
    Entry(
        (
            *(
                "Who was Augustus?",
                "Who was the first Roman emperor?",
                "Tell me about Augustus.",
                "Who was emperor first?",
            ),
            *("Who was the first emperor of Rome?", "Which emperor came first?", "Who came after Caesar?"),
        ),
        ("Augustus was the first Roman emperor. He ruled from 27 BC to 14 AD and brought a long peace.",),
        "Augustus",
    ),
    Entry(
        (
            *("What language did the Romans speak?", "What did the Romans speak?", "Which language did they speak?"),
            *("Which language was spoken in ancient Rome?", "What was their language?", "What was Rome's language?"),
        ),
        ("The Romans spoke Latin. Italian, French and Spanish grew out of it.",),
        "the Romans' language",
    ),
    Entry(
        (
            *("What is the Colosseum?", "Tell me about the Colosseum.", "What was the Colosseum for?"),
            *("When was the Colosseum built?", "What happened in the Colosseum?", "Describe the Colosseum."),
        ),
        ("The Colosseum is a huge theater in Rome, opened in 80 AD. Gladiators fought there before 50,000 people.",),
        "the Colosseum",
    ),
    Entry(
        (
            *("How did the Romans live?", "What did the Romans eat?", "How was daily life in Rome?"),
            *("What was life like in ancient Rome?", "Describe daily life in ancient Rome.", "How did people live?"),
        ),
        ("Most Romans lived in small rented rooms and ate bread, olives, cheese and wine. The rich had large houses.",),
        "daily life in Rome",
    ),
)
HISTORY = (
    Entry(
        (
            *("Tell me about ancient Egypt.", "What was ancient Egypt?", "What do you know about ancient Egypt?"),
            *("Who were the ancient Egyptians?", "Describe ancient Egypt.", "Who built the pyramids?"),
            "What can you say about ancient Egypt?",
        ),
        ("Ancient Egypt was a civilization along the Nile. Its kings, the pharaohs, built the pyramids as tombs.",),
        "ancient Egypt",
    ),
    Entry(
        (
            *("Tell me about ancient Greece.", "What was ancient Greece?", "What do you know about ancient Greece?"),
            *("Who were the ancient Greeks?", "Describe ancient Greece.", "What is ancient Greece known for?"),
            "What can you say about ancient Greece?",
        ),
        ("Ancient Greece was a land of city states such as Athens and Sparta. It gave us democracy and theater.",),
        "ancient Greece",
    ),
    Entry(
        (
            *(
                "Who was Andrea Palladio?",
                "Who was Palladio?",
                "Tell me about Andrea Palladio.",
                "Why the name Palladio?",
            ),
            *("Who was Palladio the architect?", "Where does the name Palladio come from?", "Palladio, who was that?"),
        ),
        ("Andrea Palladio was an Italian architect of the 16th century, known for clear and well ordered villas.",),
        "Andrea Palladio",
    ),
)
HISTORIANS = (
    "You are a knowledgeable historian who provides concise responses.",
    "You are a knowledgeable historian who provides concise responses.",
    "You are a historian.",
    "You are a historian of ancient Rome.",
    "You are an expert in history. Be brief.",
    "Answer as a historian.",
)


def history(source: Source) -> Chat:
    """Talk mostly about Rome, in one to three turns, sometimes with a historian."""
    turns = [draw_subject(source, ROME) if source.chance(0.8) else draw_subject(source, HISTORY)]
    if source.chance(0.5):
        turns = [
            Turn(source.phrase(entry.asked), source.pick(entry.answers), f"It is about {entry.about}.")
            for entry in ROME[:2]
        ]
        if source.chance(0.5):  # the seeds' own: only the first half of the answer
            turns[0] = Turn(turns[0].user, turns[0].answer.split(". ")[0] + ".", turns[0].thought)
        if source.chance(0.3):
            turns.append(draw_subject(source, ROME[2:]))
    return Chat(tuple(turns), system=source.pick(HISTORIANS) if source.chance(0.6) else None)
