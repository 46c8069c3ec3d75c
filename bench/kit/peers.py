"""Peers that only benchmarks need: installed into the checkout's cache when first asked for, beside the locked set."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from types import ModuleType

from tests.conftest import ROOT

FOLDER = ROOT / ".cache" / "bench-peers"
SKLEARN = ("scikit-learn==1.7.2", "joblib==1.5.2", "threadpoolctl==3.6.0")

LITDATA = ("litdata==0.2.76", "lightning-utilities==0.15.3", "obstore==0.12.1")
SCENEDETECT = ("scenedetect==0.7.2", "opencv-python-headless==5.0.0.93")


def sklearn(module: str = "sklearn.cluster") -> ModuleType:
    """scikit-learn, over this environment's NumPy and SciPy. Raises RuntimeError if it cannot be installed."""
    _install("sklearn", SKLEARN)
    return importlib.import_module(module)


def litdata() -> ModuleType:
    """litData with its submodules, over this environment's torch. Raises RuntimeError if it cannot be installed."""
    _install("litdata", LITDATA)
    for name in ("litdata.types", "litdata.streaming.cache"):
        importlib.import_module(name)
    return importlib.import_module("litdata")


TORCHCODEC = ("torchcodec==0.17.0",)
DECORD = ("decord2==3.4.0",)


def torchcodec() -> ModuleType:
    """torchcodec, over this environment's torch and the system's FFmpeg. Raises RuntimeError if it cannot be installed,
    or finds no FFmpeg."""
    _install("torchcodec", TORCHCODEC)
    importlib.import_module("torchcodec.decoders")
    return importlib.import_module("torchcodec")


def decord() -> ModuleType:
    """decord2, which has its own FFmpeg. Raises RuntimeError if it cannot be installed."""
    _install("decord", DECORD)
    return importlib.import_module("decord")


def scenedetect() -> ModuleType:
    """PySceneDetect, over this environment's PyAV and NumPy. Raises RuntimeError if it cannot be installed."""
    _install("scenedetect", SCENEDETECT)
    return importlib.import_module("scenedetect")


def _install(folder: str, packages: tuple[str, ...]) -> None:
    if not (FOLDER / folder).exists():
        uv = shutil.which("uv") or str(ROOT / ".cache" / "uv" / "bin" / "uv")
        command = [uv, "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER), *packages]
        done = subprocess.run([*command, "--python", sys.executable], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{packages[0]} could not be installed: {done.stderr.strip().splitlines()[-1]}")
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
