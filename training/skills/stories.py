"""Short stories: a hero, a wish, a trouble, help, an end; each sentence from a few that fit."""

from training.chat import Turn
from training.skills.extraction import FIRST_NAMES
from training.source import Source

# hero → where it lives, what it wants, what stands in the way, what helps, how it ends
_Plot = tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]
SPACE: _Plot = (
    "space explorer",
    ("on a small station near Mars", "on a silver ship", "in a quiet dome on the Moon", "on a ship between the stars"),
    ("find a planet with blue forests", "reach the oldest star", "hear what the stars say", "map a dark nebula"),
    (
        *("the engine went silent", "a storm of dust hid the way home", "the ship lost its map"),
        *("an ice moon blocked the path", "the radio broke"),
    ),
    (
        *("a tiny robot knew how to mend it", "a strange light showed the way", "a kind voice came over the radio"),
        *("an old star chart lay under the seat",),
    ),
    (
        *("saw a green world rise over the horizon", "landed beside a lake of glass", "sent the good news home"),
        *("gave the new planet a name",),
    ),
)
PLOTS: tuple[_Plot, ...] = (
    SPACE,
    (
        "robot",
        ("in a workshop by the river", "in an empty factory", "at the end of a long street"),
        ("learn to paint", "understand music", "have a friend", "see the sea"),
        ("its battery was almost empty", "nobody listened", "its wheels were rusty", "the door was locked"),
        ("a child shared some oil and a smile", "an old painter opened the door", "a cat showed it the way out"),
        ("painted the sunset", "played its first song", "was never lonely again", "stood in the warm sand"),
    ),
    (
        "dragon",
        ("on a high mountain", "in a cave above the village", "behind a waterfall"),
        ("bake bread", "sing without smoke", "make peace with the village", "find its lost gold ring"),
        ("everybody ran away", "its fire burned everything", "the king sent soldiers"),
        ("a brave baker stayed", "a girl with a lute taught it patience", "an old knight laid down his sword"),
        ("opened a bakery", "sang at the summer feast", "guarded the village for a hundred years"),
    ),
    (
        "fox",
        ("in a deep forest", "at the edge of a field", "under an old oak"),
        ("see the city", "find a warm den", "catch the moon in the lake", "win the race of the animals"),
        ("the river was too wide", "winter came early", "the path was full of thorns"),
        ("a beaver built a bridge", "an owl gave good advice", "a hedgehog shared its leaves"),
        ("slept all winter in the warm", "danced in the light of the moon", "came home with many stories"),
    ),
    (
        "sailor",
        ("in a harbor town", "on a wooden boat", "on an island with three palms"),
        ("find the island of bells", "cross the great sea", "bring home the lost anchor"),
        ("a storm broke the mast", "fog covered the water", "the crew was afraid"),
        ("a whale led the boat", "the wind turned at night", "the cook told jokes until they laughed"),
        ("heard the bells at dawn", "saw the harbor lights again", "sailed home with a song"),
    ),
    (
        "inventor",
        ("in a house full of clocks", "in a tower", "above a bakery"),
        ("build a machine that dreams", "make a lamp that never goes out", "teach a clock to laugh"),
        ("every test ended in smoke", "the last screw was missing", "the neighbors complained"),
        ("her sister had the idea she needed", "a mouse brought the screw", "a mistake turned out to be the answer"),
        ("lit the whole street", "made the whole town laugh", "slept well for the first time in years"),
    ),
    (
        "wizard",
        ("in a crooked tower", "at the edge of the desert", "in a garden of stone"),
        ("remember a forgotten spell", "grow a silver tree", "turn rain into music"),
        ("the book was empty", "the seeds would not grow", "his hat had its own plans"),
        ("a pupil asked the right question", "a toad knew the words", "the moon gave its light"),
        ("laughed until morning", "planted a forest", "closed the book and made tea"),
    ),
    (
        "baker",
        ("in a small town", "near the old bridge", "next to the station"),
        ("bake the best cake in the land", "win the yearly prize", "surprise the queen"),
        ("the oven broke", "somebody had eaten the sugar", "the flour was wet"),
        ("the whole street lent a hand", "a traveler gave her honey", "her son found an old recipe"),
        ("shared the cake with everyone", "hung the prize over the door", "baked until the stars came out"),
    ),
)
_ASK = (
    "Write a short story about {a} {hero}.",
    "Tell me a story about {a} {hero}.",
    "Write a story about {a} {hero}.",
    "Tell me a short story about {a} {hero}.",
    "Can you tell a story about {a} {hero}?",
    "I would like a story about {a} {hero}.",
    "A short story about {a} {hero}, please.",
    "Make up a story about {a} {hero}.",
    "Please write me a little story about {a} {hero}.",
    "Could you write a tale about {a} {hero}?",
)
_ANY = (
    "Tell me a story.",
    "Write a story.",
    "Tell me a short story.",
    "I am bored, tell me a story.",
    "Write a detailed story about topic. Make it very long.",
    "Write a long story.",
    "Can you tell me a story?",
    "Please tell me a bedtime story.",
)


def story(source: Source) -> Turn:
    if source.chance(0.3):
        plot = source.pick(PLOTS)
        question = source.phrase(_ANY)
    else:
        plot = SPACE if source.chance(0.3) else source.pick(PLOTS)
        question = source.phrase(_ASK).format(a=article(plot[0]), hero=plot[0])
    return Turn(question, tell(source, plot), f"I write a short story about {article(plot[0])} {plot[0]}.")


def plain_story(source: Source) -> str:
    """Tell a story as a text of its own, or as the answer to a request for it."""
    plot = source.pick(PLOTS)
    if source.chance(0.5):
        return tell(source, plot)
    return f"{source.phrase(_ASK).format(a=article(plot[0]), hero=plot[0])} {tell(source, plot)}"


def tell(source: Source, plot: _Plot) -> str:
    hero, homes, wishes, troubles, helps, ends = plot
    name = source.name() if source.chance(0.5) else source.pick(FIRST_NAMES)
    home, wish, trouble, help_, end = map(source.pick, (homes, wishes, troubles, helps, ends))
    opening = source.pick(
        (
            "Once upon a time, there was {a} {hero} named {name} who lived {home}.",
            "{name} was {a} {hero} who lived {home}.",
            "There once was {a} {hero} called {name}, who lived {home}.",
        )
    )
    wanting = source.pick(
        (
            "More than anything, {name} wanted to {wish}.",
            "All {name} wanted was to {wish}.",
            "{name} had one wish: to {wish}.",
            "Every night {name} dreamed of one thing: to {wish}.",
        )
    )
    turning = source.pick(
        (
            "One day {name} set out, but {trouble}.",
            "But on the way {trouble}.",
            "{name} tried for many days, but then {trouble}.",
            "Then, one morning, {trouble}.",
        )
    )
    helping = source.pick(
        (
            "{name} did not give up. At last, {help}.",
            "Just when all seemed lost, {help}.",
            "{name} sat down and thought. Then {help}.",
            "But {name} was not alone: {help}.",
        )
    )
    ending = source.pick(
        (
            "In the end, {name} {end}.",
            "And so {name} {end}.",
            "That evening, {name} {end}, and everything was well.",
            "{name} smiled and {end}.",
        )
    )
    text = " ".join((opening, wanting, turning, helping, ending))
    return text.format(
        a=article(hero), hero=hero, name=name, home=home, wish=wish, trouble=trouble, help=help_, end=end
    )


def article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"
