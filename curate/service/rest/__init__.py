"""The API under /api/v1: a router for each subject, which only calls actions; and what all answers have in common."""
