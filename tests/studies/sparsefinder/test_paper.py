"""What is called the paper's (Treviso et al., 2022) is the paper's: grids, sizes, teachers, and the sections cited."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leapformer_fairseq import PLUGIN_DIR
from leapformer_fairseq.studies.recipes import configuration
from leapformer_fairseq.studies.sparsefinder import pictures
from leapformer_fairseq.studies.sparsefinder.grids import block_points, patterns, points, values_of
from tests.studies.recipes.running import dry_run

BUCKETS = [2, 4, 6, 8, 10, 12, 16, 20]


def test_section_5_has_every_method_and_the_same_buckets():
    """Also Reformer and Routing, whose buckets are varied as those of the other methods with buckets."""
    found = points("section5", patterns(), "decoder-self")
    assert {point.mechanism for point in found} == set(patterns())
    for name, option in (
        ("sparsefinder-kmeans", "sparsefinder_centroids"),
        ("entmax-reformer", "reformer_buckets"),
        ("entmax-routing", "routing_centroids"),
        ("entmax-bigbird", "bigbird_random"),
        ("entmax-longformer", "longformer_globals"),
    ):
        assert sorted({point.options[option] for point in found if point.mechanism == name}) == BUCKETS, name
    assert set(BUCKETS) <= set(values_of("routing_centroids")), "their centroids are fitted"


def test_blocks_of_one_token_are_the_appendix_and_not_of_the_average():
    """Figure 13 has a panel for each size, from 1 on; figure 7 averages over the sizes 2 to 16 of section 6.1."""
    found = block_points("union", ["sparsefinder-block1"])
    assert sorted({point.options["sparsefinder_block_size"] for point in found}) == [1, 2, 4, 8, 16]
    rows = [
        {"mechanism": "a", "attended": 2, "seconds": s, "quality": q, "options": {"sparsefinder_block_size": z}}
        for z, s, q in ((1, 9.0, 90.0), (2, 1.0, 4.0), (16, 3.0, 8.0))
    ]
    assert pictures.block_means(rows, (2, 4, 8, 16)) == {"a": [(2, 2.0, 6.0)]}
    assert pictures.block_means(rows, (1,)) == {"a": [(2, 9.0, 90.0)]}


def said(*words: str) -> list[str]:
    return dry_run("sparsefinder", *words, "--root", "/R", "--out", "/O")


def test_the_recipes_of_the_papers_size():
    """One training with entmax in every head, of the paper's model on its data, from the model that it begins with."""
    (translation,) = (line for line in said("--paper", "mt", "--init", "/I.pt") if " recipe " in line)
    assert " iwslt17 " in translation and "--attention entmax " in translation
    assert "--finetune-from-model /I.pt" in translation and "--paper sparsefinder" in translation
    text = "\n".join(said("--paper", "mt", "--pair", "en-fr"))
    assert "--min-length 22 --sentences 10000" in text and "--pair en-fr" in text and "raw/test.fr" in text
    mlm = said("--paper", "mlm", "--init", "/I.pt")
    (trained,) = (line for line in mlm if " recipe " in line)
    assert " mlm " in trained and "--attention entmax " in trained and "--paper sparsefinder" in trained
    assert "--min-length 512 --sentences 1000" in (text := "\n".join(mlm)) and "--part 0.5" in text
    assert " --subset valid" in mlm[-1], "the text that the released code scores"


@pytest.mark.parametrize("name", configuration.names("sparsefinder"))
def test_what_is_small_says_so(name):
    """In its name, and above its tables; nothing else does."""
    text = "\n".join(said("--paper", name))
    trained = {line.split(" recipe ")[1].split()[0] for line in text.splitlines() if " recipe " in line}
    assert ("_small" in name) == ("multi30k" in trained or "--paper sparsefinder" not in text)
    assert ("_small" in name) == bool(re.search(r"--note '[^']*small", text))


def test_every_head_of_every_teacher_of_translation_is_entmax():
    for name in ("iwslt17/sparsefinder", "sparsefinder/mt", "sparsefinder/mt_small"):
        configured = configuration.load(*name.split("/"))
        plan = configured.get("entmax") or configured["attention"]
        assert plan == "entmax", name


SOURCES = ("leapformer_fairseq/attention/sparse", "leapformer_fairseq/sparsefinder", "configs/sparsefinder")
KNOWN = {"4", "5", "6", "6.1", "c", "c.1", "c.2", "d", "d.2", "f"}  # the method, the experiments, their details


def cited(text: str) -> set[str]:
    """The sections and appendices of the paper that a file names; "their" ones are another paper's."""
    found = re.findall(r"(?<!their )(?:section|appendix)\s+([A-Z0-9.]*[A-Z0-9])(?: and appendix ([A-Z]))?", text)
    return {one.lower() for pair in found for one in pair if one}


def test_sections_that_are_cited_are_known():
    wrong = []
    for folder in SOURCES:
        for path in Path(PLUGIN_DIR.parent / folder).rglob("*.*"):
            if path.suffix in (".py", ".yaml"):
                wrong += [f"{path.name}: {one}" for one in cited(path.read_text("utf-8")) - KNOWN]
    assert wrong == []
    assert cited("(Treviso et al.,\n2022, section 2.3, their section 7)") - KNOWN == {"2.3"}, "inverted control"
