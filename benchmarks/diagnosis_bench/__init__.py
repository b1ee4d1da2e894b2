"""Small runs, healthy and broken on purpose, with the expected finding stated before the run."""
