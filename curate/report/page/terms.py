"""Explanations of the report's terms and of the reject reasons."""

from __future__ import annotations

from http import HTTPStatus

from curate.codec.images import REASONS
from curate.codec.video.containers import REASONS as OF_VIDEOS
from curate.core.ledger import SET_ASIDE

TERMS = {
    "random": (
        "Against a random sample",
        "The selection beside as many images drawn at random from those that reached it. The distance is to the "
        "nearest other image of the sample (spacing); images that resemble nothing increase it, too. A tenth of the "
        "images are held out, with all near copies of theirs, such as the photos of a burst. kNN classifies those that "
        "have a label by the five nearest others of each sample. The similarity (coverage) is their cosine to the "
        "nearest of each sample: where it is below that of the random sample, kNN often is, too. More is better "
        "everywhere. Intervals of 95 % are from a paired bootstrap; a difference is undecided if its interval "
        "contains 0.",
    ),
    "funnel": (
        "Funnel",
        "Every stage takes the remaining images, rejects some with a reason (a filter's rule, or facts that could not "
        "be computed), and passes the rest. Before − rejected = after, in every line.",
    ),
    "copies": (
        "Copies",
        "Number of samples in the dataset, repetitions included. The selection may repeat an image of a rare cluster "
        "if the recipe's multiplier allows it.",
    ),
    "cluster": (
        "Cluster",
        "A group of images whose embeddings are close together: they look alike to the encoder. "
        "Fine clusters are grouped into coarser ones; these are the levels.",
    ),
    "centroid": (
        "Centroid",
        "The mean of a cluster in the space of embeddings. The images nearest to it are the most typical ones.",
    ),
    "entropy": (
        "Entropy",
        "How evenly images are distributed over clusters, or texts over entries, in bits. Its maximum is log2 of the "
        "number of clusters, reached when every cluster has the same number of images.",
    ),
    "effective": (
        "Effective number",
        "2 to the power of the entropy: this many clusters of equal size would have the same entropy. "
        "Higher is more diverse.",
    ),
    "gini": (
        "Gini coefficient",
        "How unequal the clusters' sizes are: 0 if all are equal, close to 1 if a few clusters have almost everything. "
        "Lower is more balanced.",
    ),
    "ranksize": (
        "Curve of sizes",
        "Sizes of the clusters, largest first, on axes where each step multiplies by ten. "
        "A flat line means that clusters are equally large; a steep one, that a few dominate.",
    ),
    "explained": (
        "Variance explained",
        "How much more alike the images of a cluster are than images of the whole pool, measured from the centroids of "
        "the finest clusters: 100 % if they are identical, near 0 if the cluster is noise.",
    ),
    "fill": (
        "Fill rate",
        "A cluster's quota over what it could give: its images, times the copies that the recipe allows. Small "
        "clusters give everything and large ones a share, which makes the selection even.",
    ),
    "drift": (
        "Growth",
        "New images of the pool are assigned to the existing clusters. A refit is due if too many of them are far "
        "from every centroid, or if they are distributed over the clusters differently from the images that the tree "
        "was fitted to. Two samples of one distribution differ as well; the difference by chance is subtracted.",
    ),
    "fingerprint": (
        "Fingerprint",
        "A digest of everything that determines a result: operation, version, parameters and inputs. "
        "The same fingerprint means the same result, which is then reused from the workspace.",
    ),
    "built": (
        "Computed",
        "The time that it took to build the result. Rows that an earlier, interrupted build finished are reused and "
        "take no time. Stages that read the same images share one pass, and its time is divided among them.",
    ),
    "recipe": (
        "Recipe",
        "The pipeline's stages with the parameters that determine their results. Settings that only change speed, "
        "such as threads, are omitted.",
    ),
    "entry": (
        "Entries",
        "Concepts of WordNet, words of a vocabulary or hashtags that a text contains. A text may have several "
        "entries; each of them is a match.",
    ),
    "expected": (
        "Expected",
        "Each text is drawn independently, with a probability that depends on how common its entries are. Expected is "
        "the sum of these probabilities. The number drawn differs from it by chance, by about its square root.",
    ),
    "tail": (
        "Head and tail",
        "The head is the most common entries. The tail is the rarest ones: those below the recipe's threshold, or "
        "those that have the recipe's share of all matches (6 % by default), as closely as the counts allow. "
        "Balancing gives less to the head and loses no entry of the tail.",
    ),
    "counter": (
        "Counts",
        "Counts of a stage other than rejects. A cleaning stage counts how many texts each of its rules changed; "
        "several rules may change one text.",
    ),
    "keeper": (
        "Keeper",
        "Images that are equal or almost equal form a duplicate set. One of them, the keeper, passes.",
    ),
}
"""Term -> (title, explanation)."""

DOWNLOAD_TERMS = {
    "fetched": (
        "Fetched",
        "Rows of a list that have the same URL share one fetch. A retry fetches the URLs in error again and is counted "
        "again; the funnel shows what became of each row in the end.",
    ),
    "rate": (
        "Over time",
        "Each step is a period of at least ten seconds. A fetch counts in the period in which it ended. Time "
        "in which no shard was fetched, such as between two runs, is left out.",
    ),
    "hosts": (
        "Hosts with most failures",
        "The hosts with the most failed URLs. Hosts with few URLs in every shard may be missing.",
    ),
    "slow": (
        "Slowest hosts",
        "The hosts with the highest mean time of a URL, retries and redirects included, among those with at least ten "
        "URLs.",
    ),
}
"""Terms of the section about downloads, which only downloaded pools have."""

