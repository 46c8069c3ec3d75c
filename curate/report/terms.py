"""What the report's words mean, for readers who meet them for the first time."""

from __future__ import annotations

from curate.codec.images import REASONS
from curate.core.ledger import SET_ASIDE

TERMS = {
    "funnel": (
        "Funnel",
        "Every stage finds some images alive, leaves some out with a reason (a filter rejects them, or a stage can say "
        "nothing of them), and passes the rest on. Before − left out = after, in every line.",
    ),
    "copies": (
        "Copies",
        "How many samples the selection makes of what it takes. A picture of a rare cluster may be taken "
        "more than once when the recipe's multiplier allows it.",
    ),
    "cluster": (
        "Cluster",
        "A group of pictures whose embeddings lie close together, so that they look alike to the encoder. "
        "Fine clusters are themselves grouped into coarser ones: these are the levels.",
    ),
    "centroid": (
        "Centroid",
        "The middle of a cluster in the space of embeddings. The pictures nearest to it are the most typical ones.",
    ),
    "entropy": (
        "Entropy",
        "How evenly pictures are spread over clusters, or texts over entries, in bits. It is greatest, log2 of the "
        "number of clusters, when every cluster holds the same number of pictures.",
    ),
    "effective": (
        "Effective number",
        "2 to the power of the entropy: as many clusters of equal size would be spread just as evenly. "
        "Higher is more diverse.",
    ),
    "gini": (
        "Gini coefficient",
        "How unequal the clusters' sizes are: 0 when all are equal, close to 1 when a few hold almost everything. "
        "Lower is more balanced.",
    ),
    "ranksize": (
        "Curve of sizes",
        "Clusters in order of size, biggest first, on axes where each step multiplies by ten. "
        "A flat line means clusters of equal size; a steep one, that a few dominate.",
    ),
    "explained": (
        "Variance explained",
        "How much more alike the pictures of a cluster are than pictures of the whole pool, seen from the centroids of "
        "the finest clusters: 100 % when they are all the same, near 0 when the cluster is noise.",
    ),
    "fill": (
        "Fill rate",
        "A cluster's quota over what it could give: its pictures, times the copies that the recipe allows. Small "
        "clusters give everything, big ones a share; that is how the selection becomes even.",
    ),
    "drift": (
        "Growth",
        "Pictures added to the pool are assigned to the clusters there are. A refit is due when too many of them lie "
        "far from every centroid, or when they spread over the clusters in another way than those it was fitted on. "
        "Two samples of the same kind differ too: what chance makes of it is taken off.",
    ),
    "fingerprint": (
        "Fingerprint",
        "A digest of everything that decides a result: operation, version, parameters and inputs. "
        "The same fingerprint means the same result, which is then taken from the workspace instead of computed again.",
    ),
    "built": (
        "Computed",
        "The time is that of the build that made the result. Rows that an earlier, interrupted build "
        "had already finished are taken as they are and cost no time. Stages that read the same pictures share one "
        "pass, and its time is divided among them.",
    ),
    "recipe": (
        "Recipe",
        "The pipeline's stages with the parameters that decide their results. Settings that only change speed, "
        "such as threads, are left out.",
    ),
    "entry": (
        "Entries",
        "What texts are found to say: concepts of WordNet, words of a vocabulary, hashtags. A text may have several, "
        "and each of them counts it: a match.",
    ),
    "expected": (
        "Expected",
        "Every text is drawn alone, with a chance that follows from how common its entries are. Expected is the sum of "
        "these chances, made is what the draw has given; they differ by luck, about the square root of their size.",
    ),
    "tail": (
        "Head and tail",
        "The head are the commonest entries. The tail are the rarest ones, those under the recipe's threshold, or "
        "else those that hold the recipe's share of all matches, or 6 %, as nearly as counts allow. A balanced set "
        "gives less to the head, and loses no tail.",
    ),
    "counter": (
        "Counts",
        "What stages have counted beside the rows they refused. Of a cleaning stage: how many texts each of its rules "
        "has changed; one text may be changed by several.",
    ),
    "keeper": (
        "Keeper",
        "Pictures that are the same, or nearly, form a set. One of them stands for the set and goes on: the keeper.",
    ),
}
"""Term -> (title, explanation)."""

MEANINGS = REASONS | {
    "animated": "several frames, which the recipe refuses",
    "aspect": "longer and thinner than the recipe allows",
    "bad_embedding": "its embedding is no direction: all zeros, or not a number",
    "caption_too_long": "more text than the recipe allows",
    "caption_too_short": "less text than the recipe asks for",
    "contaminated": "an evaluation image, or too close to one, which training must not see",
    "duplicate_key": "another row of the pool has the same key; the first one counts",
    "caption_too_few_words": "fewer words than the recipe asks for",
    "caption_unsettled": "a caption nested so deeply that cleaning has no end",
    "dissimilar": "picture and text are less alike than the recipe asks for",
    "exact_duplicate": "the same picture as its keeper, shown beside it",
    "format": "a picture format that the recipe does not list",
    "head_cut": "what its text says is common, and the draw has left it out",
    "language": "a language that the recipe does not list",
    "language_uncertain": "the language is not certain enough",
    "killed": "it ended the process that looked at it",
    "missing_caption": "no caption, or none left after cleaning, which the recipe asks for",
    "no_embedding": "it has no embedding that texts could be compared with",
    "no_items": "none of its texts is left",
    "missing_file": "the source names a file that is not there",
    "near_duplicate": "almost the same picture as its keeper, shown beside it",
    "no_concept": "its text names no concept",
    "no_entry": "its text says nothing that was counted: no concept, word or tag",
    "no_hashtag": "none of its tags has a place in the vocabularies",
    "no_image": "the source has a row for it, and no picture",
    "no_language": "its text says too little to tell the language",
    "no_text": "no text that the selection could choose",
    "not_sampled": "alive, and not among those the selection took: its cluster had given its share",
    "other_extension": "a file name that does not say it is a picture",
    "semantic_duplicate": "to the encoder almost the same as its keeper, shown beside it",
    "text_duplicate": "as many rows as the recipe allows have this very text already",
    "too_large": "larger than the recipe allows",
    "too_small": "fewer pixels on its shorter side than the recipe asks for",
    "unreadable": "the file could not be read",
    "unsafe_path": "a path that leaves its folder",
    "zero_embedding": "its embedding is all zeros",
    "nan_embedding": "its embedding is not a number",
    SET_ASIDE: "its shard failed for good and was set aside",
}
"""Reject reason -> what it says of a picture. Other packages add reasons: those speak for themselves."""


def meaning(reason: str) -> str:
    return MEANINGS.get(reason, "")


def human(reason: str) -> str:
    """`too_small` as `too small`."""
    return reason.replace("_", " ")
