"""Data preparation for fairseq: released data sets, data of one's own, and synthetic corpora (`data.corpus`)."""
