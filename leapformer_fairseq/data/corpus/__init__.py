"""Small synthetic corpora: English-German speech translation (`build`), text to speech (`tts`).

`grammar` generates sentences (from `lexicon`, `verbs`, `phrases`, `clauses`; inflection in `german` and `english`,
counting in `choices` and `vocabulary`), `plan` assigns them to splits and voices, `espeak` and `synthesize` speak them,
`files` writes what fairseq and SimulEval read for speech translation, `tts` what fairseq reads for text to speech.
`folder` ensures that a corpus is complete and reproducible, and replaces nothing.
"""
