"""Tables of a corpus that `leapformer corpus` made, as one would write them for recordings of one's own."""

import csv
import sys
from pathlib import Path

corpus, out = Path(sys.argv[1]), Path(sys.argv[2])
for split, count in (("train", 2000), ("dev", 100), ("test", 100)):
    wavs = (corpus / f"{split}.source").read_text().split()
    with (corpus / f"{split}_st.tsv").open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    lines = ["audio\ttext\ttranslation\tspeaker"]
    lines += [
        "\t".join((wav, row["src_text"], row["tgt_text"], row["speaker"])) for wav, row in zip(wavs, rows, strict=True)
    ]
    (out / f"{split}.tsv").write_text("\n".join(lines[: count + 1]) + "\n")
