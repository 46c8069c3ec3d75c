"""Maps of vectors: two coordinates of every row, and filters by a region drawn on a map."""
