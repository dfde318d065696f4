"""Small synthetic corpora: English-German speech translation (`build`) and text to speech (`tts`).

`grammar` generates sentences from `lexicon`, `verbs`, `phrases` and `clauses`, with inflection in `german` and
`english`, and counting in `choices` and `vocabulary`. `plan` assigns the sentences to splits and voices, `espeak` and
`synthesize` speak them, `files` writes the files for speech translation that fairseq and SimulEval read, and `tts`
those for text to speech. `folder` ensures that a corpus is complete, reproducible, and overwrites nothing.
"""
