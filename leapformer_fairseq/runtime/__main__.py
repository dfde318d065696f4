"""`python -m leapformer_fairseq.runtime`: runs an exported model."""

import sys

from ..cli.exported import main

if __name__ == "__main__":
    sys.exit(main())
