"""Honest captions of invented images, in several languages, by a random generator."""

from __future__ import annotations

from random import Random

SUBJECTS = """
a brown dog; two children in raincoats; an elderly man; a red bicycle; a white sailing boat; a ginger cat; a young
woman in a green coat; a flock of sheep; a steam locomotive; a bowl of soup; three friends; a street musician; a
stack of old books; a yellow taxi; a pair of leather boots; a wooden chair; a bride and a groom; a black horse; a
plate of pancakes; a goalkeeper; a vintage camera; a bouquet of tulips; a lighthouse; a chef in an apron; a mountain
biker; a silver laptop; a toddler
""".replace("\n", " ").split(";")
ACTIONS = """
stands; rests; waits; is seen from above; can be seen; is reflected in the water; is partly in the shade; looks
towards the camera; appears; is placed; leans; lies
""".replace("\n", " ").split(";")
PLACES = """
on a cobbled street; beside a calm lake; in front of a brick wall; under a large oak tree; on a wooden table; near
the harbour; in a crowded market; at the edge of a forest; on a sandy beach at sunset; next to an open window; in a
kitchen with tiled walls; on a snowy hillside; beside a low fence; at a railway station; inside a bright studio; on
a football pitch
""".replace("\n", " ").split(";")
DETAILS = """
with clouds in the sky; and a lamp glows in the background; while people walk past; with a small bag on the ground;
under a clear sky; with mountains in the distance; as rain falls; with flowers all around; and a sign hangs above;
in soft light; in black and white; with a blurred background; and the mood is calm; with a striped towel nearby
""".replace("\n", " ").split(";")
SHAPES = (
    "{Subject} {action} {place}.",
    "{Subject} {action} {place} {detail}.",
    "A photo of {subject} {place}.",
    "The image shows {subject} {place}, {detail}.",
    "{Subject} {place}",
    "A close-up of {subject} {detail}.",
    "{Subject} {action} {place}, and {other} {action} nearby {detail}. The scene looks peaceful.",
    "In this photo, {subject} {action} {place} {detail}.",
    'A poster {place} that reads "{quote}", and {subject} beside it.',
    'A sign with the words "{quote}" hangs {place}.',
    "An illustration of {subject}, drawn in a simple style with {number} colours.",
)
QUOTES = (
    "OPEN",
    "Do not enter",
    "Happy Birthday",
    "Sale",
    "I love you",
    "Exit",
    "Welcome home!",
    "No parking",
    "Vote today",
)
FOREIGN = {
    "es": ("Un perro marrón está sentado en la playa.", "Dos niños juegan con una pelota en el parque.",
           "Una mujer con abrigo verde camina por la calle.", "Una taza de café sobre la mesa de madera."),
    "de": ("Ein brauner Hund sitzt auf dem Sofa.", "Zwei Kinder spielen mit einem Ball im Park.",
           "Eine Frau in einem grünen Mantel geht durch die Stadt.", "Auf dem Tisch steht eine Tasse Kaffee."),
    "fr": ("Un chien brun est assis sur la plage.", "Deux enfants jouent avec un ballon dans le parc.",
           "Une femme en manteau vert marche dans la rue.", "Une tasse de café est posée sur une table en bois."),
    "it": ("Un cane marrone è seduto sulla spiaggia.", "Una donna con un cappotto verde cammina per la strada."),
    "pt": ("Um cachorro marrom está sentado na praia.", "Uma mulher com casaco verde caminha pela rua."),
    "nl": ("Een bruine hond zit op het strand.", "Een vrouw in een groene jas loopt door de straat."),
    "pl": ("Brązowy pies siedzi na plaży przed domem.", "Kobieta w zielonym płaszczu idzie ulicą z psem."),
    "zh": ("一只棕色的狗坐在沙滩上。", "两个孩子在公园里玩球。"),
    "ja": ("茶色い犬が海辺に座っています。", "緑のコートを着た女性が通りを歩いています。"),
    "ru": ("Коричневая собака сидит на пляже.", "Женщина в зелёном пальто идёт по улице."),
    "ar": ("كلب بني يجلس على الشاطئ.", "امرأة ترتدي معطفا أخضر تمشي في الشارع."),
    "ko": ("갈색 개가 해변에 앉아 있습니다.", "초록색 코트를 입은 여자가 길을 걷고 있습니다."),
    "tr": ("Kahverengi bir köpek ve bir çocuk kumsalda oturuyor.",
           "Yeşil paltolu bir kadın sokakta bir köpek ile yürüyor."),
    "la": ("Canis fuscus in litore sedet et mare spectat.", "Femina cum veste viridi in via ambulat."),
}  # fmt: skip
"""Language -> captions."""


def caption(random: Random) -> str:
    """A caption in English."""
    one = lambda items: random.choice(items).strip()  # noqa: E731
    subject, number = one(SUBJECTS), str(random.randint(2, 6))
    filled = random.choice(SHAPES).format(
        subject=subject, Subject=subject[0].upper() + subject[1:], other=one(SUBJECTS), action=one(ACTIONS),
        place=one(PLACES), detail=one(DETAILS), quote=one(QUOTES), number=number,
    )  # fmt: skip
    return filled[0].upper() + filled[1:]


def subject(random: Random) -> str:
    return random.choice(SUBJECTS).strip()


def beside(alt_text: str, random: Random) -> str:
    """A caption that uses the words of an honest alt text, as models do when they get it as context."""
    words = alt_text.split()
    short = " ".join(words[: random.randint(3, 12)]).strip(" ,.;:-|")
    shapes = (
        alt_text,
        short,
        f"A photo of {short}.",
        f"The image shows {short} {random.choice(PLACES).strip()}.",
        f"{short}, {random.choice(DETAILS).strip()}.",
        f'{caption(random).rstrip(".")} with the text "{short}".',
        f"{short[:1].upper()}{short[1:].lower()}.",
    )
    return random.choice(shapes)
