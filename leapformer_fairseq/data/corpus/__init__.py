"""Small synthetic corpora: English-German speech translation (`build`) and text to speech (`tts`).

`grammar` generates sentences from the words and rules in `language/*.yaml`, with the random choices of `choices`.
`plan` assigns the sentences to splits and voices, `espeak` and `synthesize` speak them, `build` writes the files for
speech translation that fairseq and SimulEval read, and `tts` those for text to speech. `folder` ensures that a corpus
is complete, reproducible, and overwrites nothing.
"""
