"""Tests of the models' files: fetched, checked, mended, removed."""
