"""Lines of many languages and of code for tokenizers, drawn from a few texts by a seed."""

import random
from typing import Final

TEXTS: Final = (
    "All human beings are born free and equal in dignity and rights. They are endowed with reason and conscience.",
    "Les élèves n'étaient pas là: où sont-ils allés, à l'école ou au café? Ça coûte 1 234,56 €.",
    "Größenordnungsmäßig fährt der Zug über 300 km/h; die Straße heißt „Schöne Aussicht“, Hausnummer 17½.",
    "Zażółć gęślą jaźń. Příliš žluťoučký kůň úpěl ďábelské ódy. Árvíztűrő tükörfúrógép. İstanbul'da ığdır.",
    "Все люди рождаются свободными и равными в своём достоинстве и правах. Съешь ещё этих мягких булок, 2024 г.",
    "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια· ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "يولد جميع الناس أحراراً متساوين في الكرامة والحقوق، وعددهم ١٢٣٤٥ في المدينة.",
    "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם; שָׁלוֹם עוֹלָם.",
    "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। क्षत्रिय ज्ञान १२३",
    "সমস্ত মানুষ স্বাধীনভাবে সমান মর্যাদা এবং অধিকার নিয়ে জন্মগ্রহণ করে। தமிழ் எழுத்துக்கள் அழகானவை.",
    "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ๑๒๓",
    "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。2024年3月15日",
    "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。カタカナとひらがな、ㇰ゚。",
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 한글은 1443년에 창제되었다.",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi. Ðường phố Hà Nội.",
    "ყველა ადამიანი იბადება თავისუფალი. Բոլոր մարդիկ ծնվում են ազատ: ሁሉም ሰዎች ነፃ ሆነው ተወልደዋል።",
    "🙂 👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇯🇵 ❤️ ☃ ✓ → ∑ ∫ √2 ≠ ½ ²³ ㍻ ﬁ ﷺ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \u200b\u00a0\u2003\u3000 e\u0301 é \ufeff",
    "def fibonacci(n: int) -> int:\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)  # slow\n",
    "for (int i = 0; i < 1'000'000; ++i) {\n\tstd::cout << arr[i] << '\\n'; // 0xDEADBEEF 1e-9 3.14159f\n}",
    "SELECT name, COUNT(*) FROM users WHERE age >= 18 AND email LIKE '%@example.com' GROUP BY name;",
    "const f = async ({a, b}) => `${a ?? 0}-${b?.c}`;\r\n<div class=\"x\" id='y'>&nbsp;&lt;/div&gt;</div>",
    '{"key": [1, 2.5e-3, null, true], "text": "a\\u00e9\\n", "path": "C:\\\\Users\\\\x"}',
    "https://www.example.com/a/b?c=d&e=%20f#g  user.name+tag@mail.example.co.uk  192.168.0.1:8080  #tag @name",
    "don't I'll we've IT'S THEY'RE o'clock ain't 'quoted' \"double\" (1) [2] {3} <4> ... --- *** !!! ??? $$$ ~~~",
    "1 12 123 1234 12345 123456 1,234,567.89 -0.5 +7 007 12:34:56 2024-01-31 50% £3.20 ¥100 10^6 x²+y²=z²",
    "\n\n\n   three spaces    four\t\ttabs \t mixed  \n \n  \r\n end   ",
    "supercalifragilisticexpialidocious aaaaaaaaaaaaaaaaaaaaaaaaaaaa camelCaseNames snake_case_names SHOUTING",
)
_JOINS: Final = ("", " ", "  ", "\n", "\t", "\n\n", " - ", "   ", ", ")


def drawn_lines(count: int, special: tuple[str, ...], seed: int = 0) -> list[str]:
    """Draw random lines.

    Args:
        special: tokens of the model that texts may contain as well.
    """
    draw = random.Random(seed)
    return [_line(draw, special) for _ in range(count)]


def _line(draw: random.Random, special: tuple[str, ...]) -> str:
    parts = []
    for _ in range(draw.randint(1, 5)):
        text = draw.choice(TEXTS)
        start = draw.choice((0, draw.randrange(len(text))))
        part = text[start : start + draw.randint(1, 60)]
        parts.append(draw.choice((part, part, part, part.upper(), part.title(), part[::-1], draw.choice(special))))
        parts.append(draw.choice(_JOINS))
    return "".join(parts)
