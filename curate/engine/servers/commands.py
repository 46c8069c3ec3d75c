"""Command lines and environment variables of servers."""

from __future__ import annotations

import math
import os
import re
import sys
from pathlib import Path

from curate.core.endpoints import Endpoint, Launch

HOST = "127.0.0.1"
"""Servers answer this machine only."""
KEPT = re.compile(
    r"HOME|USER|LOGNAME|LANG|LC_ALL|TMPDIR|TZ|SSL_CERT_(DIR|FILE)|LD_LIBRARY_PATH|XDG_CACHE_HOME|OMP_\w+"
    r"|CUDA_\w+|NVIDIA_\w+|NCCL_\w+|HIP_\w+|ROCR_\w+|HF_(HOME|HUB_CACHE|HUB_OFFLINE)|VLLM_\w+|TORCH\w*_CACHE_DIR"
    r"|TRITON_CACHE_DIR"
)
SECRET = re.compile("KEY|SECRET|TOKEN|PASSWORD|CREDENTIAL")
QUIET = {"DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"}
"""No usage reports; output line by line."""


def executable(launch: Launch) -> Path:
    """The server's program in its environment."""
    return Path(launch.environment or sys.prefix) / "bin" / launch.server


def problem(name: str, endpoint: Endpoint) -> str | None:
    """Why this machine cannot start the server of an endpoint, in one line; None if it can."""
    launch = endpoint.launch
    if launch is None or os.access(executable(launch), os.X_OK):
        return None
    return (
        f"endpoint {name}: no program {executable(launch)} to launch; "
        f"expected a Python environment with {launch.server} on every machine that runs the stage; "
        "name its folder in `launch: {environment: ...}`"
    )


def command(endpoint: Endpoint, port: int) -> list[str]:
    """Command line of the server. Arguments of the endpoint come last, so they override ours."""
    launch = endpoint.launch
    assert launch is not None
    made = [str(executable(launch)), "serve", endpoint.model, "--host", HOST, "--port", str(port)]
    if launch.server == "vllm":
        made += ["--served-model-name", endpoint.model]
        if launch.gpus > 1:
            made += ["--tensor-parallel-size", str(math.ceil(launch.gpus))]
    elif not launch.gpus:
        made += ["--device", "cpu"]
    return made + list(launch.arguments)


def variables(launch: Launch) -> dict[str, str]:
    """Environment variables of the server: none with credentials, no proxy, no PYTHONPATH."""
    kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name) and not SECRET.search(name)}
    kept["PATH"] = os.pathsep.join([str(executable(launch).parent), os.environ.get("PATH", os.defpath)])
    return kept | QUIET | ({} if launch.gpus else {"CUDA_VISIBLE_DEVICES": ""})
