"""The student: a vision transformer for packed images of any aspect, and a head per teacher."""
