"""What another threshold would do to the rows of a run, from stored facts."""
