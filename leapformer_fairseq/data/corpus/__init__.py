"""Small corpora synthesised on the spot: English-German speech translation (`build`), text to speech (`tts`).

`grammar` makes sentences (from `lexicon`, `verbs`, `phrases`, `clauses`; inflection in `german` and `english`, counting
in `choices` and `vocabulary`), `plan` shares them out, `espeak` and `synthesize` speak them, `files` writes what
fairseq and SimulEval read of the one, `tts` what fairseq reads of the other; `folder` sees to it that a corpus is
complete, repeats, and replaces nothing.
"""
