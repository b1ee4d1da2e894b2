"""The paper's experiments: generators, recipes and one module per claim."""
