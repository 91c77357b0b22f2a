"""A part of the GPU report that starts a process and does not end."""

import subprocess
import sys

COLUMNS = {"speed": "{:.1f}"}


def rows(_):
    yield "hang", lambda: subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=True)
