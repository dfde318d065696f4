"""`leapformer user-dir`: the path to give to fairseq's --user-dir."""

from .. import PLUGIN_DIR

OPTIONS = ""


def run() -> None:
    """Print the folder, as in `fairseq-train --user-dir $(leapformer user-dir) ...`."""
    print(PLUGIN_DIR)
