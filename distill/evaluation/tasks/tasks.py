"""From vectors to figures: each task says what it found of each model, or in words (`why_none`) why nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distill.evaluation.judged import Judged, Questions
from distill.evaluation.subjects import OWN, StudentSubject, Subject
from distill.evaluation.tasks import ensemble, probe
from distill.evaluation.tasks.knn import knn_votes
from distill.evaluation.tasks.retrieval import recalls, unique_texts
from distill.evaluation.tasks.scores import accuracies, by_class
from distill.evaluation.tasks.zero_shot import class_scores, class_vectors, names_of, read_names, read_templates
from distill.evaluation.watchers import Vectors
from distill.recipe import EvaluateRecipe

Result = dict[str, Any]
Floats = NDArray[np.floating[Any]]
TOGETHER = "heads together"
_ENOUGH_HEADS = 2


def none(why: str) -> Result:
    return {"models": {}, "why_none": why}


@dataclass
class Asked:
    """Questions of which the pictures could be read, with what every model says of them."""

    questions: Questions
    vectors: Vectors
    subjects: Sequence[Subject]
    settings: EvaluateRecipe

    def __post_init__(self) -> None:
        read = self.vectors.rows
        self.train = [int(row) for row in self.questions.train if int(row) in read]
        self.test = [int(row) for row in self.questions.test if int(row) in read]
        self.all_test = sorted({*self.test, *(int(row) for row in self.questions.left_out if int(row) in read)})

    def labels(self, rows: Sequence[int]) -> NDArray[np.int64]:
        return np.array([self.questions.labels[row] for row in rows], dtype=np.int64)

    def result(self, scores: Mapping[str, Floats], rows: Sequence[int]) -> Result:
        """Accuracies, and each class, of each model's scores (rows, classes)."""
        labels, names = self.labels(rows), self.questions.classes
        return {
            "test_images": len(rows),
            "test_classes": len(set(labels.tolist())),
            "classes": len(names),
            "models": {name: accuracies(one, labels, top=(5,)) for name, one in scores.items()},
            "by_class": {name: by_class(one, labels, names) for name, one in scores.items()},
        }

    def why_none(self) -> str | None:
        """Of tasks that learn."""
        if not len(self.questions.test):
            least = self.settings.min_train_images
            return f"no picture that is asked about has a {self.settings.label!r} with {least} training pictures"
        if not self.train or not self.test:
            return f"only {len(self.train)} training and {len(self.test)} test pictures can be read"
        if len({self.questions.labels[row] for row in self.train}) < 2:
            return f"the training pictures have only one {self.settings.label!r}; there is nothing to tell apart"
        return None


def knn(asked: Asked) -> Result:
    """Weighted vote of the k nearest training pictures; students' heads together where there are several."""
    if (why := asked.why_none()) is not None:
        return none(why)
    votes: dict[str, Floats] = {}
    for subject in asked.subjects:
        votes[subject.name] = _votes(asked, subject.name, Vectors.SUMMARY)
        heads = list(subject.heads) if isinstance(subject, StudentSubject) else []
        if len(heads) >= _ENOUGH_HEADS:
            shares = [ensemble.shares(_votes(asked, subject.name, head)) for head in heads]
            votes[f"{subject.name}, {TOGETHER}"] = ensemble.together(shares, asked.settings.gamma)
    return asked.result(votes, asked.test) | _baselines(asked)


def _votes(asked: Asked, model: str, space: str | None) -> Floats:
    return knn_votes(
        asked.vectors.stack(model, space, asked.train),
        asked.labels(asked.train),
        asked.vectors.stack(model, space, asked.test),
        classes=len(asked.questions.classes),
        k=asked.settings.k,
        temperature=asked.settings.temperature,
    )


def linear_probe(asked: Asked) -> Result:
    """Ridge regression on the summaries."""
    if (why := asked.why_none()) is not None:
        return none(why)
    wanted = probe.one_hot(asked.labels(asked.train), len(asked.questions.classes))
    scores = {}
    for subject in asked.subjects:
        x = asked.vectors.stack(subject.name, Vectors.SUMMARY, asked.train)
        sums = probe.Sums.empty(x.shape[1], wanted.shape[1])
        sums.add(x, wanted)
        scores[subject.name] = probe.fit(sums)(asked.vectors.stack(subject.name, Vectors.SUMMARY, asked.test))
    return asked.result(scores, asked.test) | _baselines(asked)


