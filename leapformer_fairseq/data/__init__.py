"""Data preparation for fairseq: released data sets, the user's own data, and synthetic corpora (`data.corpus`)."""
