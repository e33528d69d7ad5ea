"""Countries, their capitals and continents."""

from training.chat import Turn
from training.source import Source

COUNTRIES = (
    *(("France", "Paris", "Europe"), ("Japan", "Tokyo", "Asia"), ("Egypt", "Cairo", "Africa")),
    *(("Italy", "Rome", "Europe"), ("Germany", "Berlin", "Europe"), ("Spain", "Madrid", "Europe")),
    *(("Portugal", "Lisbon", "Europe"), ("Greece", "Athens", "Europe"), ("Norway", "Oslo", "Europe")),
    *(("Sweden", "Stockholm", "Europe"), ("Finland", "Helsinki", "Europe"), ("Denmark", "Copenhagen", "Europe")),
    *(("Poland", "Warsaw", "Europe"), ("Austria", "Vienna", "Europe"), ("Hungary", "Budapest", "Europe")),
    *(("Ireland", "Dublin", "Europe"), ("Belgium", "Brussels", "Europe"), ("Romania", "Bucharest", "Europe")),
    *(("Ukraine", "Kyiv", "Europe"), ("Iceland", "Reykjavik", "Europe"), ("Croatia", "Zagreb", "Europe")),
    *(("the United Kingdom", "London", "Europe"), ("the Netherlands", "Amsterdam", "Europe")),
    *(("Russia", "Moscow", "Europe"), ("Switzerland", "Bern", "Europe"), ("Turkey", "Ankara", "Asia")),
    *(("China", "Beijing", "Asia"), ("India", "New Delhi", "Asia"), ("Thailand", "Bangkok", "Asia")),
    *(("Vietnam", "Hanoi", "Asia"), ("South Korea", "Seoul", "Asia"), ("Indonesia", "Jakarta", "Asia")),
    *(("Nepal", "Kathmandu", "Asia"), ("Iran", "Tehran", "Asia"), ("Iraq", "Baghdad", "Asia")),
    *(("Mongolia", "Ulaanbaatar", "Asia"), ("Pakistan", "Islamabad", "Asia"), ("the Philippines", "Manila", "Asia")),
    *(("Kenya", "Nairobi", "Africa"), ("Nigeria", "Abuja", "Africa"), ("Ghana", "Accra", "Africa")),
    *(("Ethiopia", "Addis Ababa", "Africa"), ("Morocco", "Rabat", "Africa"), ("Tunisia", "Tunis", "Africa")),
    *(("Senegal", "Dakar", "Africa"), ("Uganda", "Kampala", "Africa"), ("Algeria", "Algiers", "Africa")),
    *(("the United States", "Washington, D.C.", "North America"), ("Canada", "Ottawa", "North America")),
    *(("Mexico", "Mexico City", "North America"), ("Cuba", "Havana", "North America")),
    *(("Jamaica", "Kingston", "North America"), ("Panama", "Panama City", "North America")),
    *(("Brazil", "Brasilia", "South America"), ("Argentina", "Buenos Aires", "South America")),
    *(("Chile", "Santiago", "South America"), ("Peru", "Lima", "South America")),
    *(("Colombia", "Bogota", "South America"), ("Uruguay", "Montevideo", "South America")),
    *(("Ecuador", "Quito", "South America"), ("Australia", "Canberra", "Oceania")),
    *(("New Zealand", "Wellington", "Oceania"), ("Fiji", "Suva", "Oceania")),
)
CONTINENTS = ("Europe", "Asia", "Africa", "North America", "South America")
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}

