"""A small English-German speech translation corpus, synthesised on the spot: `build` it, then train on it.

`grammar` makes sentences (from `lexicon`, `verbs`, `phrases`, `clauses`; inflection in `german` and `english`, counting
in `choices` and `vocabulary`), `plan` shares them out, `espeak` and `synthesize` speak them, `files` writes what
fairseq and SimulEval read.
"""
