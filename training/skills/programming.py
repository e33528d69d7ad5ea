"""Python, and jokes about programming."""

from training.chat import Turn
from training.skills.answers import Entry
from training.source import Source

PYTHON = (
    Entry(
        (
            *("What is Python?", "What is Python?", "Tell me about Python.", "Explain Python.", "What's Python?"),
            *("What do you know about Python?", "Can you explain what Python is?", "What is the Python language?"),
            *(
                "Describe Python.",
                "Python, what is that?",
                "Explain to me what Python is.",
                "What kind of thing is Python?",
            ),
            "What does one mean by Python?",
        ),
        (
            "Python is a programming language that is easy to read. It is used for web servers, science and machine "
            "learning.",
            "Python is a high-level programming language known for its clear syntax and its many libraries.",
        ),
        "Python",
    ),
    Entry(
        (
            *("Who created Python?", "Who made Python?", "Who invented Python?", "When was Python made?"),
            *("When did Python appear?", "How old is Python?", "Where does Python come from?"),
        ),
        ("Python was created by Guido van Rossum and first released in 1991.",),
        "who made Python",
    ),
    Entry(
        (
            *(
                "What is a list in Python?",
                "How do I make a list in Python?",
                "Explain Python lists.",
                "What are lists?",
            ),
            *("What is a Python list?", "Show me a list in Python.", "How does a Python list work?"),
        ),
        ("A list holds values in order:\nnumbers = [1, 2, 3]\nnumbers.append(4)",),
        "lists in Python",
    ),
    Entry(
        (
            *("What is a dictionary in Python?", "How do I make a dict in Python?", "Explain Python dictionaries."),
            *("What is a dict?", "What is a Python dict?", "Show me a dictionary in Python.", "How does a dict work?"),
        ),
        ('A dictionary maps keys to values:\nages = {"Anna": 30}\nages["Ben"] = 25',),
        "dictionaries in Python",
    ),
    Entry(
        (
            *("How do I write a function in Python?", "What is a function in Python?", "Show me a Python function."),
            *("How do I define a function?", "Explain functions in Python.", "Write a function in Python."),
            *("Write a Python function that adds two numbers.", "How does one define a function in Python?"),
        ),
        ("A function is defined with def:\ndef add(a, b):\n    return a + b",),
        "functions in Python",
    ),
    Entry(
        (
            *("How do I write a loop in Python?", "What is a for loop?", "Show me a loop in Python.", "Explain loops."),
            *("How does a for loop work in Python?", "Write a loop in Python.", "How do I repeat something in Python?"),
        ),
        ("A for loop repeats its body for each value:\nfor i in range(3):\n    print(i)",),
        "loops in Python",
    ),
    Entry(
        (
            *(
                "How do I print in Python?",
                "Write hello world in Python.",
                "Hello world in Python?",
                "How do I print text?",
            ),
            *("How do I print something in Python?", "Show me hello world in Python.", "Print hello in Python."),
        ),
        ('Use print:\nprint("Hello, world!")',),
        "printing in Python",
    ),
    Entry(
        (
            *("How do I read a file in Python?", "Read a file in Python.", "How do I open a file in Python?"),
            *("Show me how to read a file in Python.", "How does one read a text file in Python?"),
        ),
        ('Open it with a with statement:\nwith open("file.txt") as file:\n    text = file.read()',),
        "files in Python",
    ),
    Entry(
        (
            *(
                "What is pip?",
                "How do I install a package in Python?",
                "What does pip do?",
                "How do I install a library?",
            ),
            *("What is pip for?", "How can I install a Python package?"),
        ),
        ("pip installs Python packages: pip install openai",),
        "pip",
    ),
)
JOKES = (
    "Why did the programmer bring a ladder to work? To reach the cloud.",
    "How does a loop say goodbye? Again and again and again.",
    "Why did the server go to bed early? It had had too many requests.",
    "Why did the byte see a doctor? It had a bit of a problem.",
    "My program never fails. It only surprises me.",
    "Why is the stack never lonely? There is always somebody on top.",
    "What does a tired bug do? It takes a break point.",
    "Why was the variable so sad? Nobody ever called it by its name.",
)
_ASK_JOKE = (
    *(
        "Tell me a joke about programming",
        "Tell me a joke about programming.",
        "Tell me a joke.",
        "Do you know a joke?",
    ),
    *(
        "Tell a joke about computers.",
        "Make me laugh.",
        "A joke, please.",
        "I want to hear a joke.",
        "Say something funny.",
    ),
    *("Tell me a programming joke.", "Know any good jokes?", "Tell me something funny.", "Can you tell a joke?"),
    *("Give me a joke about programmers.", "Tell me another joke.", "Another one!", "Could you tell me a funny joke?"),
    *("I could use a joke about code.", "Do you have a joke about programming for me?"),
)


def joke(source: Source) -> Turn:
    return Turn(source.phrase(_ASK_JOKE), source.pick(JOKES), "The user wants to laugh. I know a joke.")
