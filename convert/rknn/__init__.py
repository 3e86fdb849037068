"""Builds .rknn files for a hybrid folder with the vendor's toolkit, in an environment of its own."""
