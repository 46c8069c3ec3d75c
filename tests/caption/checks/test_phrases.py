from __future__ import annotations

import pytest

from curate.caption.checks.phrases import chats, declines

DECLINES = [
    "I'm sorry, but I can't help with that.",
    "I’m sorry, I cannot identify people in images.",
    "Sorry, I can't see the image.",
    "Unfortunately, I cannot describe this image.",
    "I am unable to view images.",
    '"I cannot describe this photo."',
    "As an AI language model, I do not have eyes.",
    "No image was provided.",
    "It seems that you did not attach an image.",
    "Lo siento, no puedo ayudar con eso.",
    "Es tut mir leid, aber das kann ich nicht.",
    "Je suis désolé, je ne peux pas répondre.",
    "对不起,我无法描述这张图片。",
    "申し訳ありませんが、お答えできません。",
]
CHATS = [
    "Sure! A dog on a sofa.",
    "Certainly, here is a caption:",
    "Here is a vivid caption for the image: A dog.",
    "Here's the rewritten version: A dog.",
    "Caption: A dog on a sofa.",
    "**Caption:** A dog on a sofa.",
    "Based on the provided context, the image shows a dog.",
    "A dog on a sofa. Let me know if you need anything else.",
    "A dog on a sofa. I hope this helps!",
    "A dog on a sofa. (6 words)",
    "The image you provided shows a dog.",
    "A dog. Would you like another caption?",
    "Voici une description de l'image.",
    "好的,这是一只狗。",
]
NEITHER = [
    "A dog on a sofa.",
    "Sorry We're Closed sign on a shop door",
    "A mug with the words I'm sorry for what I said",
    "I Can't Get No Satisfaction, single by The Rolling Stones",
    "A woman says sure with her thumbs up.",
    "OK sign made of neon tubes",
    "The sure thing: a film poster from 1985",
    "Hereford cattle on a meadow.",
    "A caption contest with a cartoon of two dogs.",
    "Great Wall of China in autumn",
    "Certainly the best burger in town, says a banner.",
]


@pytest.mark.parametrize("text", DECLINES)
def test_a_model_that_declines(text: str) -> None:
    assert declines(text)


@pytest.mark.parametrize("text", CHATS)
def test_a_model_that_chats(text: str) -> None:
    assert chats(text)


@pytest.mark.parametrize("text", NEITHER)
def test_honest_texts(text: str) -> None:
    assert not declines(text) and not chats(text)


def test_phrases_deep_in_a_caption_do_not_count() -> None:
    assert not chats("A letter that begins with the words here is the summary of the year: it was good.")
