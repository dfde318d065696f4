"""Code in processes that have imported PyTorch or fairseq but not this package; that takes three seconds, once."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SERVER = """
import json, os, sys
exec(sys.argv.pop())
for line in sys.stdin:
    code, cwd, out, err = json.loads(line)
    child = os.fork()
    if not child:
        for number, path in enumerate((os.devnull, out, err)):
            os.dup2(os.open(path, os.O_RDWR), number)
        os.chdir(cwd)
        status = 0
        try:
            exec(code, {"__name__": "__main__"})
        except SystemExit as error:
            status = error.code
        except BaseException:
            status = 1
            sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(status or 0))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def run_after(before: str, code: str, cwd: Path | str = ".") -> subprocess.CompletedProcess[str]:
    """What `python -c CODE` does in `cwd`, in a fork of a process that has run `before`, such as `import fairseq`."""
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        server = _server(before)
        assert server.stdin and server.stdout
        server.stdin.write(json.dumps([code, str(cwd), out.name, err.name]) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        return subprocess.CompletedProcess(code, status, out.read(), err.read())


@functools.cache
def _server(before: str) -> subprocess.Popen[str]:
    """Ends when its input is closed, at the latest with this process."""
    command = [sys.executable, "-c", SERVER, before]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
