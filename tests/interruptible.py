"""Programs that a test is to interrupt."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path


def start(command: Sequence[str], folder: Path | None = None) -> subprocess.Popen[str]:
    """The program, its outputs as text; SIGINT reaches it.

    Tests that run in the background may ignore it, which their children inherit.
    """
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
