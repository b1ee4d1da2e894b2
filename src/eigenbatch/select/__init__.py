"""Batch selection: pure callables on a pool of embeddings. No DataLoader, no epochs."""
