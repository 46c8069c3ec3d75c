"""Frozen teachers: what they say of pictures (`panel`), and how that is brought to one scale (`standards`)."""

from distill.teachers.base import Answer, Shape, Target, Teacher
from distill.teachers.encoder import EncoderTeacher
from distill.teachers.moments import Moments
from distill.teachers.panel import Teachers
from distill.teachers.standards import Standard, Standards, fit_standards

__all__ = [
    "Answer", "EncoderTeacher", "Moments", "Shape", "Standard", "Standards", "Target", "Teacher", "Teachers",
    "fit_standards",
]  # fmt: skip
