"""Pairs of languages, as in --pair en-de, and those that data sets of speech have."""

from __future__ import annotations

from ..support.errors import LeapformerError

PAIRS = {"mustc": "en-de", "covost2": "fr-en"}  # by default
# Languages into which English was translated (CoVoST 2: Wang et al., 2020, arXiv:2007.10310), and from which.
_FROM_ENGLISH = {
    "mustc": "ar cs de es fa fr it ja nl pt ro ru tr vi zh",
    "covost2": "ar ca cy de et fa id ja lv mn sl sv-SE ta tr zh-CN",
}
_TO_ENGLISH = {"covost2": "ar ca cy de es et fa fr id it ja lv mn nl pt ru sl sv-SE ta tr zh-CN"}


def of_speech(name: str, pair: str) -> tuple[str, str]:
    """Source and target of a pair such as "en-es". Raises LeapformerError for one that MuST-C or CoVoST 2 lacks."""
    known = {f"en-{target}": ("en", target) for target in _FROM_ENGLISH[name].split()}
    known |= {f"{source}-en": (source, "en") for source in _TO_ENGLISH.get(name, "").split()}
    if pair not in known:
        raise LeapformerError(f"--pair {pair}: {name} has no such languages; give one of {', '.join(known)}")
    return known[pair]


def of_text(pair: str) -> tuple[str, str]:
    """Source and target of a pair of files of text. Raises LeapformerError unless it names two languages."""
    languages = pair.split("-")
    if len(languages) != 2 or len({*languages} - {""}) != 2:
        raise LeapformerError(f"--pair {pair or '(none)'}: give two languages, as the files' names end, e.g. en-de")
    return languages[0], languages[1]
