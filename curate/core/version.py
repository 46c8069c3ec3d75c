"""The version of the package, in one place: hatch reads it for the wheel, workers compare it with the driver's."""

__version__ = "0.2.0.dev0"
