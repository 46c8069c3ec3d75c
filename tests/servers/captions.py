"""Texts like those of a captioning model, chosen by a digest: 40 openings, 30 details and 20 endings with words filled
in, so that two images hardly ever get the same one. The wording is our own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b

WORDS = {
    "animal": "dog cat horse cow sheep parrot duck rabbit goat owl squirrel pony heron fox pigeon",
    "person": "man woman child girl boy cyclist cook farmer musician runner painter tourist fisherman guard student",
    "colour": "red blue green yellow white black brown grey orange purple pink beige silver teal",
    "thing": "chair table lamp bicycle bag umbrella guitar clock vase bottle basket suitcase kettle radio bench ladder",
    "food": "bread soup salad cake rice noodles fruit cheese pancakes tomatoes fish berries tea coffee",
    "vehicle": "car bus truck tram van boat train tractor scooter ferry motorcycle",
    "building": "house church barn tower station warehouse hotel cottage library bakery museum lighthouse",
    "place": "street park beach field garden kitchen market square harbour valley platform courtyard meadow alley",
    "material": "wooden metal stone glass leather paper ceramic plastic woollen brick",
    "light": "soft bright dim warm cool golden flat harsh morning evening",
    "weather": "clear cloudy overcast rainy foggy snowy sunny hazy",
    "number": "two three four five six several a-few a-dozen",
    "sign": "OPEN EXIT STOP CAFE SALE TAXI PRIVATE WELCOME MARKET 24 1987 B12",
    "doing": "standing sitting waiting walking resting looking-around leaning reading working smiling",
    "shape": "round square long narrow curved flat tall small large",
    "plant": "trees flowers bushes grass ivy roses ferns reeds pines tulips",
}
OPENINGS = """
A {colour} {animal} is {doing} in a {place}.
A {person} is {doing} next to a {colour} {vehicle}.
The image shows a {shape} {material} {thing} on a {colour} background.
A close-up of {food} on a {material} plate.
A {building} with a {colour} roof stands behind {plant}.
Two {animal}s are {doing} near a {material} {thing}.
A {person} holds a {colour} {thing} in one hand and a {thing} in the other.
The photo is taken in a {place} under {light} light.
A {vehicle} is parked in front of a {building}.
A product photo of a {colour} {thing} with a {material} handle.
A {weather} day in a {place}, with a {building} in the distance.
An old photograph of a {person} {doing} beside a {building}.
A drawing of a {animal} with {colour} outlines and a {colour} fill.
A {person} in a {colour} jacket is {doing} on a {material} bench.
A table with {food}, {food} and a {colour} {thing}.
A row of {shape} {thing}s hangs on a {colour} wall.
The image shows the inside of a {building} with {material} floors.
An aerial view of a {place} with {number} {vehicle}s.
A {animal} looks straight into the camera.
A logo with a {colour} {shape} symbol above {colour} letters.
A {person} and a {animal} are {doing} at the edge of a {place}.
Rows of {plant} lead to a {material} {building}.
A screenshot of a web page with a {colour} header and {number} photos.
A hand reaches for a {shape} {colour} {thing}.
A {light} view over the {place} from a window.
{food} is served in a {colour} bowl beside a {material} spoon.
A poster with a {animal} in the middle and {colour} text below it.
A {vehicle} crosses a {material} bridge above a {place}.
A collection of {number} {colour} {thing}s is laid out on a {material} table.
A {person} is {doing} while a {person} takes a photo.
A {shape} {colour} sign with white letters is fixed to a {building}.
A pattern of {colour} and {colour} {shape} shapes.
A {animal} sleeps on a {material} {thing}.
A black and white portrait of a {person}.
A map of a {place} with {colour} lines.
The {building} is reflected in the water of the {place}.
A {person} repairs a {vehicle} with a {material} tool.
A shelf full of {colour} {thing}s and {material} boxes.
A {colour} {vehicle} drives along a {weather} {place}.
Close-up of {plant} with {colour} leaves.
""".strip().splitlines()
DETAILS = """
In the foreground there is a {material} {thing}, with a {colour} wall at the back.
A sign in the background reads "{sign}".
The {light} light falls from the left and leaves long shadows.
To the right, {number} {person}s are {doing} near the entrance.
The surface looks {material}, with {shape} marks along the edge.
At the back, {plant} grow along a {material} fence.
There is a {colour} {thing} in the lower corner, partly cut off.
The sky is {weather} and takes up the upper half of the image.
A second {animal} can be seen further back, slightly out of focus.
The background is plain {colour}, so that the outline stands out.
On the ground lie a {thing} and some {food}.
A {colour} stripe runs along the side, with the number {sign} on it.
The person wears a {colour} shirt and {material} shoes.
Several {vehicle}s are lined up along the kerb.
The letters "{sign}" are printed in {colour} on the front.
A {shape} window shows part of the {place} outside.
On the left, a {person} is {doing} with a {thing}.
The edges are {shape} and the colours are mostly {colour} and {colour}.
Small drops of water cover the {material} surface.
A {material} path leads past the {building}.
There are {number} {thing}s on the shelf above.
Its shadow falls on the {colour} floor.
The {plant} in the middle are in bloom.
A thin {colour} frame surrounds the whole image.
The texture of the {material} wall is clearly visible.
Next to it stands a {person} with a {colour} hat.
In the distance a {building} rises above the {plant}.
The {thing} is turned to the side, so that its {shape} back can be seen.
Do not enter is written on a {colour} board beside the door.
Part of a {vehicle} is visible at the right edge.
""".strip().splitlines()
ENDINGS = """
The mood is calm.
The overall impression is {light} and quiet.
The scene looks like an ordinary day in a {place}.
The image is slightly blurred at the edges.
It seems to be late afternoon.
The composition is simple, with the {thing} in the centre.
There are no other people.
The colours are muted.
The photo was probably taken with a phone.
The lower part is in shadow.
Everything is sharp from front to back.
The style suggests an advertisement.
The view is from slightly above.
The light suggests early morning.
A small watermark is visible in the corner.
The image has a grainy, vintage look.
The rest of the frame is empty.
It could be part of a series about a {place}.
The contrast between {colour} and {colour} is strong.
The weather seems {weather}.
""".strip().splitlines()
PLURALS = {"mans ": "men ", "childs ": "children ", "sheeps ": "sheep ", "buss ": "buses ", "benchs ": "benches "}
REFUSALS = (
    "I'm sorry, but I can't help with identifying people in images.",
    "I'm sorry, I can't assist with that request.",
    "I cannot describe this image because it may contain sensitive content.",
    "As an AI language model, I am unable to view images.",
    "Sorry, I can't provide a description of this photo.",
    "I'm unable to process this image. Please provide a different image.",
    "I apologize, but I cannot fulfil this request.",
    "Unfortunately, I am not able to comment on this content.",
)


def digest(*parts: object) -> int:
    """64 bits of a hash of the parts."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "big")


