"""Making data that fairseq reads: speech corpora prepared for training, and a synthetic one (`data.corpus`)."""