VIDEO_TERMS = {
    "divided": (
        "Division into clips",
        "`video.divide` makes clips of the shots between cuts. Every millisecond of a video is in a clip, or has a "
        "reason why not; the parts add up to the lengths of the videos.",
    ),
}
"""Terms of the section about videos."""

MEANINGS = REASONS | {
    "animated": "several frames, which the recipe does not allow",
    "aspect": "longer and thinner than the recipe allows",
    "bad_metadata": "its metadata cannot be read",
    "bad_row": "an error that no other reason names; the row's meta has it",
    "bad_embedding": "its embedding has no direction: all zeros, or not a number",
    "caption_too_long": "more text than the recipe allows",
    "caption_too_short": "less text than the recipe requires",
    "contaminated": "an evaluation image, or too close to one, which training must not see",
    "duplicate_key": "another row of the pool has the same key; the first row counts",
    "caption_too_few_words": "fewer words than the recipe requires",
    "caption_unsettled": "a caption nested so deeply that cleaning does not settle",
    "dissimilar": "image and text are less similar than the recipe requires",
    "exact_duplicate": "the same image as its keeper, shown next to it",
    "format": "an image format that the recipe does not list",
    "head_cut": "its text is about something common, and it was not drawn",
    "language": "a language that the recipe does not list",
    "language_uncertain": "the language is not certain enough",
    "killed": "it crashed the process that read it",
    "missing_caption": "no caption, or none left after cleaning; the recipe requires one",
    "no_embedding": "it has no embedding to compare texts with",
    "no_items": "all of its texts were rejected",
    "missing_file": "the source names a file that does not exist",
    "near_duplicate": "almost the same image as its keeper, shown next to it",
    "no_concept": "its text contains no concept",
    "no_entry": "its text contains no counted entry: no concept, word or tag",
    "no_hashtag": "none of its tags is in the vocabularies",
    "no_image": "the source has a row for it but no image",
    "no_language": "its text is too short to detect the language",
    "no_text": "no text that the selection could choose",
    "not_drawn": "not drawn by the uniform sample",
    "not_sampled": "not drawn by the selection: the quota of its cluster was filled",
    "other_extension": "a file extension that is not an image's",
    "semantic_duplicate": "almost the same as its keeper to the encoder, shown next to it",
    "text_duplicate": "as many rows as the recipe allows already have exactly this text",
    "too_large": "larger than the recipe allows",
    "too_small": "fewer pixels on its shorter side than the recipe requires",
    "unreadable": "the file could not be read",
    "unclosed_quote": "a quote in the table that is not closed",
    "unsafe_path": "a path that leaves its folder",
    "zero_embedding": "its embedding is all zeros",
    "nan_embedding": "its embedding is not a number",
    SET_ASIDE: "its shard failed permanently and was set aside",
}
"""Reject reason -> explanation. Other packages add reasons, which have none."""


FETCHES = {
    "bad_url": "the text is not an absolute URL with a valid host",
    "bad_line": "a line of the list that cannot be read",
    "caption_not_utf8": "a caption in the list that is not UTF-8",
    "changed": "the body's digest differs from the list's",
    "connect": "no connection to the host",
    "credentials": "the URL contains a user name or a password",
    "deadline": "the fetch, or its shard, took too long",
    "denied_host": "the host is in the file of denied hosts",
    "denied_url": "the URL is in the file of denied URLs",
    "dns": "the host name has no address, or its name server does not answer",
    "encoding": "the body's Content-Encoding is unknown or corrupt, or it expands too far",
    "headers": "the response's header is malformed or too large",
    "not_a_video": "the body is not a video in a format that is decoded",
    "not_image": "the body is not an image in a format that is decoded",
    "opt_out_content_usage": "the header Content-Usage: train-ai=n forbids training",
    "opt_out_tdm_reservation": "the header tdm-reservation: 1 reserves the rights of text and data mining",
    "opt_out_x_robots_tag": "the header X-Robots-Tag forbids the use of the image",
    "parked": "the host asks for a pause that is longer than a URL may take",
    "port": "the port is not allowed",
    "private_address": "the host has no public address",
    "redirects": "too many redirects, or a loop of them",
    "reset": "the host closed the connection before it answered",
    "resize": "img2dataset's resizer rejected the image",
    "robots_txt": "the host's robots.txt disallows the URL",
    "runner_died": "the process that fetched the URL died twice",
    "scheme": "the scheme is neither http nor https",
    "timeout": "the host was silent for too long",
    "tls": "the host's certificate is invalid, or it does not speak TLS",
    "too_large": "the body is larger than the recipe allows",
    "too_many_pixels": "the image has more pixels than the recipe allows",
    "truncated": "the body's length differs from the announced length",
    "unexpected": "an error that no other code covers",
    "url_too_long": "the URL is too long",
}
"""Code of a fetch -> explanation."""
HTTP = "http_"


def fetch_meaning(code: str) -> str:
    if not code.startswith(HTTP):
        return FETCHES.get(code, "")
    number = int(code.removeprefix(HTTP))
    known = number in HTTPStatus.__members__.values()
    return f"the host answered {number}" + (f" ({HTTPStatus(number).phrase})" if known else "")


def meaning(reason: str) -> str:
    return MEANINGS.get(reason) or OF_VIDEOS.get(reason) or fetch_meaning(reason)


def human(reason: str) -> str:
    """`too_small` as `too small`."""
    return reason.replace("_", " ")
