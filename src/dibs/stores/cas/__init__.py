"""A whole store from compare-and-set: for stores that load and swap one value a key, without code of ours."""
