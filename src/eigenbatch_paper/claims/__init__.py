"""The claims of the paper, one small module each; `eigenbatch_paper.registry` lists them."""
