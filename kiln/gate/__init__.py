"""Gates: what is asked of a running image, how it is judged, and what is kept of it."""
