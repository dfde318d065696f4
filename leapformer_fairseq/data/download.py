"""Download the files of a data set, unpack archives, and read text files inside them."""

from __future__ import annotations

import shutil
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import IO

from tqdm import tqdm

from .. import __version__
from ..support.errors import LeapformerError
from ..support.files import partial_of, replacing
from ..support.lines import decoded

TIMEOUT_S = 60  # without receiving any data


def fetch(url: str, path: Path) -> None:
    """Download `url` to `path`, which appears only when it is complete.

    Raises LeapformerError with the address and the reason if the download fails.
    """
    # Some hosts refuse Python's default user agent.
    request = urllib.request.Request(url, headers={"User-Agent": f"leapformer_fairseq/{__version__}"})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer, replacing(path) as partial:
            size = int(answer.headers.get("Content-Length") or 0) or None
            with open(partial, "wb") as file, tqdm.wrapattr(file, "write", total=size, desc=path.name) as counted:
                shutil.copyfileobj(answer, counted, 1 << 20)
            if size is not None and partial.stat().st_size != size:
                # urllib ends quietly when a connection is closed early.
                raise OSError(f"received {partial.stat().st_size} of {size} bytes")
    except (OSError, HTTPException) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise LeapformerError(
            f"{url} cannot be downloaded ({reason}); try again later, or get it elsewhere and put it at {path}"
        ) from error


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive whose only folder has the name of `folder`, which appears only when it is complete.

    Raises LeapformerError if the archive is damaged, unsafe, or does not contain this folder.
    """
    partial = partial_of(folder)
    try:
        with tarfile.open(archive) as opened:
            opened.extractall(partial, filter="data")  # refuses names and links that lead out of the folder
        (partial / folder.name).rename(folder)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise LeapformerError(f"{archive} cannot be unpacked ({error}); delete it and download it again") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def member_lines(archive: Path, member: str) -> Iterator[str]:
    """Yield the lines of a text file inside a tar or zip archive.

    Raises LeapformerError if the archive is damaged or does not contain this file.
    """
    try:
        with _member(archive, member) as file:
            yield from decoded(file, f"{member} in {archive}")
    except KeyError as error:
        raise LeapformerError(f"{archive} holds no {member}; is it the data set's release?") from error
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise LeapformerError(f"{archive} cannot be read ({error}); delete it and download it again") from error


@contextmanager
def _member(archive: Path, name: str) -> Iterator[IO[bytes]]:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as zipped, zipped.open(name) as file:
            yield file
        return
    with tarfile.open(archive) as tape:
        member = tape.extractfile(name)
        if member is None:
            raise KeyError(name)
        with member:
            yield member
