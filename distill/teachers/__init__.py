"""Frozen teachers, their features and the standardisation of the features."""

from curate.encoders.student.standardise import Standardiser, Target, TargetStandardiser
from distill.teachers.base import Shape, Teacher, TeacherFeatures
from distill.teachers.encoder import EncoderTeacher
from distill.teachers.moments import Moments
from distill.teachers.standardise import fit_standardisers
from distill.teachers.teachers import Teachers

__all__ = [
    "EncoderTeacher", "Moments", "Shape", "Standardiser", "Target", "TargetStandardiser", "Teacher", "TeacherFeatures",
    "Teachers", "fit_standardisers",
]  # fmt: skip
