"""The fork server of `tasks` imports this module first, and then ignores SIGTERM: a drain sends SIGTERM to all
processes of a run, and payloads must still end one by one. The fork server ends with its parent. Has no effect in any
other process.
"""

import signal
import sys

if any("multiprocessing.forkserver import main" in word for word in sys.orig_argv):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