def unit(*parts: object) -> float:
    """A number from 0 to 1 by the parts."""
    return digest(*parts) / 2**64


def caption(seed: object) -> str:
    """An honest caption of 5 to 60 words."""
    sentences = [_filled(_chosen(OPENINGS, seed, "opening"), seed)]
    details = int(4 * unit(seed, "details") ** 1.5)
    start = digest(seed, "first")
    sentences += [_filled(DETAILS[(start + 7 * n) % len(DETAILS)], (seed, n)) for n in range(details)]
    if unit(seed, "ending") < 0.4:
        sentences.append(_filled(_chosen(ENDINGS, seed, "which"), (seed, "ending")))
    while sum(len(one.split()) for one in sentences) > 60:
        sentences.pop()
    return " ".join(sentences)


def refusal(seed: object) -> str:
    return _chosen(REFUSALS, seed, "refusal")


def loop(seed: object) -> str:
    """A caption whose end repeats, as models do that cannot stop."""
    words = caption(seed).rstrip(".").split()
    period = 1 + digest(seed, "period") % 8
    return " ".join(words + words[-period:] * (8 + digest(seed, "times") % 20))


def with_words_of(text: str, context: str, seed: object) -> str:
    """A caption that also uses words of its context, as honest ones do."""
    words = [word for word in re.findall(r"\w[\w'-]+", context) if len(word) > 3]
    if not words:
        return text
    start = digest(seed, "context") % len(words)
    return f"{text} It shows {' '.join(words[start : start + 4])}."


def _chosen(texts: Sequence[str], seed: object, purpose: str) -> str:
    return texts[digest(seed, purpose) % len(texts)]


def _filled(template: str, seed: object) -> str:
    places = iter(range(100))

    def word(match: re.Match[str]) -> str:
        return _chosen(WORDS[match[1]].split(), seed, f"word {next(places)}").replace("-", " ")

    text = re.sub(r"\{(\w+)\}", word, template)
    for wrong, right in PLURALS.items():
        text = text.replace(wrong, right)
    text = re.sub(r"\b([Aa]) (?=[aeio]|umb)", r"\1n ", text)
    return text[0].upper() + text[1:]