def _baselines(asked: Asked) -> Result:
    train, test = asked.labels(asked.train), asked.labels(asked.test)
    majority = Counter(train.tolist()).most_common(1)[0][0]
    return {
        "train_images": len(train),
        "left_out_images": len(asked.questions.left_out),
        "left_out_classes": asked.questions.left_out_classes,
        "chance": 1 / len(asked.questions.classes),
        "majority": float((test == majority).mean()),
    }


def zero_shot(asked: Asked) -> Result:
    """Nearest class by the words for it, over all labelled pictures that are asked about, however rare their class."""
    readers = _readers(asked.subjects)
    if not readers:
        return none(NO_TEXTS)
    if not asked.all_test:
        return none("no labelled picture that is asked about can be read")
    settings = asked.settings
    given = read_names(settings.class_names) if settings.class_names else {}
    names = names_of(asked.questions.classes, given)
    templates = read_templates(settings.prompts) if settings.prompts else read_templates()
    scores: dict[str, Floats] = {}
    for subject, spaces in readers:
        own = {}
        for space in spaces:
            classes = class_vectors(subject.texts[space], names, templates)
            own[said(subject, space)] = class_scores(asked.vectors.stack(subject.name, space, asked.all_test), classes)
        scores |= own
        if len(own) >= _ENOUGH_HEADS:
            sure = [ensemble.probabilities(one, settings.zero_shot_temperature) for one in own.values()]
            scores[f"{subject.name}, {TOGETHER}"] = ensemble.together(sure, settings.gamma)
    named = sum(name in given for name in asked.questions.classes)
    return asked.result(scores, asked.all_test) | {
        "chance": 1 / len(asked.questions.classes), "prompts": len(templates), "named": named,
    }  # fmt: skip


def retrieval(judged: Judged, vectors: Vectors, subjects: Sequence[Subject], rows: Sequence[int]) -> Result:
    """Recalls between the pictures (rows) that could be read and all of their texts."""
    readers = _readers(subjects)
    names = judged.text_names()
    if not readers:
        return none(NO_TEXTS)
    if not names:
        return none("nobody says where texts are; set evaluate.texts to members (txt) or JSON fields (json.title)")
    rows = [int(row) for row in rows if int(row) in vectors.rows]
    texts = judged.texts(names, rows)
    having = [place for place, own in enumerate(texts) if own]
    if len(having) < 2:
        return none(f"{len(having)} of {len(rows)} pictures have a text ({', '.join(names)}); retrieval needs 2")
    rows, texts = [rows[place] for place in having], [texts[place] for place in having]
    unique, pairs = unique_texts(texts)
    if len(unique) < 2:
        return none(f"all {len(rows)} pictures have the same text ({', '.join(names)}); there is nothing to find")
    models = {}
    for subject, spaces in readers:
        for space in spaces:
            encoded = [subject.texts[space](unique[at : at + 512]) for at in range(0, len(unique), 512)]
            both = vectors.stack(subject.name, space, rows), np.concatenate(encoded)
            found: Result = recalls(*both, pairs)
            if judged.settings.retrieval_temperature is not None:
                found["reweighted"] = recalls(*both, pairs, temperature=judged.settings.retrieval_temperature)
            models[said(subject, space)] = found
    return {"models": models, "pictures": len(rows), "texts": len(unique), "pairs": len(pairs), "from": names}


NO_TEXTS = (
    "no model here reads texts; train with student.text and contrastive, take a teacher with a text tower, or name one "
    "in evaluate.text_encoders"
)


def _readers(subjects: Sequence[Subject]) -> list[tuple[Subject, list[str]]]:
    """Models that share a space with texts, with their spaces."""
    return [(subject, list(subject.texts)) for subject in subjects if subject.texts]


def said(subject: Subject, space: str) -> str:
    """A model and the space that it answers in, for people."""
    return subject.name if space == OWN else f"{subject.name}, as {space}"
