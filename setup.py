"""Metadata of the package; tool settings are in pyproject.toml, known-good versions in requirements/constraints.txt."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
README = HERE / "README.md"


def read_version() -> str:
    """The version as written in the package: importing it here would need its dependencies."""
    text = (HERE / "leapformer_fairseq" / "__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE).group(1)


setup(
    name="leapformer-fairseq",
    version=read_version(),
    description="Linear attention for sequence generation: a plugin for fairseq",
    long_description=README.read_text(encoding="utf-8") if README.is_file() else "",
    long_description_content_type="text/markdown",
    author="The leapformer_fairseq authors",
    license="MIT",
    keywords=["linear attention", "fairseq", "simultaneous translation", "transformer"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    # The hyperparameters of the recipes stay where a reader looks for them, and travel with the package.
    packages=[*find_packages(include=["leapformer_fairseq", "leapformer_fairseq.*"]), "leapformer_fairseq.configs"],
    package_dir={"leapformer_fairseq.configs": "configs"},
    package_data={
        "leapformer_fairseq": [
            "py.typed",
            "attention/ops/cpu/*.[ch]",
            "data/corpus/language/*.yaml",
            "runtime/*.onnx",
            "runtime/acoustics/fbank.onnx",
            "runtime/demo/*.*",
            "runtime/demo/model/*",
            "runtime/serve/page/*.*",
            "runtime/serve/page/local/*",
            "studies/lra/*.json",
            "studies/lra/protocols/*.yaml",
            "studies/recipes/*.json",
            "studies/recipes/*.yaml",
        ],
        "leapformer_fairseq.configs": ["*.yaml", "*/*.yaml"],
    },
    python_requires=">=3.11",
    # What runtime/ needs: translating live and exported models. All else is in extras.
    install_requires=["numpy>=1.26", "onnxruntime>=1.26", "sentencepiece", "soundfile", "websockets>=14"],
    extras_require={
        "train": [
            "torch>=2.6",  # the first that loads checkpoints with weights_only=True unless told otherwise
            "fairseq-fixed==0.12.3.1",  # imported as `fairseq`; the original 0.12.2 does not run on Python 3.11
            "matplotlib",
            "onnx",  # filterbanks of other rates and sizes than 16 kHz and 80 bins
            "pillow",
            "praatio>=6",  # TextGrids of the Montreal Forced Aligner
            "pyyaml",
            "sacrebleu>=2.3",
            "scikit-learn",  # which fairseq imports, and Sparsefinder's k-means
            "scipy",
            "tqdm",
        ],
        "simul": ["simuleval==1.1.4"],  # the agent; brings pandas, tornado, yt-dlp, pytest
        "bench": ["entmax>=1.3"],  # what `leapformer bench sparse` and the tests compare with
        "docs": ["mkdocs-material", "mkdocstrings[python]"],
        "onnx": ["onnx", "onnxscript", "torch>=2.8"],  # `leapformer export`
        "words": ["sacremoses", "subword-nmt"],  # BPE and Moses' words of exported models
        "ctranslate2": ["ctranslate2>=4.5"],  # an engine of exported models with softmax
        "dev": [
            *("hypothesis", "kaldi-native-fbank", "mypy", "pytest", "pytest-xdist", "pytorch_optimizer", "ruff"),
            "sacremoses",
        ],
        "apollo": ["pytorch_optimizer"],  # the optimizer of Luna's best translation models
        "fla": ["flash-linear-attention"],  # a peer in `leapformer bench attention` on a GPU
        "live": ["mweralign", "sacremoses", "soxr"],  # resegmentation of talks; serving audio of any rate
        "demo": ["espeakng-loader"],  # speaks the sentences of the quickstart
    },
    entry_points={"console_scripts": ["leapformer = leapformer_fairseq.cli.main:main"]},
)
