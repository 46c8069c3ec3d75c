"""Makes the fork server of `tasks`, which imports this first, ignore SIGTERM: a drain sends it to all processes of a
run, and payloads still end one by one. The fork server ends with its parent. Has no effect in any other process.
"""

import signal
import sys

if any("multiprocessing.forkserver import main" in word for word in sys.orig_argv):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
