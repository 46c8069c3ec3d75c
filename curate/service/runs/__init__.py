"""Runs: recipes are checked and submitted, runs are watched, stopped and resumed."""
