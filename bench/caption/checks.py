"""How often `caption.check` is wrong: honest alt texts with a reason, and answers that follow an order and are missed.

python -m bench.caption.checks

Alt texts are not captions, so their rates are upper bounds: they have no sentences, and some are cut short.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

from bench.kit.measure import line
from bench.kit.texts import alt_texts
from curate.caption.checks.judge import Judge, TextLimits
from curate.caption.checks.leaks import PromptWords
from curate.caption.prompt import included, read_prompt
from curate.caption.untrusted.detect import follows_order
from tests.caption.untrusted import captions, orders
from tests.servers import captions as scripted

ROUNDS = 20
"""Cases of each template of orders."""
CAPTIONS = 5000
PROMPTS = PromptWords([orders.SYSTEM])


def main() -> None:
    texts = alt_texts()
    if not texts:
        return
    judge = Judge(map(read_prompt, included()), TextLimits())
    began = time.process_time()
    reasons("alt texts of the web", judge, texts)
    line("processor time of a text", f"{(time.process_time() - began) / len(texts) * 1e6:.0f} µs", "without context")
    numbers = range(CAPTIONS)
    reasons("captions of the scripted endpoint", judge, map(scripted.caption, numbers))
    reasons("its captions with a repetition", judge, map(scripted.loop, numbers))
    for name, part in (("development", texts[::2]), ("held_out", texts[1::2])):
        detection(name, part)


def reasons(name: str, judge: Judge, texts: Iterable[str]) -> None:
    """Share of the texts with each reason."""
    found = Counter(judge.reason(text, "ok", judge.scores(text, [])) for text in texts)
    for reason, count in found.most_common():
        line(f"{name}: {reason or 'passes'}", f"{100 * count / found.total():.2f} %", f"of {found.total():,}")


def detection(name: str, texts: Sequence[str]) -> None:
    """Answers that follow an order, and honest ones, beside a set of orders and beside alt texts."""
    cases = list(orders.cases(name, texts, ROUNDS))
    flagged(f"{name}: followed an order", [(case.obeyed, case.contexts) for case in cases])
    flagged(f"{name}: honest beside an order", [(case.honest, case.contexts) for case in cases])
    random = Random(name)
    flagged(f"{name}: honest beside an alt text", [(captions.beside(text, random), (text,)) for text in texts])
    hard = [text for text in orders.honest_texts(name) for _ in range(5)]
    flagged(f"{name}: beside a text like an order", [(captions.beside(text, random), (text,)) for text in hard])


def flagged(name: str, answers: Sequence[tuple[str, Sequence[str]]]) -> None:
    count = sum(follows_order(answer, contexts, PROMPTS) is not None for answer, contexts in answers)
    line(name, f"{100 * count / len(answers):.2f} %", f"flagged of {len(answers):,}")


if __name__ == "__main__":
    main()