_LIST = (
    "List {n} countries and their capitals.",
    "List {n} countries and their capitals.",
    "Name {n} countries and their capitals.",
    "Give me {n} countries with their capitals.",
    "Tell me {n} countries and the capital of each.",
    "I need {n} countries and their capital cities.",
    "Write down {n} countries together with their capitals.",
    "What are {n} countries and their capitals?",
    "Can you list {n} countries and their capitals?",
    "List {n} capitals and the countries they belong to.",
    "Show me {n} countries along with their capitals.",
    "Please name {n} countries and say what their capitals are.",
    "{n} countries and capitals, please.",
    "Could you name {n} countries and their capital cities?",
    "Give me a list of {n} countries and capitals.",
    "Make a list of {n} countries with the capital of each one.",
)
_LIST_IN = (
    "List {n} countries in {place} and their capitals.",
    "Name {n} countries in {place} with their capitals.",
    "Give me {n} countries of {place} and their capitals.",
    "Which are {n} countries in {place}, and what are their capitals?",
    "Tell me {n} countries from {place} and the capital of each.",
    "Show me {n} countries in {place} along with their capitals.",
)
_CAPITAL = (
    "What is the capital of {country}?",
    "What is the capital of {country}?",
    "What's the capital of {country}?",
    "Which city is the capital of {country}?",
    "Tell me the capital of {country}.",
    "Name the capital of {country}.",
    "Do you know the capital of {country}?",
    "The capital of {country}?",
    "What is the capital city of {country}?",
    "What city is {country}'s capital?",
    "I forgot the capital of {country}. What is it?",
    "Can you tell me what the capital of {country} is?",
    "Please tell me which city is the capital of {country}.",
)
_COUNTRY = (
    "{city} is the capital of which country?",
    "Which country has {city} as its capital?",
    "What country is {city} the capital of?",
    "{city} is the capital of what country?",
    "Of which country is {city} the capital?",
    "Tell me the country whose capital is {city}.",
)
_CONTINENT = (
    "Which continent is {country} in?",
    "What continent is {country} on?",
    "Where is {country}?",
    "On which continent is {country}?",
    "In which part of the world is {country}?",
)
_INTRODUCTIONS = (
    "Here are {n} countries and their capitals:",
    "Sure, here are {n} countries and their capitals:",
    "{N} countries and their capitals:",
)


def list_of_capitals(source: Source) -> Turn:
    count = 3 if source.chance(0.5) else source.pick(list(NUMBERS))
    written = NUMBERS[count] if source.chance(0.5) else str(count)
    place = source.pick(CONTINENTS) if source.chance(0.3) else None
    choice = [entry for entry in COUNTRIES if place in (None, entry[2])]
    if place is None:
        question, choice = source.phrase(_LIST).format(n=written), choice[:30]
    else:
        question = source.phrase(_LIST_IN).format(n=written, place=place)
    lines = [
        f"{number}. {bare(country)} - {capital}"
        for number, (country, capital, _) in enumerate(source.several(choice, count), start=1)
    ]
    introduction = source.pick(_INTRODUCTIONS).format(n=NUMBERS[count], N=NUMBERS[count].capitalize())
    thought = f"The user wants {NUMBERS[count]} countries with capitals. I pick {NUMBERS[count]} that I know."
    return Turn(question[0].upper() + question[1:], "\n".join([introduction, *lines]), thought)


def capital(source: Source) -> Turn:
    country, city, continent = source.pick(COUNTRIES)
    kind = source.number(0, 5)
    if kind == 0:
        question, answer = source.phrase(_COUNTRY).format(city=city), f"{city} is the capital of {country}."
    elif kind == 1:
        question = source.phrase(_CONTINENT).format(country=country)
        answer = f"{capitalized(country)} is in {continent}."
    else:
        question = source.phrase(_CAPITAL).format(country=country)
        answer = f"The capital of {country} is {city}{'' if city.endswith('.') else '.'}"
    return Turn(question[0].upper() + question[1:], answer, "This is about a country that I know.")


def unknown_country(source: Source) -> Turn:
    """An invented one."""
    name = source.name()
    answer = f"I do not know a country called {name}."
    return Turn(source.phrase(_CAPITAL).format(country=name), answer, f"I know no country called {name}. I say so.")


def bare(country: str) -> str:
    return capitalized(country.removeprefix("the "))


def capitalized(text: str) -> str:
    return text[0].upper() + text[1:]
