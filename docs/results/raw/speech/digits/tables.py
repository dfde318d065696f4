"""tables.py RECORDINGS OUT: utterances of two to five digits of one speaker, from the Free Spoken Digit Dataset.

Recordings 0 to 4 of each digit and speaker are for test, 5 to 9 for dev, 10 to 49 for train, so that no recording is in
two tables. Between digits there are 0.05 to 0.25 s of silence.
"""

import random
import sys
from pathlib import Path

import numpy as np
import soundfile

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
GERMAN = ["null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
recordings, out = map(Path, sys.argv[1:])
rng = random.Random(1)
speakers = sorted({path.name.split("_")[1] for path in recordings.glob("*.wav")})
for name, numbers, hours in (("train", range(10, 50), 2.5), ("dev", range(5, 10), 0.25), ("test", range(5), 0.25)):
    folder = out / "clips" / name
    folder.mkdir(parents=True, exist_ok=True)
    rows, seconds = ["audio\ttext\ttranslation\tspeaker"], 0.0
    while seconds < hours * 3600:
        speaker, digits = rng.choice(speakers), [rng.randrange(10) for _ in range(rng.randint(2, 5))]
        parts = []
        for digit in digits:
            sound, rate = soundfile.read(recordings / f"{digit}_{speaker}_{rng.choice(numbers)}.wav", dtype="float32")
            parts += [sound, np.zeros(int(rate * rng.uniform(0.05, 0.25)), np.float32)]
        sound = np.concatenate(parts)
        path = folder / f"{len(rows)}.wav"
        soundfile.write(path, sound, rate)
        seconds += len(sound) / rate
        said, translated = (" ".join(words[digit] for digit in digits) for words in (WORDS, GERMAN))
        rows.append(f"{path.relative_to(out)}\t{said}\t{translated}\t{speaker}")
    (out / f"{name}.tsv").write_text("\n".join(rows) + "\n")
