"""Additions, subtractions, products and powers of small numbers, and which of two numbers is greater."""

from decimal import Decimal

from training.chat import Turn
from training.source import Source

_ADD = (
    *("What is {a} + {b}?", "{a} + {b}", "{a} + {b} =", "{a}+{b}", "Add {a} and {b}.", "What is {a} plus {b}?"),
    *("Calculate {a} + {b}.", "How much is {a} + {b}?", "What is the sum of {a} and {b}?", "{a} plus {b}?"),
    *("Please add {a} and {b}.", "I have {a} apples and get {b} more. How many do I have?", "Compute {a} + {b}."),
    *("Tell me what {a} and {b} make together.", "What do you get if you add {b} to {a}?", "How much is {a} plus {b}?"),
)
_SUBTRACT = (
    *("What is {a} - {b}?", "{a} - {b}", "What is {a} minus {b}?", "Subtract {b} from {a}.", "Calculate {a} - {b}."),
    *("How much is {a} - {b}?", "I had {a} coins and spent {b}. How many are left?", "How much is {a} minus {b}?"),
)
_MULTIPLY = (
    *("What is {a} x {b}?", "What is {a} times {b}?", "{a} * {b}", "Multiply {a} by {b}.", "Calculate {a} * {b}."),
    *("How much is {a} * {b}?", "What is the product of {a} and {b}?", "How much is {a} times {b}?"),
)
_POWER = (
    *("What is {a}^{b}?", "{a}^{b}", "{a}^{b} =", "What is {a} to the power of {b}?", "Calculate {a}^{b}."),
    *("{a}**{b}", "How much is {a}^{b}?", "What is 2^8?", "2^8", "Compute {a}^{b}.", "What does {a}^{b} equal?"),
)
_GREATER = (
    *("{a} and {b}, which is greater?", "Which is greater, {a} or {b}?", "Which is bigger, {a} or {b}?"),
    *("What is greater: {a} or {b}?", "Is {a} or {b} greater?", "Which number is larger, {a} or {b}?"),
    *("{a} or {b}, which is bigger?", "Compare {a} and {b}.", "Which of {a} and {b} is greater?"),
    *("Tell me the greater of {a} and {b}.", "{a} and {b}: which one is larger?", "{a} or {b}: what is more?"),
    *("Which one is the bigger number, {a} or {b}?", "Of {a} and {b}, which is the greater number?"),
)


def addition(source: Source) -> Turn:
    a, b = source.split(lambda: (_small(source), _small(source)))
    return Turn(source.phrase(_ADD).format(a=a, b=b), f"{a} + {b} = {a + b}", _add_by_digits(a, b))


def subtraction(source: Source) -> Turn:
    def draw() -> tuple[int, int]:
        pair = (_small(source), _small(source))
        return max(pair), min(pair)

    a, b = source.split(draw)
    return Turn(source.phrase(_SUBTRACT).format(a=a, b=b), f"{a} - {b} = {a - b}", f"I take {b} away from {a}.")


def multiplication(source: Source) -> Turn:
    a, b = source.number(0, 10), source.number(0, 10)
    return Turn(source.phrase(_MULTIPLY).format(a=a, b=b), f"{a} * {b} = {a * b}", f"This is {a} times {b}.")


def power(source: Source) -> Turn:
    base, exponent = source.pick([(2, n) for n in range(1, 11)] + [(3, 2), (3, 3), (4, 2), (5, 2), (5, 3), (10, 2)])
    question = source.phrase(_POWER).format(a=base, b=exponent)
    if "2^8" in question:
        base, exponent = 2, 8
    steps = ", ".join(str(base**n) for n in range(1, exponent + 1))
    return Turn(question, f"{base}^{exponent} = {base**exponent}", f"I multiply {base} step by step: {steps}.")


def comparison(source: Source) -> Turn:
    a, b = source.split(lambda: _pair(source))
    question = source.phrase(_GREATER).format(a=a, b=b)
    if Decimal(a) == Decimal(b):
        return Turn(question, f"{a} and {b} are equal.", f"{a} and {b} are the same number.")
    greater, lesser = (a, b) if Decimal(a) > Decimal(b) else (b, a)
    return Turn(question, f"{greater} is greater than {lesser}.", _compare(a, b, greater))


def _small(source: Source) -> int:
    return source.number(0, 9) if source.chance(0.25) else source.number(0, 99)


def _add_by_digits(a: int, b: int) -> str:
    """Ones, carry, tens: each step is one that a small model can take."""
    ones = a % 10 + b % 10
    tens = a // 10 + b // 10
    text = f"Ones: {a % 10} + {b % 10} = {ones}."
    if ones >= 10:
        return f"{text} Tens: {a // 10} + {b // 10} + 1 = {tens + 1}. Together: {a + b}."
    return f"{text} Tens: {a // 10} + {b // 10} = {tens}. Together: {a + b}."


def _pair(source: Source) -> tuple[str, str]:
    if source.chance(0.4):
        most = source.pick([9, 99, 99, 999])
        return str(source.number(0, most)), str(source.number(0, most))
    whole = source.number(0, 19)
    other = whole if source.chance(0.8) else source.number(0, 19)
    return f"{whole}.{_decimals(source)}", f"{other}.{_decimals(source)}"


def _decimals(source: Source) -> str:
    return str(source.number(1, 9)) if source.chance(0.5) else f"{source.number(0, 9)}{source.number(1, 9)}"


def _compare(a: str, b: str, greater: str) -> str:
    if "." not in a:
        return f"I compare {a} and {b}. {greater} is more."
    (a_whole, a_part), (b_whole, b_part) = a.split("."), b.split(".")
    if a_whole != b_whole:
        return f"The whole parts are {a_whole} and {b_whole}. {max(int(a_whole), int(b_whole))} is more."
    if a_part[0] != b_part[0]:
        return (
            f"Both begin with {a_whole}. The next digits are {a_part[0]} and {b_part[0]}. "
            f"{max(a_part[0], b_part[0])} is more, so {greater} is greater."
        )
    a_next, b_next = a_part[1:] or "0", b_part[1:] or "0"
    return (
        f"Both begin with {a_whole}.{a_part[0]}. The next digits are {a_next} and {b_next}. "
        f"{max(a_next, b_next)} is more, so {greater} is greater."
    )
