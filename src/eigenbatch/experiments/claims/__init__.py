"""The claims of the paper, one small module each; `eigenbatch.experiments.registry` lists them."""
